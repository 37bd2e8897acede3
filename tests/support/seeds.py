"""Seeds of a run, each with data and a network of its own, side by side and one by one."""

from dataclasses import replace

from partwise import Federation
from partwise.engines.joint import can_share, side_by_side
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from tests.support.parity import DEEPER, stable
from tests.support.runs import awkward_federation, network

SEEDS = (0, 1, 2)


def federation_of(seed: int) -> Federation:
    """The awkward clients on one data set, numbered differently; those of the last seed have less than a batch."""
    whole = awkward_federation(validated=2)
    most = 6 if seed == SEEDS[-1] else None
    train, test, validation = (every[seed:] + every[:seed] for every in (whole.train, whole.test, whole.validation))
    return replace(whole, train=[own[:most] for own in train], test=test, validation=validation)


def prepared(method, **settings):
    """A simulation for every seed, with a federation and a network of its own."""
    net = "cnn+bn" if method == "fedbn" else "mlp of two layers" if method in DEEPER else "mlp"
    given = {"engine": "vector", "dtype": "float64", "device": "cpu", "batch": 8, "clients": 8}
    given |= {**stable(method, net), "rounds": 2, "epochs": 1, **settings}
    source = awkward_federation(validated=2).source
    simulations = []
    for seed in SEEDS:
        data, parts = replace(federation_of(seed), source=source), network(net, dropout=0.25, seed=seed)
        beside = simulations[0] if simulations else None
        simulations.append(prepare(make_config(method, {**given, "seed": seed}), data, parts, beside))
    return simulations


def concatenated(simulations, works=None):
    """What becomes of the runs of some simulations, side by side."""
    engines = [simulation.engine for simulation in simulations]
    assert can_share(engines)
    return side_by_side(engines, works or [simulation.run for simulation in simulations])


def separately(simulations):
    return [simulation.run() for simulation in simulations]
