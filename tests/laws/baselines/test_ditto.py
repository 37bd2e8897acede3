"""Ditto: the pull's gradient by hand, both models of a round by hand, and what is left without the pull."""

from types import SimpleNamespace

import torch
from torch import nn

from partwise.methods.ditto import Ditto
from tests.support.oracle import mean
from tests.support.plain import Followed, batch_of, largest, moved, net_of
from tests.support.runs import network, simulate

SETTINGS = {"momentum": 0.5, "weight_decay": 1e-3, "lr_decay": 0.9, "epochs": 2, "rounds": 3, "participation": 0.5}


def copied(parts):
    return Ditto().build(parts, None)


def test_without_the_pull_everybody_is_alone():
    """Phase 1 of both has the same mini-batches."""
    free = simulate("ditto", network("cnn+bn"), **SETTINGS, proximal_weight=0.0)
    alone = simulate("local", network("cnn+bn"), **SETTINGS)
    for client in range(8):
        mine = free.engine.store.own(client, free.server.plan.own)
        for name, value in alone.engine.store.own(client, alone.server.plan.own).items():
            assert torch.allclose(mine[f"mine.{name}"], value, rtol=0, atol=1e-14), name


def test_the_pull_adds_its_weight_times_the_way_to_the_received_model_and_moves_nothing_else():
    net, b = net_of(copied(network("mlp"))), batch_of(0)
    me = SimpleNamespace(got={"*": {name: value - 1 for name, value in net["body head"].items()}})
    with_pull, without = (net.grad(Ditto(proximal_weight=w).personal, b, me) for w in (3.0, 0.0))
    for name, value in with_pull.items():
        added = 3.0 if name.startswith("mine.") else 0.0
        assert torch.allclose(value - without[name], torch.full_like(value, added), rtol=0, atol=1e-12)
    plain = nn.functional.cross_entropy(net(b.x), b.y)  # the copy begins with the network's values
    assert torch.allclose(Ditto(proximal_weight=0.0).personal(net, b, me), plain) and Ditto().proximal_weight == 1.0


def test_two_rounds_by_hand():
    """Both models start from what was received in the round; three passes on the personal one, two on the other."""
    run = Followed("ditto", rounds=2, personal_epochs=3, proximal_weight=2.0)
    w, own = run.start, dict.fromkeys(range(8), run.start)
    for number, seen in enumerate(run.rounds):
        ends = []
        for client in seen.cohort:
            v, trained = own[client], w
            for x, y in run.batches(number, client, 0):
                slope = run.gradient(lambda v, x=x, y=y: run.loss(v, x, y), v)
                v = moved(v, {name: slope[name] + 2 * (v[name] - w[name]) for name in w}, run.lr)
            for x, y in run.batches(number, client, 1):
                trained = moved(trained, run.gradient(lambda v, x=x, y=y: run.loss(v, x, y), trained), run.lr)
            own[client], ends = v, [*ends, trained]
            steps = [len(run.batches(number, client, phase)) for phase in (0, 1)]
            assert steps[0] * 2 == steps[1] * 3
        w = mean(ends, run.samples[seen.cohort])
        assert largest(w, run.copies(number)) < 1e-12
    for client in range(8):
        mine = {f"mine.{name}": value for name, value in own[client].items()}
        assert largest(mine, run.own(client, mine)) < 1e-12
        logits = torch.func.functional_call(run.model, own[client], (run.x[run.test[client]],))
        assert torch.allclose(run.rounds[-1].predictions["received"][client], logits, rtol=0, atol=1e-12)
