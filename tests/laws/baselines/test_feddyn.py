"""FedDyn: Algorithm 1 in dicts of tensors, its invariant, and where nothing moves."""

from types import SimpleNamespace

import torch

from partwise.methods.feddyn import FedDyn
from tests.support.plain import Followed, batch_of, largest, mean, moved, net_of, zeros
from tests.support.runs import network, simulate


def test_three_rounds_are_those_of_algorithm_1():
    """Half of the clients a round; a weight at which both terms of the regulariser count."""
    alpha, run = 0.3, Followed("feddyn", dynamic_weight=0.3)
    w, h = run.start, zeros(run.start)
    g = dict.fromkeys(range(8), h)
    for number, seen in enumerate(run.rounds):
        ends = []
        for client in seen.cohort:
            v = w
            for x, y in run.batches(number, client):
                slope = run.gradient(lambda v, x=x, y=y: run.loss(v, x, y), v)
                v = moved(v, {name: slope[name] - g[client][name] + alpha * (v[name] - w[name]) for name in w}, run.lr)
            g[client] = {name: g[client][name] - alpha * (v[name] - w[name]) for name in w}
            ends.append(v)
        h = {name: h[name] - alpha / 8 * sum(v[name] - w[name] for v in ends) for name in w}
        w = {name: value - h[name] / alpha for name, value in mean(ends).items()}
        assert largest(w, run.copies(number)) < 1e-11
    for client in range(8):
        kept = run.run.engine.store.remembered([client])
        assert largest(g[client], {name: value[0] for name, value in kept.items()}) < 1e-12


def test_the_servers_h_is_the_mean_of_what_all_clients_keep():
    """Whoever took part, at the default weight 0.01, with running values that the server averages too."""
    run = simulate("feddyn", network("cnn+bn"), participation=0.5, rounds=3, bn_buffers="average")
    kept = run.engine.store.remembered(list(range(8)))
    for name, h in run.server.memory["h"].items():
        assert torch.allclose(h, kept[name].mean(0), rtol=0, atol=1e-14)
    assert run.server.memory["h"]["head.weight"].any() and FedDyn().dynamic_weight == 0.01


def test_a_client_whose_gradient_is_the_kept_one_stays_and_is_pulled_back_elsewhere():
    """At v = w the gradient of the bent loss is that of the loss less g; the pull adds alpha (v - w)."""
    net, b, method = net_of(network("mlp")), batch_of(0), FedDyn(dynamic_weight=0.5)
    plain = net.grad(lambda net, b, me: b.ce(net(b.x)), b, None)
    here = SimpleNamespace(keep=plain, got={"*": net["*"]})
    assert max(float(value.abs().max()) for value in net.grad(method.loss, b, here).values()) < 1e-15
    there = SimpleNamespace(keep=plain, got={"*": {name: value - 1 for name, value in net["*"].items()}})
    assert all(torch.allclose(value, torch.full_like(value, 0.5)) for value in net.grad(method.loss, b, there).values())


def test_layers_that_a_schedule_freezes_stay_and_so_does_what_is_kept_of_them():
    start = network("mlp of two layers").tensors()
    run = simulate("vanilla", network("mlp of two layers"), host="feddyn", unfreeze=(0, 9), rounds=2)
    kept = run.engine.store.remembered(list(range(8)))
    for name, h in run.server.memory["h"].items():
        asleep = name.startswith("body.fc2")
        assert bool(h.any()) != asleep and bool(kept[name].any()) != asleep
        assert torch.equal(run.server.copies[name].values[0], start[name]) == asleep


def test_its_local_model_is_the_global_one_after_a_local_round():
    assert FedDyn(epochs=2).adapt() == FedDyn(epochs=2).phases()
