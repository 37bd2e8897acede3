"""Masked batch-norm equals torch's on the real rows; hashed dropout is dropout, and depends on its key alone."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import vmap

from partwise.errors import ConfigError
from partwise.network.keyed import scramble
from partwise.network.layers import HashedDropout, LayerScope, MaskedBatchNorm
from partwise.network.parts import Parts
from partwise.network.view import Net
from partwise.rounds.batches import Recipe, shuffled
from tests.support.layers import close, rows

CHANNELS = 3
NORMS = {
    "1d": (nn.BatchNorm1d, (CHANNELS,)),
    "1d of sequences": (nn.BatchNorm1d, (CHANNELS, 5)),
    "2d": (nn.BatchNorm2d, (CHANNELS, 4, 5)),
    "3d": (nn.BatchNorm3d, (CHANNELS, 2, 3, 2)),
}
norms = pytest.mark.parametrize(("kind", "shape"), NORMS.values(), ids=NORMS)


def alone(layer: nn.Module) -> tuple[Parts, LayerScope]:
    """A network that is one layer, called `layer`, as the engines run it."""
    scope = LayerScope()
    return Parts(nn.Sequential(OrderedDict(layer=layer))).prepared(scope), scope


def norm_layer(kind: type, seed: int = 0, **options) -> nn.modules.batchnorm._BatchNorm:
    """A batch-norm layer of torch in float64 whose every value has moved away from its start."""
    random = torch.Generator().manual_seed(seed)
    layer = kind(CHANNELS, **options).double()
    with torch.no_grad():
        for tensor in [*layer.parameters(), layer.running_mean]:
            tensor.copy_(torch.randn(CHANNELS, generator=random, dtype=torch.float64))
        layer.running_var.copy_(torch.rand(CHANNELS, generator=random, dtype=torch.float64) + 0.5)
    return layer


def leaves(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors as leaves of a graph, parameters with gradients."""
    return {name: value.detach().clone().requires_grad_("running" not in name) for name, value in tensors.items()}


# ------------------------------------------------------------------------------------------------- batch-norm


@norms
@pytest.mark.parametrize("options", [{}, {"momentum": 0.3, "eps": 1e-2}, {"affine": False}], ids=str)
@pytest.mark.parametrize("padding", [0, 1, 4])
def test_batch_norm_in_training_is_torchs_on_the_real_rows(kind, shape, options, padding):
    """Outputs, gradients, and the running values after each of three mini-batches, whatever stands in padding."""
    torchs = norm_layer(kind, **options)
    parts, scope = alone(norm_layer(kind, **options))
    tensors = leaves(parts.tensors())
    for step, real in enumerate((6, 2, 5)):
        x, weight = rows(real + padding, shape, seed=step), rows(real, shape, seed=10 + step)
        mine, theirs = x.clone().requires_grad_(), x[:real].clone().requires_grad_()
        torchs.zero_grad()
        for value in tensors.values():
            value.grad = None
        net = Net(parts, scope, tensors, training=True, mask=torch.arange(real + padding) < real)
        output, expected = net(mine), torchs(theirs)
        (output[:real] * weight).sum().backward()
        (expected * weight).sum().backward()
        assert close(output[:real], expected)
        assert close(mine.grad[:real], theirs.grad) and not mine.grad[real:].any()
        for name, parameter in torchs.named_parameters():
            assert close(tensors[f"layer.{name}"].grad, parameter.grad)
        for name in ("running_mean", "running_var"):
            assert close(net.tensors[f"layer.{name}"], getattr(torchs, name))
            assert not torch.equal(net.tensors[f"layer.{name}"], tensors[f"layer.{name}"])
        tensors.update({name: net.tensors[name] for name in parts.buffers})


@norms
@pytest.mark.parametrize("options", [{}, {"eps": 1e-2}, {"affine": False}], ids=str)
def test_batch_norm_in_evaluation_is_torchs(kind, shape, options):
    torchs = norm_layer(kind, **options).eval()
    parts, scope = alone(norm_layer(kind, **options))
    tensors = leaves(parts.tensors())
    net = Net(parts, scope, tensors, mask=torch.arange(6) < 4)
    x = rows(6, shape, seed=1)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    output, expected = net(mine), torchs(theirs)
    output.square().sum().backward()
    expected.square().sum().backward()
    assert close(output, expected) and close(mine.grad, theirs.grad, 1e-10)
    assert all(net.tensors[name] is tensors[name] for name in parts.buffers)


