"""Networks for series by name: their sizes, what they see of time, and that all engines end equal."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import partwise
from partwise import ConfigError, Federation
from partwise.network import models
from tests.support.runs import awkward_federation, simulate
from tests.support.states import distance

SETTINGS = {"rounds": 2, "epochs": 2, "lr": 0.05, "participation": 0.5, "momentum": 0.5, "dropout": 0.2}
NAMES = ("gru", "transformer")


def series() -> Federation:
    """Images of the usual federation, line by line."""
    federation = awkward_federation(validated=2)
    return replace(federation, source=replace(federation.source, x=federation.source.x[:, 0].float()))


@pytest.mark.parametrize("method", ["fedper", "fedbabu", "fedproto"])
@pytest.mark.parametrize("name", NAMES)
def test_vector_equals_loop(name, method):
    settings = {**SETTINGS, "model": name}
    loop, vector = (simulate(method, None, series(), engine=engine, **settings) for engine in ("loop", "vector"))
    assert vector.notes[0] == "engine: vector on cpu"
    assert distance(loop, vector) < 1e-10


@pytest.mark.parametrize("name", NAMES)
def test_workers_are_the_loop(name):
    settings = {**SETTINGS, "model": name}
    loop, workers = (simulate("fedper", None, series(), engine=engine, **settings) for engine in ("loop", "workers"))
    assert distance(loop, workers) == 0


def test_sizes():
    """A GRU layer has 3 gates of STATES x (inputs + STATES + 2 biases); an encoder layer is 12 matrices and vectors."""
    sizes = {name: models.build(name, (20, 3), 5) for name in NAMES}
    count = {name: sum(value.numel() for value in parts.tensors().values()) for name, parts in sizes.items()}
    attention, feedforward, norms = 4 * (32 * 32 + 32), (32 * 64 + 64) + (64 * 32 + 32), 2 * 2 * 32
    assert count == {
        "gru": 3 * 64 * (3 + 64 + 2) + 3 * 64 * (64 + 64 + 2) + 5 * 64 + 5,
        "transformer": (3 * 32 + 32) + 20 * 32 + 2 * (attention + feedforward + norms) + 5 * 32 + 5,
    }


def test_each_seed_draws_all_of_it_anew():
    for name in NAMES:
        one, again, other = (models.build(name, (20, 3), 5).initialise(seed).tensors() for seed in (0, 0, 1))
        assert all(torch.equal(value, again[key]) for key, value in one.items())
        # Norms begin with 1, biases of attention with 0.
        weights = [key for key in one if key.endswith("weight") and "norm" not in key]
        assert weights and not any(torch.isclose(one[key], other[key]).all() for key in weights)


def test_only_positions_tell_the_transformer_the_order_of_steps():
    parts = models.build("transformer", (20, 3), 5).initialise(0)
    net = nn.Sequential(*(parts.modules[part] for part in parts.chain)).double().eval()
    x = torch.arange(120).view(2, 20, 3).double().sin()
    assert not torch.allclose(net(x), net(x.flip(1)), atol=1e-6)
    nn.init.zeros_(parts.modules["body"].positions.weight)
    assert torch.allclose(net(x), net(x.flip(1)), atol=1e-12)


def test_the_gru_classifies_its_last_step():
    parts = models.build("gru", (20, 3), 5).initialise(0)
    body = parts.modules["body"].double()
    x = torch.arange(120).view(2, 20, 3).double().sin()
    _, last = body.gru2.gru(body.gru1.gru(x)[0])
    assert torch.allclose(body(x), last[0], atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_series_is_refused(name):
    with pytest.raises(ConfigError, match=rf"model '{name}' takes series, .* the shape \(1, 8, 8\)"):
        partwise.run("fedavg", data="made", model=name, clients=3, rounds=1)
    with pytest.raises(ConfigError, match=f"leave it out for model '{name}'"):
        models.build(name, (20, 3), 5, norm=True)
