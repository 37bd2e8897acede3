"""Methods written with nothing but docs/writing-a-method.md and docs/api.md: what they must coincide with."""

from pathlib import Path

import pytest
import torch

from tests.helpers import network, simulate
from tests.laws.test_server_steps import SETTINGS, locally_trained
from tests.parity.test_engines import assert_engines_agree

FILES = {path.stem: str(path) for path in (Path(__file__).parents[1] / "methods").glob("*.py")}


@pytest.mark.parametrize("name", [name for name in FILES if name != "clustered"])  # which has a test of its own
def test_vector_equals_loop(name):
    momentum = {"momentum": 0.0} if name == "scaffold" else {}
    assert_engines_agree(FILES[name], "mlp", **momentum)


def test_fedavgm_is_fedavg_with_the_servers_momentum():
    own, option = simulate(FILES["fedavgm"], network("mlp")), simulate("fedavg", network("mlp"), server_momentum=0.9)
    for name, copies in option.server.copies.items():
        assert torch.equal(own.server.copies[name].values, copies.values)


@pytest.mark.parametrize(("name", "copy"), [("ditto", "mine."), ("fedamp", "")])
def test_without_the_pull_everybody_is_alone(name, copy):
    free, alone = (
        simulate(FILES[name], network("cnn"), **SETTINGS, pull=0.0),
        simulate("local", network("cnn"), **SETTINGS),
    )
    for client in range(8):
        mine = free.engine.store.own(client, free.server.plan.own)
        for key, value in alone.engine.store.own(client, alone.server.plan.own).items():
            assert torch.allclose(mine[copy + key], value, rtol=0, atol=1e-14), key


def test_clouds_are_made_of_those_who_took_part_and_lie_among_them():
    run = simulate(FILES["fedamp"], network("mlp"), rounds=1, participation=0.5)
    [(_, updates)] = run.server.asked
    for name, sent in updates.parts.items():
        clouds, start = run.server.copies[name].values, network("mlp").tensors()[name]
        for client in range(8):
            if client not in updates.clients:
                assert torch.equal(clouds[client], start)
        inside = clouds[updates.clients]
        assert (inside >= sent.amin(0) - 1e-12).all() and (inside <= sent.amax(0) + 1e-12).all()


def test_scaffold_is_that_of_a_plain_loop():
    """Three rounds with half of the clients, in lists of tensors."""
    simulation = simulate(FILES["scaffold"], network("mlp"), **{**SETTINGS, "momentum": 0.0})
    parts = network("mlp")
    model = torch.nn.Sequential(*(parts.modules[name] for name in parts.chain))
    w = [value.detach().clone() for value in model.parameters()]
    c, own = [torch.zeros_like(value) for value in w], [[torch.zeros_like(value) for value in w] for _ in range(8)]
    for number, row in enumerate(simulation.history.rows):
        cohort = row["participants"]
        weights = simulation.server.samples[cohort].double()
        mean, change = [torch.zeros_like(value) for value in w], [torch.zeros_like(value) for value in w]
        for client, share in zip(cohort, weights / weights.sum(), strict=True):
            for value, now in zip(model.parameters(), w, strict=True):
                value.data.copy_(now)
            drift = [a - b for a, b in zip(c, own[client], strict=True)]
            steps = locally_trained(simulation, model, client, number, drift)
            for at, value in enumerate(model.parameters()):
                mine = own[client][at] - c[at] + (w[at] - value.detach()) / (steps * 0.05)
                change[at] += mine - own[client][at]
                mean[at] += share * value.detach()
                own[client][at] = mine
        w, c = mean, [a + b / 8 for a, b in zip(c, change, strict=True)]
    names = [f"{part}.{name}" for part in parts.chain for name, _ in parts.modules[part].named_parameters()]
    for at, name in enumerate(names):
        assert torch.allclose(simulation.server.copies[name].values[0], w[at], rtol=0, atol=1e-12), name
        assert torch.allclose(simulation.server.memory["c"][name], c[at], rtol=0, atol=1e-12), name