@norms
def test_batch_norm_under_vmap_is_that_of_each_client(kind, shape):
    parts, scope = alone(norm_layer(kind))
    clients = 4
    tensors = {
        name: torch.stack([value + k for k in range(clients)]) for name, value in leaves(parts.tensors()).items()
    }
    x = torch.stack([rows(7, shape, seed=k) for k in range(clients)])
    mask = torch.arange(7) < torch.tensor([2, 7, 4, 5])[:, None]

    def forward(tensors: dict[str, Tensor], x: Tensor, mask: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        net = Net(parts, scope, tensors, training=True, mask=mask)
        return net(x), net.running

    output, running = vmap(forward)(tensors, x, mask)
    for k in range(clients):
        expected, after = forward({name: value[k] for name, value in tensors.items()}, x[k], mask[k])
        assert close(output[k], expected)
        assert all(close(running[name][k], after[name]) for name in parts.buffers)
    assert set(running) == {"layer.running_mean", "layer.running_var"}


@settings(max_examples=30, deadline=None)
@given(real=st.integers(2, 6), padding=st.integers(0, 4), seed=st.integers(0, 2**31), filler=st.floats(-1e3, 1e3))
def test_what_stands_in_padded_rows_changes_no_bit(real, padding, seed, filler):
    parts, scope = alone(norm_layer(nn.BatchNorm2d))
    x = rows(real + padding, (CHANNELS, 2, 2), seed)
    other = x.clone()
    other[real:] = filler
    results = []
    for values in (x, other):
        net = Net(parts, scope, parts.tensors(), training=True, mask=torch.arange(real + padding) < real)
        results.append([net(values)[:real], *net.running.values()])
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def test_a_received_network_keeps_its_running_values():
    parts, scope = alone(norm_layer(nn.BatchNorm1d))
    tensors = parts.tensors()
    net = Net(parts, scope, tensors, training=True, mask=torch.ones(5, dtype=torch.bool), record=False)
    net(rows(5, (CHANNELS,), seed=0))
    assert all(net.tensors[name] is tensors[name] for name in tensors)


def test_single_and_half_precision_keep_running_values_in_the_precision_they_have():
    parts, scope = alone(nn.BatchNorm1d(CHANNELS))
    mask = torch.ones(8, dtype=torch.bool)
    net = Net(parts, scope, parts.tensors(), training=True, mask=mask, compute=torch.bfloat16)
    output = net(rows(8, (CHANNELS,), seed=0).float())
    assert output.dtype is torch.bfloat16
    assert {value.dtype for value in net.running.values()} == {torch.float32}


@pytest.mark.parametrize("options", [{"momentum": None}, {"track_running_stats": False}], ids=str)
def test_batch_norm_without_momentum_or_running_values_is_refused(options):
    with pytest.raises(ConfigError, match="batch-norm needs a momentum and running values"):
        alone(nn.BatchNorm1d(CHANNELS, **options))


def test_names_of_tensors_stay_what_they_were_wherever_the_layer_stands():
    deep = nn.Sequential(OrderedDict(first=nn.Linear(2, 3), inner=nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5))))
    before = Parts(nn.Sequential(OrderedDict(body=deep, norm=nn.BatchNorm1d(3), head=nn.Linear(3, 2))))
    after = before.prepared(LayerScope())
    assert list(after.tensors()) == list(before.tensors())
    assert after.buffers == before.buffers and after.select("@norm") == before.select("@norm")
    assert all(torch.equal(after.tensors()[name], value) for name, value in before.tensors().items())
    inner = after.modules["body"].get_submodule("inner")
    assert isinstance(inner[0], MaskedBatchNorm) and isinstance(inner[1], HashedDropout)
    assert isinstance(after.modules["norm"], MaskedBatchNorm)
    assert inner[0].name == "body.inner.0" and after.modules["norm"].name == "norm"
    assert isinstance(before.modules["norm"], nn.BatchNorm1d)


# ---------------------------------------------------------------------------------------------------- dropout


def dropped(
    x: Tensor, key: int | Tensor, rate: float = 0.5, layer: str = "drop", kind: type = nn.Dropout, training: bool = True
) -> Tensor:
    """What dropout makes of `x`: a network of two dropout layers, `drop` and `other`."""
    scope = LayerScope()
    parts = Parts(nn.Sequential(OrderedDict(drop=kind(rate), other=kind(rate)))).prepared(scope)
    return getattr(Net(parts, scope, {}, training=training, key=torch.as_tensor(key)), layer)(x)


def independent(one: Tensor, two: Tensor) -> bool:
    """Two masks of rate one half agree in half of their places, as far as chance goes (6 standard deviations)."""
    agree = float((one == two).double().mean())
    return abs(agree - 0.5) < 6 * 0.5 / one.numel() ** 0.5


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("key", [0, 12345, 0xFFFFFFFF])
def test_dropout_keeps_and_scales_as_it_should(rate, key):
    x = rows(200, (500,), seed=1)
    output = dropped(x, key, rate)
    kept = output != 0
    assert abs(float(kept.double().mean()) - (1 - rate)) < 5 * (rate * (1 - rate) / x.numel()) ** 0.5
    assert close(output[kept], x[kept] / (1 - rate))
    for dim in (0, 1):  # no row and no column is treated apart
        share, number = kept.double().mean(dim), x.shape[dim]
        assert float((share - (1 - rate)).abs().max()) < 6 * (rate * (1 - rate) / number) ** 0.5


