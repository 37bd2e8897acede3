"""FedRoD: the balanced softmax by hand, whom each loss teaches, both predictions, and the head that is made."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from partwise.losses import balanced_logits
from partwise.method import ALL, LOCAL
from partwise.methods.fedrod import FedRoD
from partwise.network.parts import Sizes
from partwise.tasks import Classes
from tests.support.plain import batch_of, net_of
from tests.support.runs import CLASSES, network, simulate

SIZES = Sizes(Classes.numbered(CLASSES), (1, 8, 8), 100, 8)
COUNTS = torch.tensor([3.0, 1, 2, 4], dtype=torch.float64)
ME = SimpleNamespace(counts=COUNTS, samples=COUNTS.sum())


def built(**settings):
    method = FedRoD(**settings)
    return method, net_of(method.build(network("mlp"), SIZES))


def test_the_balanced_softmax_by_hand():
    """Two classes of 3 samples and 1, equal logits: 3/4 and 1/4; with the square of the counts 9/10 and 1/10."""
    logits = torch.zeros(1, 3, dtype=torch.float64)
    counts = torch.tensor([3.0, 1.0, 0.0], dtype=torch.float64)
    assert torch.allclose(balanced_logits(logits, counts).softmax(1), torch.tensor([[0.75, 0.25, 0]]).double())
    assert torch.allclose(balanced_logits(logits, counts, 2.0).softmax(1), torch.tensor([[0.9, 0.1, 0]]).double())
    assert torch.equal(balanced_logits(logits, counts, 0.0), logits)


def test_a_class_that_a_client_lacks_gets_no_gradient_and_padding_under_its_label_changes_nothing():
    b = batch_of(0, rows=5, real=4)._replace(y=torch.tensor([0, 1, 1, 0, 3]))
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    loss = b.ce(balanced_logits(logits, torch.tensor([2.0, 2, 1, 0]).double()))
    (slope,) = torch.autograd.grad(loss, logits)
    assert loss.isfinite() and slope.isfinite().all()
    assert not slope[:, 3].any() and not slope[4].any() and slope[:4, :3].all()


@pytest.mark.parametrize("hypernetwork", [False, True])
def test_each_head_learns_from_its_own_loss_and_the_body_from_the_generic_one(hypernetwork):
    method, net = built(hypernetwork=hypernetwork, balance_strength=0.5)
    b = batch_of(0)
    z = net.body(b.x)
    personal = method.predict(net, b.x, ME) - net.head(z)

    def generic(net, b, me):
        return F.cross_entropy(net(b.x) + 0.5 * torch.log(COUNTS), b.y)

    def both(net, b, me):
        return F.cross_entropy(net.head(z) + method.p_head(net, z, ME), b.y)

    made = net.grad(method.loss, b, ME)
    slopes, personal_slopes = net.grad(generic, b, ME), net.grad(both, b, ME)
    for name, value in made.items():
        expected = slopes[name] if name.startswith(("body", "head")) else personal_slopes[name]
        assert expected.any() and torch.allclose(value, expected, rtol=0, atol=1e-14), name
    total = generic(net, b, ME) + F.cross_entropy(net.head(z) + personal, b.y)
    assert torch.allclose(method.loss(net, b, ME), total) and FedRoD().balance_strength == 1.0


def test_the_head_is_made_from_the_shares_of_the_classes():
    """H(3/10, 1/10, 2/10, 4/10) by hand: weights first, then the bias."""
    method, net = built(hypernetwork=True)
    x, maker = batch_of(0).x, net["maker"]
    assert maker["0.weight"].shape == (16, CLASSES)
    hidden = (maker["0.weight"] @ (COUNTS / 10) + maker["0.bias"]).clamp(min=0)
    made = maker["2.weight"] @ hidden + maker["2.bias"]
    z = net.body(x)
    logits = z @ (net["head"]["weight"] + made[: 4 * 100].view(4, 100)).T + net["head"]["bias"] + made[400:]
    assert torch.allclose(method.predict(net, x, ME), logits, rtol=0, atol=1e-12)
    nobody = SimpleNamespace(counts=torch.zeros(CLASSES).double(), samples=torch.tensor(0.0))
    assert method.predict(net, x, nobody).isfinite().all()


def test_what_is_shared_and_what_is_tested():
    [stage] = FedRoD().stages()
    [made] = FedRoD(hypernetwork=True).stages()
    assert stage.share == {"*": ALL, "p_head": LOCAL} and made.share == {"*": ALL}
    method, net = built()
    x = batch_of(0).x
    assert torch.equal(method.predict(net, x, ME), net.head(net.body(x)) + net.p_head(net.body(x)))
    assert torch.equal(method.predict_global(net, x), net.head(net.body(x)))
    run = simulate("fedrod", network("cnn+bn"), rounds=2)  # client 1 has one class, client 0 one sample
    assert not run.server.events and math.isfinite(run.history.rows[-1]["train_loss"])
