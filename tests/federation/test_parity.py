"""Law D2, without the network between: clients on nodes end where clients in simulation end."""

import pytest
import torch

from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from tests.federation.helpers import in_process
from tests.helpers import SIZES, awkward_federation
from tests.listed import LISTED

HOSTED = [[0, 3, 4], [1, 6], [2, 5, 7]]
SETTINGS = {"rounds": 3, "lr": 0.05, "batch": 8, "dtype": "float64", "model": "tabular", "eval_every": 1, "threads": 1}
OWN = {"fed3p2p": {"coordinators_a": 2, "coordinators_b": 2}, "fedbn": {"model": "cnn-digits", "batch_norm": True}}


def distance(simulation, other):
    """How far the server's copies and the clients' own tensors are apart."""
    worst = 0.0
    for name, copies in simulation.server.copies.items():
        theirs = other.server.copies[name]
        assert copies.values.shape == theirs.values.shape, name
        worst = max(worst, float((copies.values - theirs.values).abs().max()))
    return worst


@pytest.mark.parametrize("method", sorted(set(LISTED) - {"central"}))
def test_nodes_equal_the_simulation(method, tmp_path):
    federation = awkward_federation(SIZES, validated=2)
    config = make_config(method, {**SETTINGS, **OWN.get(method, {})})
    here = prepare(config, federation).run()
    there = in_process(config, federation, tmp_path, HOSTED).run()
    assert distance(here, there) < 1e-10
    nodes = there.engine.nodes.link.nodes
    own = sorted({name for plan in here.server.plans for name in plan.own})
    for node, clients in zip(nodes.values(), HOSTED, strict=True):
        mine, theirs = node.run.simulation.engine.store, here.engine.store
        for name in own:
            assert torch.allclose(mine.stacked(clients, [name])[name], theirs.stacked(clients, [name])[name], 0, 1e-10)
        for name, value in mine.remembered(clients).items():
            assert torch.allclose(value, theirs.remembered(clients)[name], 0, 1e-10), name
    for row, other in zip(here.history.rows, there.history.rows, strict=True):
        for moment in ("received", "trained", "validation", "method_adapted"):
            if moment in row:
                assert row[moment]["acc_mean"] == pytest.approx(other[moment]["acc_mean"], abs=1e-12), moment
        assert row["bytes_up"] == other["bytes_up"] and row["bytes_down"] == other["bytes_down"]
