"""The papers' losses on a mini-batch that a reader can check: against double loops, and by where gradients go."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from partwise.losses import class_means, supervised_contrast, train_on_class_means
from partwise.methods.dualfed import DualFed
from partwise.methods.fed3p2p import Fed3p2p
from partwise.methods.fedfcd import FedFCD
from partwise.methods.fedtc import FedTC
from partwise.network.view import Batch, ClassRows
from partwise.tasks import Classes
from tests.support.runs import network, simulate

Y = torch.tensor([0, 0, 1, 2, 1, 0])


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def batch(x, y=Y, real=None):
    mask = torch.arange(len(y)) < (len(y) if real is None else real)
    return Batch(x, y, mask, Classes.numbered(3))


# ------------------------------------------------------------------------------------------------ DualFed


def naive_contrast(u, y, temperature):
    """Khosla et al. 2020, Eq. 2, as it is written."""
    u = [row / row.norm() for row in u]
    total = 0.0
    for i in range(len(u)):
        positives = [p for p in range(len(u)) if p != i and y[p] == y[i]]
        below = math.log(sum(math.exp(float(u[i] @ u[a]) / temperature) for a in range(len(u)) if a != i))
        total -= sum(float(u[i] @ u[p]) / temperature - below for p in positives) / max(1, len(positives))
    return total / len(u)  # the class of one sample adds 0 and counts


@pytest.mark.parametrize("temperature", [0.05, 0.2, 1.0])
def test_the_contrastive_loss_is_its_double_sum(temperature):
    u = draw(0, 6, 4)
    loss = supervised_contrast(u, batch(u), temperature)
    assert float(loss) == pytest.approx(naive_contrast(u, Y, temperature), rel=2e-6)  # 1e-6 beside a count of 1 or 2
    assert float(supervised_contrast(7 * u, batch(u), temperature)) == pytest.approx(float(loss), abs=1e-12)
    assert torch.equal(supervised_contrast(u, batch(u, real=4), temperature), padded(u, temperature))


def padded(u, temperature):
    other = u.clone()
    other[4:] = draw(9, 2, 4)
    return supervised_contrast(other, batch(other, real=4), temperature)


def test_the_contrastive_loss_by_hand():
    u = torch.eye(2, dtype=torch.float64)[[0, 0, 1, 1]]
    loss = supervised_contrast(u, batch(u, torch.tensor([0, 0, 1, 1])), 0.5)
    assert float(loss) == pytest.approx(-(2 - math.log(math.exp(2) + 2)), rel=2e-6)  # of 1 and two 0, over 0.5


def parts(**given):
    """A client's network or what it received: linear parts without bias."""
    return SimpleNamespace(**{name: (lambda x, w=w: x @ w) for name, w in given.items()})


def weights(**sizes):
    return {name: draw(n, *size).requires_grad_() for n, (name, size) in enumerate(sizes.items())}


def gradients(loss, tensors):
    return dict(zip(tensors, torch.autograd.grad(loss, tensors.values(), allow_unused=True), strict=True))


def test_dualfeds_global_classifier_teaches_the_encoder_only_when_all_train_at_once():
    w = weights(body=(5, 4), projector=(4, 4), p_head=(4, 3), head=(4, 3))
    b, net = batch(draw(5, 6, 5)), parts(**w)
    second = gradients(DualFed().generic(net, b, None), w)
    assert second["head"] is not None and second["body"] is second["projector"] is second["p_head"] is None
    main, all_at_once = DualFed().main(net, b, None), DualFed(strategy="simultaneous").together(net, b, None)
    assert torch.allclose(all_at_once, main + b.ce(net.head(net.body(b.x))))
    assert torch.allclose(
        gradients(all_at_once, w)["body"],
        gradients(main, w)["body"] + gradients(b.ce(net.head(net.body(b.x))), w)["body"],
    )


@pytest.mark.parametrize("position", ["dualfed", "p", "g"])
def test_dualfeds_prediction_is_the_sum_of_both_branches(position):
    w = weights(body=(5, 4), projector=(4, 4), p_head=(4, 3), head=(4, 3))
    net, x = parts(**w), draw(5, 6, 5)
    z = net.body(x)
    u = net.projector(z)
    personal, generic = net.p_head(u), net.head(z if position == "dualfed" else u)
    predicted = {how: DualFed(classifier_position=position, ensemble=how).predict(net, x, None) for how in ENSEMBLES}
    assert torch.equal(predicted["logits"], personal + generic)
    assert torch.equal(predicted["personal"], personal) and torch.equal(predicted["global"], generic)
    together = (personal.softmax(1) + generic.softmax(1)) / 2
    assert torch.allclose(predicted["probs"].softmax(1), together)


ENSEMBLES = ["logits", "probs", "personal", "global"]


# -------------------------------------------------------------------------------------------------- FedTC


@pytest.mark.parametrize("guide", ["global", "local"])
def test_fedtc_the_received_classifier_teaches_the_extractor_and_its_own_nobody_but_itself(guide):
    w, received = weights(body=(5, 4), head=(4, 3)), draw(7, 4, 3)
    net, me, b = parts(**w), SimpleNamespace(got=parts(head=received)), batch(draw(5, 6, 5))
    net.fixed = lambda name: parts(head=w["head"].detach())
    found = gradients(FedTC(guide=guide).two_classifiers(net, b, me), w)
    teacher = received if guide == "global" else w["head"]
    z = b.x @ w["body"]
    assert torch.allclose(found["body"], gradients(F.cross_entropy(z @ teacher.detach(), Y), w)["body"])  # Eq. 6
    assert torch.allclose(found["head"], gradients(F.cross_entropy(z.detach() @ w["head"], Y), w)["head"])  # Eq. 5


