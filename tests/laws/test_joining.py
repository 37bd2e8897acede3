"""Clients that were held out: until they join they change nothing, and joining changes nothing of the others'."""

import numpy as np
import pytest
import torch

from partwise import Federation, Source
from partwise.errors import ConfigError
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from tests.support.listed import LISTED
from tests.support.parity import CALMER, DEEPER
from tests.support.runs import awkward_federation, network, simulate

HALF = {"rounds": 3, "hold_out": 0.4, "join_rounds": 2, "lr": 0.02}


def network_of(method):
    return network("cnn+bn" if method == "fedbn" else "mlp of two layers" if method in DEEPER else "mlp")


@pytest.mark.parametrize("method", LISTED)
def test_it_joins_and_nothing_that_others_have_changes(method):
    """The run is that of the others alone, bit for bit, with newcomers who have no samples before they join."""
    federation, settings = awkward_federation(), {**HALF, **CALMER.get(method, {}), "rounds": 3}
    run = simulate(method, network_of(method), federation, **settings)
    assert len(run.held_out) == 3
    alone = simulate(method, network_of(method), federation.without(run.held_out), **{**settings, "hold_out": 0.0})
    others = [client for client in range(federation.clients) if client not in run.held_out]
    for name, copies in alone.server.copies.items():
        mine = run.server.copies[name]
        assert torch.equal(mine.of(others), copies.of(others)), name
    own = sorted({name for plan in run.server.plans for name in plan.own})
    for name, value in alone.engine.store.stacked(others, own).items():
        assert torch.equal(run.engine.store.stacked(others, own)[name], value), name
    row = run.history.rows[-1]
    assert row["joined"]["clients"] == 3 and not row["joined"]["diverged"]
    for moment in ("received", "adapted", "method_adapted"):
        assert moment not in row or row[moment]["clients"] == alone.history.rows[-1][moment]["clients"]


def test_a_head_of_ones_own_learns_on_the_shared_body():
    """After no round a newcomer has the head that all begin with; after some another, and the body of all."""
    begun = simulate("fedper", network("mlp"), **{**HALF, "join_rounds": 0})
    joined = simulate("fedper", network("mlp"), **HALF)
    newcomers = joined.held_out
    names = [name for name in joined.server.plan.own if name.endswith("weight")]
    for name in names:
        before, after = (run.engine.store.stacked(newcomers, [name])[name] for run in (begun, joined))
        assert torch.equal(before, begun.engine.store.initial[name].of(newcomers))
        assert not any(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    for name, copies in begun.server.copies.items():
        assert torch.equal(copies.values, joined.server.copies[name].values)


def planted(clients=10, samples=40):
    """Two populations with the same features and swapped labels: even clients and odd ones."""
    random = np.random.default_rng(0)
    kind = random.integers(0, 2, clients * samples)
    x = 2 * kind[:, None] - 1 + random.normal(0, 0.2, (len(kind), 4))
    owner = np.repeat(np.arange(clients), samples)
    source = Source(
        "planted", torch.from_numpy(x).float(), torch.from_numpy((kind + owner) % 2), 2, len(kind), (0.0,), (1.0,)
    )
    rows = [torch.from_numpy(np.flatnonzero(owner == client)) for client in range(clients)]
    train, test = [own[:30] for own in rows], [own[30:] for own in rows]
    return Federation(source, train, test, torch.cat(test).sort().values, [own[:0] for own in rows])


def test_a_newcomer_finds_the_group_that_is_like_it():
    """FedClust finds the two populations; whoever was held out is then with its own kind."""
    settings = {"rounds": 8, "hold_out": 0.4, "lr": 0.05, "batch": 10, "dtype": "float64", "clusters": 2}
    run = prepare(make_config("fedclust", {**settings, "model": "tabular", "threads": 1}), planted()).run()
    row = next(copies.row for copies in run.server.copies.values() if copies.row is not None)
    trained = [client for client in range(10) if client not in run.held_out]
    kinds = {client % 2: int(row[client]) for client in trained}
    assert len(set(kinds.values())) == 2 and all(int(row[client]) == kinds[client % 2] for client in trained)
    assert [int(row[client]) for client in run.held_out] == [kinds[client % 2] for client in run.held_out]
    assert run.history.rows[-1]["joined"]["acc_pooled"] == 1.0


def test_everybody_cannot_be_held_out():
    with pytest.raises(ConfigError, match=r"hold_out = 0\.99 leaves none of the 8 clients with samples to train"):
        simulate("fedavg", network("mlp"), **{**HALF, "hold_out": 0.99})


def test_nobody_held_out_is_the_run_as_ever():
    assert simulate("fedper", network("mlp"), rounds=2).held_out == []
    assert "joined" not in simulate("fedper", network("mlp"), rounds=2).history.rows[-1]
