"""MOON: its loss by hand, FedAvg without it, and which model is the last one."""

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from partwise.methods.moon import Moon
from partwise.network.view import Received
from tests.support.plain import batch_of, largest, net_of
from tests.support.runs import network, simulate
from tests.support.states import distance

SETTINGS = {"momentum": 0.5, "weight_decay": 1e-3, "lr_decay": 0.9, "epochs": 2, "rounds": 3, "participation": 0.5}


def handed(took_part=1.0, factor=1.0):
    """A client's network, and a received and a last model from other draws."""
    net = net_of(network("mlp", factor))
    got, last = (net_of(network("mlp", seed=seed))["*"] for seed in (1, 2))
    received = Received(net._received(got), set(got), {})
    return net, got, last, SimpleNamespace(got=received, keep={**last, "took_part": torch.tensor(took_part)})


def test_the_loss_is_the_softmax_over_two_likenesses():
    """-log(e^(cos(z, z_w)/t) / (e^(cos(z, z_w)/t) + e^(cos(z, z_prev)/t))), sample by sample."""
    (net, got, last, me), b = handed(), batch_of(0, real=4)
    z, at_got, at_last = (net.with_tensors(tensors).body(b.x) for tensors in ({}, got, last))
    total = 0.0
    for row in range(4):
        near, far = (float(z[row] @ o[row] / z[row].norm() / o[row].norm()) for o in (at_got, at_last))
        total -= math.log(math.exp(near / 0.5) / (math.exp(near / 0.5) + math.exp(far / 0.5))) / 4
    made = Moon(contrast_weight=3.0).loss(net, b, me)
    assert abs(float(made - F.cross_entropy(net(b.x)[:4], b.y[:4])) - 3 * total) < 1e-12
    assert (Moon().contrast_weight, Moon().temperature) == (1.0, 0.5)
    warmer = Moon(contrast_weight=3.0, temperature=2.0).loss(net, b, me)
    assert abs(float(made - warmer)) > 1e-3


def test_in_a_clients_first_round_there_is_nothing_to_leave():
    """Then the last model is the received one: log 2, and no gradient."""
    (net, _, _, me), b = handed(took_part=0.0), batch_of(0)
    assert abs(float(Moon().loss(net, b, me) - b.ce(net(b.x))) - math.log(2)) < 1e-12
    plain = net.grad(lambda net, b, me: b.ce(net(b.x)), b, me)
    assert largest(plain, net.grad(Moon().loss, b, me)) < 1e-15


def test_features_that_are_zero_have_finite_gradients():
    (net, _, _, me), b = handed(factor=0.0), batch_of(0)
    assert all(value.isfinite().all() for value in net.grad(Moon().loss, b, me).values())


def test_without_the_contrast_it_is_fedavg():
    settings = {**SETTINGS, "rounds": 2, "epochs": 1}
    one = simulate("moon", network("cnn+bn", dropout=0.25), **settings, contrast_weight=0.0)
    two = simulate("fedavg", network("cnn+bn", dropout=0.25), **settings)
    for name, copies in two.server.copies.items():
        assert torch.equal(copies.values, one.server.copies[name].values), name
    assert one.history.rows[-1]["method_adapted"] == two.history.rows[-1]["method_adapted"]
    assert distance(one, simulate("moon", network("cnn+bn", dropout=0.25), **settings)) > 1e-6


def test_what_is_kept_is_what_a_client_sent_last():
    run = simulate("vanilla", network("mlp of two layers"), **SETTINGS, host="moon", unfreeze=(0, 2))
    kept = run.engine.store.remembered(list(range(8)))
    seen = {client for row in run.history.rows for client in row["participants"]}
    assert 4 < len(seen) < 8 and {k for k in range(8) if kept["took_part"][k] > 0} == seen
    [(_, updates)] = run.server.asked
    for row, client in enumerate(updates.clients):
        assert all(torch.equal(kept[name][client], value[row]) for name, value in updates.parts.items())