# ------------------------------------------------------------------------------------------------- FedFCD


@pytest.mark.parametrize("reduction", ["mean_dim", "sum_dim"])
@pytest.mark.parametrize("head", ["fused", "local"])
def test_fedfcds_losses_by_hand(reduction, head):
    w, g, b = weights(body=(5, 4), head=(4, 3)), draw(8, 4, 3), batch(draw(5, 6, 5))
    means = draw(6, 3, 4)
    means[2] = math.nan  # nobody has class 2
    net, me = parts(**w, g_head=g), SimpleNamespace(got=SimpleNamespace(features=means))
    z = net.body(b.x)
    fused, local = (F.cross_entropy(logits, Y) for logits in (z @ w["head"] + z @ g, z @ w["head"]))
    distance = (z - means[Y])[Y < 2].square().sum() / 6 / (4 if reduction == "mean_dim" else 1)  # Eq. 6
    method = FedFCD(align_weight=3.0, align_reduction=reduction, extractor_loss_head=head)
    assert torch.allclose(method.aligned(net, b, me), (fused if head == "fused" else local) + 3 * distance)  # Eq. 9
    assert torch.allclose(method.fused(net, b, me), fused)  # Eq. 10
    assert gradients(method.fused(net, b, me), w)["body"] is None
    assert torch.equal(method.predict(net, b.x, me), z @ w["head"] + z @ g)  # Eq. 7, 8
    alone = FedFCD(fusion=False, align=False)
    assert torch.allclose(alone.aligned(net, b, me), local) and torch.equal(alone.predict(net, b.x, me), z @ w["head"])


def test_the_servers_classifier_takes_a_step_for_every_class_mean():
    """Eq. 4, with the softmax's gradient written out: (p - e_y) x^T."""
    server = simulate("fedfcd", network("mlp"), rounds=1).server
    rows = ClassRows(draw(1, 2, 4, 100), torch.tensor([[2.0, 0, 0, 1], [0, 3, 0, 0]]).double())
    weight, bias = (server["g_head"][name].clone() for name in ("weight", "bias"))
    pairs = [(rows.sums[0, 0] / 2, 0), (rows.sums[0, 3], 3), (rows.sums[1, 1] / 3, 1)]

    order = SimpleNamespace(permutation=lambda number: np.array([2, 0, 1]))
    train_on_class_means(server, "g_head", rows, 0.1, 1, 2, order)
    for place in 2 * [2, 0, 1]:
        x, y = pairs[place]
        error = (weight @ x + bias).softmax(0) - F.one_hot(torch.tensor(y), 4)
        weight, bias = weight - 0.1 * error[:, None] * x, bias - 0.1 * error
    assert torch.allclose(server["g_head"]["weight"], weight, atol=1e-12)
    assert torch.allclose(server["g_head"]["bias"], bias, atol=1e-12)


def test_class_means_by_hand():
    rows = ClassRows(torch.tensor([[[2.0], [0], [0]], [[4.0], [3], [0]]]), torch.tensor([[1.0, 0, 0], [2, 1, 0]]))
    assert class_means(rows, torch.tensor([[9.0], [9], [9]])).tolist() == [[2], [3], [9]]  # nobody has the third
    assert class_means(rows)[2].isnan().all()


# ------------------------------------------------------------------------------------------------ Fed3+2p


def test_fed3p2p_in_a_single_phase_the_personal_head_teaches_the_features_only_on_request():
    w, b = weights(body=(5, 4), filter=(4, 4), head=(4, 3), p_head=(4, 3)), batch(draw(5, 6, 5))
    net = parts(**w)
    alone = gradients(b.ce(net.head(net.filter(net.body(b.x)))), w)
    detached, joined = (
        gradients(Fed3p2p(two_phase=False, detach_p_head=d).both(net, b, None), w) for d in (True, False)
    )
    assert all(torch.equal(detached[name], alone[name]) for name in ("body", "filter", "head"))
    assert not torch.allclose(joined["body"], alone["body"]) and torch.equal(joined["p_head"], detached["p_head"])


def test_fed3p2ps_rounds_and_rates():
    def rounds(**settings):
        return [stage.rounds for stage in Fed3p2p(**settings).stages()]

    assert rounds(rounds=100) == [50, 50] and rounds(rounds=7) == [4, 3]  # ceil(7 / 2), and the rest
    assert rounds(rounds=100, rounds_1=7) == [7, 93] and rounds(rounds=100, rounds_2=7) == [93, 7]
    assert rounds(rounds_1=7, rounds_2=5) == [7, 5] and Fed3p2p(rounds_1=7, rounds_2=5).rounds == 12
    assert rounds(rounds=100, two_phase=False) == [100]
    assert [stage.restart_lr for stage in Fed3p2p().stages()] == [False, True]
    assert [stage.restart_lr for stage in Fed3p2p(reset_lr=False).stages()] == [False, False]
