"""Per-FedAvg: its outer gradients against finite differences, a round by hand, and the step before a test."""

from types import SimpleNamespace

import pytest
import torch
from torch.func import functional_call

from partwise.methods.per_fedavg import PerFedAvg
from tests.support.oracle import mean, trained_by
from tests.support.plain import Followed, batch_of, largest, moved, net_of
from tests.support.runs import network

B1, B2, B3 = (batch_of(seed) for seed in (1, 2, 3))
ME = SimpleNamespace(lr=torch.tensor(0.3, dtype=torch.float64))


def cross_entropy(net, b, me):
    return b.ce(net(b.x))


def test_first_order_is_the_gradient_of_the_second_batch_after_a_step_on_the_first():
    net = net_of(network("mlp"))
    near = net.step(net.grad(cross_entropy, B1, None), 0.3)
    assert largest(near.grad(cross_entropy, B2, None), PerFedAvg().outer(net, (B1, B2), ME)) == 0
    far = net.step(net.grad(cross_entropy, B1, None), 2.0)  # a rate of 4, in a round with half of the first rate
    grads = PerFedAvg(lr=0.6, inner_lr=4.0).outer(net, (B1, B2), ME)
    assert largest(far.grad(cross_entropy, B2, None), grads) < 1e-15


def test_hessian_free_is_the_whole_gradient_of_the_loss_after_a_step():
    """With the first batch as the third, d/dw of F(w) = L(w - alpha grad L(w; B1); B2), along three directions."""
    net, random, small = net_of(network("mlp")), torch.Generator().manual_seed(0), 1e-5
    grads = PerFedAvg(order="hessian_free").outer(net, (B1, B2, B1), ME)

    def after_a_step(net):
        return cross_entropy(net.step(net.grad(cross_entropy, B1, None), 0.3), B2, None)

    first = PerFedAvg().outer(net, (B1, B2), ME)
    for _ in range(3):
        way = {name: torch.randn(value.shape, generator=random).double() for name, value in net["*"].items()}
        slope = (after_a_step(net.step(way, -small)) - after_a_step(net.step(way, small))) / (2 * small)
        along, without = (sum(float((g[name] * way[name]).sum()) for name in way) for g in (grads, first))
        assert along == pytest.approx(float(slope), rel=1e-4) and abs(along - without) > 0.02 * abs(along)


def test_the_curvature_is_taken_on_the_third_batch_over_the_given_difference():
    net = net_of(network("mlp"))
    g = PerFedAvg().outer(net, (B1, B2), ME)
    ahead, behind = (net.step(g, way).grad(cross_entropy, B3, None) for way in (-0.5, 0.5))
    expected = {name: g[name] - 0.3 * (ahead[name] - behind[name]) for name in g}  # 2 delta is 1
    made = PerFedAvg(order="hessian_free", difference=0.5).outer(net, (B1, B2, B3), ME)
    assert largest(expected, made) < 1e-15
    assert PerFedAvg(order="hessian_free").difference == 1e-3 and PerFedAvg().order == "first"


@pytest.mark.parametrize(("order", "batches"), [("first", 2), ("hessian_free", 3)])
def test_a_client_steps_along_the_outer_gradient_of_disjoint_batches(order, batches):
    run = Followed("per_fedavg", order=order, rounds=1)
    [exchange] = trained_by(run.rounds[0])
    uploads, method = [], PerFedAvg(order=order)
    me = SimpleNamespace(lr=run.lr)
    for client in run.rounds[0].cohort:
        net = net_of(network("mlp"))
        for step in exchange.batches(client)[0]:
            assert len(step) == batches and len(set(step.flatten())) == step.size
            pieces = [B1._replace(x=run.x[i], y=run.y[i], mask=torch.ones(len(i)) > 0) for i in map(torch.tensor, step)]
            net = net.step(method.outer(net, tuple(pieces), me), run.lr)
        uploads.append(net["*"])
    assert largest(mean(uploads, run.samples[run.rounds[0].cohort]), run.copies(0)) < 1e-12


@pytest.mark.parametrize(
    ("settings", "rate", "steps"),
    [({}, 0.05 * 0.5, 1), ({"inner_lr": 0.4}, 0.2, 1), ({"inner_lr": 0.4, "adaptation": "epoch"}, 0.2, 3)],
)
def test_before_a_test_a_client_takes_inner_steps_of_plain_sgd(settings, rate, steps):
    """Client 2 has 7 samples, in mini-batches of 3."""
    plain = {"lr_decay": 0.5, "momentum": 0.6, "weight_decay": 0.1, "rounds": 2, "batch": 3}
    run = Followed("per_fedavg", **{**plain, **settings})
    request = run.rounds[-1].evaluated["method_adapted"][0]
    [table] = run.run.engine.drawing.draw(request, 2).phases
    assert table.steps == steps
    w = run.copies(-1)
    for index, real in zip(table.samples, table.real, strict=True):
        x, y = run.x[index[0, :real]], run.y[index[0, :real]]
        w = moved(w, run.gradient(lambda w, x=x, y=y: run.loss(w, x, y), w), rate)
    logits = functional_call(run.model, w, (run.x[run.test[2]],))
    assert torch.allclose(run.rounds[-1].predictions["method_adapted"][2], logits, rtol=0, atol=1e-12)
