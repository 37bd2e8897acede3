"""APFL: at 0 it is FedAvg, at 1 it is Local, and between them the share of the own network follows its gradient."""

import pytest
import torch

from partwise.methods.apfl import APFL
from partwise.runs.observers import Observer
from tests.support.plain import batch_of, net_of
from tests.support.runs import awkward_federation, network, simulate

SETTINGS = {"rounds": 3, "participation": 0.5, "momentum": 0.5, "weight_decay": 1e-3, "epochs": 2}


class Predictions(Observer):
    """What clients predict after every round."""

    def __init__(self):
        self.rounds = []

    def round(self, seen):
        self.rounds.append({moment: dict(seen.predictions[moment]) for moment in ("received", "trained")})


def predicted(method, net="mlp", **settings):
    seen = Predictions()
    run = simulate(method, network(net), observers=[seen], **{**SETTINGS, **settings})
    return run, seen.rounds


def same(one, two):
    return all(
        torch.allclose(logits, second[moment][client], rtol=0, atol=1e-12)
        for first, second in zip(one, two, strict=True)
        for moment in first
        for client, logits in first[moment].items()
    )


def test_the_mixture_teaches_the_own_network_alone_and_by_its_share():
    """d CE(alpha v + (1 - alpha) w) / dv = alpha times the slope of CE at the mixture; here v = w."""
    method = APFL(mixing_weight=0.25)
    net, b = net_of(method.build(network("mlp"), None)), batch_of(0)
    plain = net.grad(lambda net, b, me: b.ce(net(b.x)), b, None)
    slopes = net.grad(method.through_mixture, b, None)
    for name in net["body head"]:
        assert not slopes[name].any() and torch.allclose(slopes[f"mine.{name}"], plain[name] / 4, rtol=0, atol=1e-15)
    assert not net.parts.tensors()["mixing.alpha"].requires_grad  # fine-tuning leaves it as it is


@pytest.mark.parametrize(("alpha", "other"), [(0.0, "fedavg"), (1.0, "local")])
def test_at_its_ends_it_is_another_method(alpha, other):
    mixture = predicted("apfl", mixing_weight=alpha, learn_mixing=False)[1]
    assert same(mixture, predicted(other)[1])
    assert not same(mixture, predicted("apfl", mixing_weight=0.5, learn_mixing=False)[1])


def test_what_all_learn_is_fedavg_whatever_is_mixed():
    mixed, plain = predicted("apfl", mixing_weight=0.3)[0], predicted("fedavg")[0]
    for name, value in plain.server["*"].items():
        assert not torch.equal(value, network("mlp").tensors()[name])
    # The share learns from a phase of its own, so what follows draws other mini-batches than FedAvg's only phase.
    fixed = predicted("apfl", mixing_weight=0.3, learn_mixing=False)[0]
    for name, value in plain.server["*"].items():
        assert torch.equal(fixed.server.copies[name].values[0], value)
    assert float(mixed.server["mixing"]["alpha"]) == 0.3  # in float64, and the server never hears of it


def test_the_share_steps_down_the_slope_of_the_mixtures_loss():
    """After one round from alpha = 0.5: 0.5 - lr d CE(alpha v + (1 - alpha) w) / d alpha, where v = w: no slope."""
    first = simulate("apfl", network("mlp"), rounds=1)
    assert all(float(first.engine.store.own(k, ["mixing.alpha"])["mixing.alpha"]) == 0.5 for k in range(8))
    federation, client, lr = awkward_federation(), 3, 0.05
    shares = []
    for nudge in (0.0, 1e-6, -1e-6):
        run = simulate("apfl", network("mlp"), federation, rounds=2, batch=32, mixing_weight=0.5 + nudge)
        shares.append(float(run.engine.store.own(client, ["mixing.alpha"])["mixing.alpha"]))
    after_one = simulate("apfl", network("mlp"), federation, rounds=1, batch=32)
    own = after_one.engine.store.own(client, after_one.server.plan.own)
    x = (federation.source.x[federation.train[client]].double() - 127.5) / 127.5
    y = federation.source.y[federation.train[client]]
    server = {name: copies.values[0] for name, copies in after_one.server.copies.items()}

    def loss(alpha):
        mixed = {
            name.removeprefix("mine."): alpha * value + (1 - alpha) * server[name.removeprefix("mine.")]
            for name, value in own.items()
            if name.startswith("mine.")
        }
        hidden = torch.relu(x.flatten(1) @ mixed["body.fc1.1.weight"].T + mixed["body.fc1.1.bias"])
        return torch.nn.functional.cross_entropy(hidden @ mixed["head.weight"].T + mixed["head.bias"], y)

    slope = float(loss(0.5 + 1e-5) - loss(0.5 - 1e-5)) / 2e-5
    assert abs(slope) > 1e-3
    assert shares[0] == pytest.approx(0.5 - lr * slope, abs=1e-9)


def test_the_share_stays_between_none_and_all():
    """Steps this long leave the interval, one way or the other."""
    run = simulate("apfl", network("mlp"), rounds=3, lr=20.0, clip_norm=0.01)
    assert {float(run.engine.store.own(k, ["mixing.alpha"])["mixing.alpha"]) for k in range(8)} <= {0.0, 1.0}


def test_running_values_of_the_mixture_are_its_own():
    run = simulate("apfl", network("cnn+bn"), rounds=2)
    own = run.engine.store.own(4, run.server.plan.own)
    mine = {name for name in own if name.startswith("mine.") and name.endswith("running_mean")}
    assert mine and all((own[name] - own[name.removeprefix("mine.")]).abs().max() > 1e-6 for name in mine)
    assert all(own[name].any() for name in mine)  # they were zero at first
