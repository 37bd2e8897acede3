"""Seeds side by side in common blocks equal separate runs: in float64 to 1e-10, every discrete decision exactly."""

from dataclasses import replace

import pytest

from partwise import Federation, methods
from partwise.engines.shared import Shared, can_share
from partwise.engines.turns import side_by_side
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from tests.helpers import awkward_federation, distance, network
from tests.parity.test_engines import DEEPER, stable

SEEDS = (0, 1, 2)


def federation_of(seed: int) -> Federation:
    """The awkward clients on one data set, numbered differently; those of the last seed have less than a batch."""
    whole = awkward_federation(validated=2)
    most = 6 if seed == SEEDS[-1] else None
    train, test, validation = (every[seed:] + every[:seed] for every in (whole.train, whole.test, whole.validation))
    return replace(whole, train=[own[:most] for own in train], test=test, validation=validation)


def net_of(method: str) -> str:
    return "cnn+bn" if method == "fedbn" else "mlp of two layers" if method in DEEPER else "mlp"


def prepared(method, net=None, seeds=SEEDS, **settings):
    """A simulation for every seed, with a federation and a network of its own."""
    federations = [federation_of(seed) for seed in seeds]
    net = net or net_of(method)
    given = {"engine": "vector", "dtype": "float64", "device": "cpu", "batch": 8, "rounds": 4, "clients": 8}
    given |= {**stable(method, net), **settings}
    return [
        prepare(
            make_config(method, {**given, "seed": seed}),
            replace(federation, source=federations[0].source),
            network(net, dropout=0.25, seed=seed),
        )
        for seed, federation in zip(seeds, federations, strict=True)
    ]


def together(simulations):
    engines = [simulation.engine for simulation in simulations]
    assert can_share(engines)
    return side_by_side(engines, [simulation.run for simulation in simulations])


def assert_equal(separate, shared):
    """All that two runs of a seed leave."""
    decisions = [
        (
            run.server.groups,
            [(row["participants"], row["refused"]) for row in run.history.rows],
            run.server.ledger.flops,
        )
        for run in (separate, shared)
    ]
    assert str(decisions[0]) == str(decisions[1])
    assert distance(separate, shared) < 1e-10


@pytest.mark.parametrize("method", methods.names())
def test_seeds_side_by_side_equal_separate_runs(method, monkeypatch):
    separate = [simulation.run() for simulation in prepared(method)]
    widths, execute = [], Shared.execute

    def watched(self, order, client, common, tables):
        widths.append(len(tables))
        return execute(self, order, client, common, tables)

    monkeypatch.setattr(Shared, "execute", watched)
    shared = together(prepared(method))
    assert max(widths) == 24, "everybody is evaluated in one block"
    for one, other in zip(separate, shared, strict=True):
        assert_equal(one, other)