def test_neighbouring_places_are_dropped_independently():
    kept = dropped(torch.ones(300, 400), 7) != 0
    for shift in (1, 2, 400 // 2):
        assert independent(kept[:, shift:], kept[:, :-shift])
        assert independent(kept[shift:], kept[:-shift])


@settings(max_examples=25, deadline=None)
@given(key=st.integers(0, 2**32 - 1))
def test_another_key_gives_an_independent_mask_and_the_same_key_the_same(key):
    x = torch.ones(100, 100)
    masks = [dropped(x, number) for number in (key, key + 1, key ^ 0x80000000)]
    assert torch.equal(masks[0], dropped(x, key))
    assert independent(masks[0], masks[1]) and independent(masks[0], masks[2])
    first, second = masks[0].flatten(), masks[1].flatten()  # nor is the one the other, moved by a place
    assert independent(first[1:], second[:-1]) and independent(first[:-1], second[1:])


def test_every_layer_of_a_network_has_a_mask_of_its_own():
    x = torch.ones(100, 100)
    one, two = dropped(x, 9, layer="drop").flatten(), dropped(x, 9, layer="other").flatten()
    assert independent(one, two) and independent(one[1:], two[:-1]) and independent(one[:-1], two[1:])


def test_every_step_client_round_phase_and_seed_has_a_mask_of_its_own():
    x = torch.ones(60, 60)
    recipe = Recipe(size=4, epochs=2)
    tables = [
        shuffled(np.arange(9), recipe, seed, client, round, "train", phase)
        for seed, client, round, phase in ((0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1))
    ]
    masks = [dropped(x, int(key)) for table in tables for key in table.key]
    assert len(masks) == 5 * 6
    for one in range(len(masks)):
        for two in range(one):
            assert independent(masks[one], masks[two])


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout2d])
def test_a_padded_mini_batch_has_the_same_mask_on_its_real_rows(kind):
    x = rows(9, (8, 3, 3), seed=2)
    assert torch.equal(dropped(x, 5, kind=kind)[:5], dropped(x[:5], 5, kind=kind))
    assert not torch.equal(dropped(x, 5, kind=kind)[4:], dropped(x[4:], 5, kind=kind))


@pytest.mark.parametrize(("kind", "shape"), [(nn.Dropout1d, (6,)), (nn.Dropout2d, (4, 5)), (nn.Dropout3d, (2, 3, 2))])
def test_dropout_of_channels_drops_whole_channels(kind, shape):
    output = dropped(torch.ones(100, 50, *shape), 3, rate=0.25, kind=kind)
    channels = output.flatten(2)
    assert torch.equal(channels, channels[:, :, :1].expand_as(channels))
    kept = channels[:, :, 0] != 0
    assert abs(float(kept.double().mean()) - 0.75) < 5 * (0.25 * 0.75 / kept.numel()) ** 0.5
    assert close(channels[kept], torch.full_like(channels[kept], 1 / 0.75), 1e-6)


def test_dropout_is_off_in_evaluation_and_at_rate_0():
    x = rows(5, (7,), seed=0)
    assert dropped(x, 1, training=False) is x
    assert dropped(x, 1, rate=0.0) is x


def test_dropout_under_vmap_is_that_of_each_client():
    x = torch.stack([rows(6, (4, 5), seed=k) for k in range(3)])
    keys = torch.tensor([3, 2**31, 77])
    for kind in (nn.Dropout, nn.Dropout1d):
        together = vmap(lambda x, key, kind=kind: dropped(x, key, kind=kind))(x, keys)
        assert torch.equal(together, torch.stack([dropped(x[k], keys[k], kind=kind) for k in range(3)]))


def test_a_dropped_place_gets_no_gradient_and_a_kept_one_a_scaled_one():
    x = rows(20, (10,), seed=0).requires_grad_()
    output = dropped(x, 4, rate=0.2)
    output.sum().backward()
    assert close(x.grad, (output.detach() != 0) / 0.8)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=50, unique=True))
def test_the_hash_maps_32_bits_onto_32_bits_without_collisions(numbers):
    hashed = scramble(torch.tensor(numbers)).tolist()
    assert len(set(hashed)) == len(numbers)
    assert all(0 <= value < 2**32 for value in hashed)


# ------------------------------------------------------------------------------------------------------ scope


def test_a_scope_holds_on_to_nothing_of_a_finished_call():
    parts, scope = alone(norm_layer(nn.BatchNorm1d))
    net = Net(parts, scope, parts.tensors(), training=True, mask=torch.ones(4, dtype=torch.bool), key=torch.tensor(1))
    net(rows(4, (CHANNELS,), seed=0))
    assert scope == LayerScope()
