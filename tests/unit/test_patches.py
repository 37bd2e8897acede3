"""A convolution as a product of patches is the convolution, for one client and for many, gradients too."""

import pytest
import torch
from torch import nn

from partwise.engines import patches
from partwise.engines.patches import Patches

SETTINGS = [
    {"kernel_size": 5},
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": (2, 3), "stride": (2, 1), "padding": (1, 0), "bias": False},
    {"kernel_size": 1, "stride": 2, "bias": False},
    {"kernel_size": 7, "stride": 2, "padding": 3},
    {"kernel_size": 3, "groups": 3},
    {"kernel_size": 3, "dilation": 2},
    {"kernel_size": 3, "padding": "same"},
    {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
]


def gradients(layer, clients, x):
    """Of a sum that tells places apart, with respect to the weights and the images of every client."""
    names, tensors = zip(*layer.named_parameters(), strict=True)

    def loss(x, *values):
        result = torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))
        return (result * torch.arange(result.numel(), dtype=result.dtype).cos().view(result.shape)).sum()

    weights = [torch.stack([(1 + 0.1 * client) * tensor.detach() for client in range(clients)]) for tensor in tensors]
    every = tuple(range(1 + len(weights)))
    return torch.func.vmap(torch.func.grad(loss, argnums=every))(x, *weights)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("largest", [2**18, 1])
def test_it_is_the_convolution(settings, largest, monkeypatch):
    monkeypatch.setattr(patches, "LARGEST_PATCHES", largest)
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 6, **settings).double()
    x = torch.randn(4, 2, 3, 9, 8, dtype=torch.float64)
    with torch.no_grad():
        expected = torch.stack([layer(each) for each in x])
        with Patches():
            found = torch.func.vmap(layer)(x)
    assert torch.allclose(found, expected, atol=1e-12)
    expected = gradients(layer, 4, x)
    with Patches():
        found = gradients(layer, 4, x)
    assert all(torch.allclose(one, two, atol=1e-11) for one, two in zip(found, expected, strict=True))


def test_it_calls_no_convolution():
    with torch.profiler.profile() as profile, Patches(), torch.no_grad():
        nn.Conv2d(3, 6, 5)(torch.zeros(2, 3, 9, 9))
    assert not any("convolution" in event.key for event in profile.key_averages())
