"""FedFCD: its losses by hand, with every option."""

import math
from types import SimpleNamespace

import torch
from torch.nn.functional import cross_entropy

from partwise.methods.fedfcd import FedFCD
from tests.support.plain import batch_of, net_of
from tests.support.runs import CLASSES, network

SIZE = 100  # of a feature


def handed():
    """A client's network, whose global classifier is another draw, a batch, and class means of which one is missing."""
    tensors = network("mlp", seed=1).tensors()
    g_head = {f"g_{name}": value.detach() for name, value in tensors.items() if name.startswith("head")}
    net, b = net_of(FedFCD().build(network("mlp"), None), g_head), batch_of(0)
    means = torch.arange(CLASSES * SIZE, dtype=torch.float64).reshape(CLASSES, SIZE) / 100
    means[int(b.y[0])] = math.nan
    return net, b, SimpleNamespace(got=SimpleNamespace(features=means))


def test_the_extractor_learns_from_a_decision_and_from_the_distance_to_the_means():
    """Eqs. 6 and 9; samples of a class without a mean count in the batch, and add nothing."""
    net, b, me = handed()
    z = net.body(b.x)
    known = [row for row in range(6) if b.y[row] != b.y[0]]
    away = sum(float((z[row] - me.got.features[b.y[row]]).square().sum()) for row in known) / 6
    fused, own = cross_entropy(net.head(z) + net.g_head(z), b.y), cross_entropy(net.head(z), b.y)
    for settings, value in (
        ({"align_weight": 3.0}, fused + 3 * away / SIZE),
        ({"align_weight": 3.0, "align_reduction": "sum_dim"}, fused + 3 * away),
        ({"align_weight": 3.0, "extractor_loss_head": "local"}, own + 3 * away / SIZE),
        ({"align": False}, fused),
        ({"align": False, "fusion": False}, own),
    ):
        assert torch.allclose(FedFCD(**settings).aligned(net, b, me), value, rtol=1e-12), settings
    assert 0 < len(known) < 6 and abs(float(fused - own)) > 1e-3


def test_the_classifier_learns_from_the_fused_decision_alone():
    """Eq. 10: z is given; the prediction is the same decision."""
    net, b, me = handed()
    z = net.body(b.x)
    slopes = net.grad(FedFCD().fused, b, me)
    assert torch.allclose(FedFCD().fused(net, b, me), cross_entropy(net.head(z) + net.g_head(z), b.y), rtol=1e-12)
    assert {name.split(".")[0] for name, value in slopes.items() if value.any()} == {"head", "g_head"}
    assert torch.equal(FedFCD().predict(net, b.x, me), net.head(z) + net.g_head(z))
    assert torch.equal(FedFCD(fusion=False).predict(net, b.x, me), net.head(z))
