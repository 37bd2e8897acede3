"""Networks for series by name: their sizes, what they see of time, and that all engines end equal."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import partwise
from partwise import ConfigError, Federation
from partwise.network import models
from partwise.tasks import Places
from tests.support.runs import awkward_federation, simulate
from tests.support.states import distance

SETTINGS = {"rounds": 2, "epochs": 2, "lr": 0.05, "participation": 0.5, "momentum": 0.5, "dropout": 0.2}
NAMES = ("gru", "transformer")


def series() -> Federation:
    """Images of the usual federation, line by line."""
    federation = awkward_federation(validated=2)
    return replace(federation, source=replace(federation.source, x=federation.source.x[:, 0].float()))


def shorter(at_places: bool) -> Federation:
    """The same with 1 to 8 lines; where each has a class, it is that of the next one, and the last has none."""
    federation = series()
    source = federation.source
    there = torch.arange(8) <= torch.arange(len(source.y))[:, None] % 8
    x = torch.where(there[..., None], source.x, torch.nan)
    changes = {"x": x}
    if at_places:
        brightness = (x.mean(2).nan_to_num() // 64).long().roll(-1, 1)
        y = torch.where(there & there.roll(-1, 1) & (torch.arange(8) < 7), brightness, -1)
        changes |= {"y": y, "own_task": Places(tuple("abcd")), "model": ""}
    return replace(federation, source=replace(source, **changes))


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


@pytest.mark.parametrize("at_places", [False, True], ids=["classes", "places"])
@pytest.mark.parametrize("name", NAMES)
def test_all_engines_end_equal_on_series_of_unequal_length(name, at_places):
    loop, vector, workers = (
        simulate("fedper", None, shorter(at_places), engine=engine, **{**SETTINGS, "model": name})
        for engine in ("loop", "vector", "workers")
    )
    assert distance(loop, vector) < 1e-10
    assert distance(loop, workers) == 0
    assert all(copies.values.isfinite().all() for copies in loop.server.copies.values())


@pytest.mark.parametrize("at_places", [False, True], ids=["classes", "places"])
@pytest.mark.parametrize("name", NAMES)
def test_what_follows_a_series_changes_nothing(name, at_places):
    """A series that ends with NaN gives what it gives alone, with gradients that are finite."""
    parts = models.build(name, (20, 3), 5, each_step=at_places).initialise(0)
    net = nn.Sequential(*(parts.modules[part] for part in parts.chain)).double()
    x = torch.arange(120).view(2, 20, 3).double().sin()
    x[0, 12:] = torch.nan
    padded = net(x)
    padded[0][..., 0].sum().backward()
    assert all(value.grad.isfinite().all() for value in net.parameters())
    if name == "transformer":
        positions = parts.modules["body"].positions
        positions.weight = nn.Parameter(positions.weight[:12].detach())
    alone = net(x[:1, :12])[0]
    assert torch.allclose(padded[0][:, :12] if at_places else padded[0], alone, atol=1e-12)


def test_other_networks_are_refused_for_series_of_unequal_length():
    line = "^series of unequal length end with NaN, and so does what the network makes of one; choose model gru or"
    with pytest.raises(ConfigError, match=line):
        simulate("fedavg", None, shorter(at_places=False), model="mlp-100")


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
