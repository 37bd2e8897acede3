"""FedALA (Algorithm 1, authors' code): a client learns how much of the received model to begin with."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.support import oracle

SHARE, RATE = 0.7, 0.9  # s, eta_A
MOST, LAST = 20, 10  # epochs; losses that are compared
OPTIONS = {"learning_share": SHARE, "blend_rate": RATE, "most_epochs": MOST}
BLENDED = ("head.weight", "head.bias")


def blended(own, got, weights):
    """Eq. 4: what was received, but in the last layer the client's own plus a share of the difference."""
    return {**got, **{name: own[name] + (got[name] - own[name]) * weights[name] for name in BLENDED}}


def learned(own, got, running, weights, epochs, norm, record, settled, first):
    """The weights after one epoch, or the first time after those until the last 10 losses settle; and how many."""
    losses = []  # one an epoch, that of its last mini-batch
    for epoch in epochs:
        for x, y in record.mini_batches(epoch):
            net = oracle.two_parts({**running, **blended(own, got, weights)}, norm).eval()
            loss = cross_entropy(net["head"](net["body"](x)), y)
            slopes = oracle.gradients(net, loss)
            differences = {name: got[name] - own[name] for name in BLENDED}
            weights = {n: (weights[n] - RATE * slopes[n] * differences[n]).clamp(0, 1) for n in BLENDED}  # Eq. 5
        losses.append(float(loss.detach()))
        if first and len(losses) > LAST and np.std(losses[-LAST:]) < settled:
            break
    return weights, len(losses)


def epochs_of(steps, number):
    """The steps of so many epochs, epoch by epoch."""
    each, rest = divmod(len(steps), number)
    assert not rest
    return [steps[each * epoch : each * (epoch + 1)] for epoch in range(number)] if each else []


def running_values(tensors):
    return {name: value for name, value in tensors.items() if "running" in name}


@pytest.mark.parametrize("settled", [0.02, 0.0, 1e9])  # some settle on the way, nobody does, all after 11
@pytest.mark.parametrize("net_name", ["cnn+bn", "cnn"])
def test_fedala(net_name, settled):
    norm = net_name == "cnn+bn"
    record = oracle.Record("fedala", net_name, **OPTIONS, settled=settled, rounds=4)
    start = oracle.values(oracle.two_parts(record.initial, norm))
    server, held = oracle.parameters(start), dict.fromkeys(oracle.CLIENTS, start)
    ones = {name: torch.ones_like(start[name]) for name in BLENDED}
    weights, taken_part = dict.fromkeys(oracle.CLIENTS, ones), dict.fromkeys(oracle.CLIENTS, 0)
    stepped, lengths = set(), []

    def begun(client, tensors, counting, learning):
        """What a client begins with, and its weights."""
        own, running, new = oracle.parameters(tensors), running_values(tensors), weights[client]
        if taken_part[client]:
            first = taken_part[client] == 1
            epochs = epochs_of(learning, MOST if first else 1)
            assert len(counting) == (len(epochs[0]) if first and epochs else 0)  # an epoch is counted beforehand
            new, number = learned(own, server, running, new, epochs, norm, record, settled, first)
            lengths.extend([number] if first and number else [])
        return {**running, **blended(own, server, new)}, new

    for t, seen in enumerate(record.rounds):
        [exchange] = oracle.trained_by(seen)
        uploads, trained = [], {}
        for client in seen.cohort:
            oracle.assert_close(server, exchange.received(client), f"before round {t + 1}, client {client}")
            counting, learning, training = exchange.batches(client)
            first, weights[client] = begun(client, held[client], counting, learning)
            net = oracle.two_parts(first, norm)
            optimizer = oracle.sgd(net, oracle.RATE * oracle.DECAY**t)
            for x, y in record.mini_batches(training):
                oracle.step(optimizer, cross_entropy(net["head"](net["body"](x)), y))
            stepped |= {client} if training else set()
            taken_part[client] += 1
            held[client] = oracle.values(net)
            trained[client] = record.logits(client, oracle.predicting(net))
            uploads.append(oracle.parameters(held[client]))
        server = oracle.mean(uploads, record.samples[seen.cohort])
        tested, received = oracle.with_average_running_values(record, held, stepped), {}
        evaluation = seen.evaluations["received"]
        for client in oracle.CLIENTS:
            first, _ = begun(client, tested[client], *evaluation.batches(client))
            received[client] = record.logits(client, oracle.predicting(oracle.two_parts(first, norm)))
        oracle.assert_copies(server, seen)
        oracle.assert_predictions(received, seen, "received")
        oracle.assert_predictions(trained, seen, "trained")
        oracle.assert_bytes(seen, oracle.size(server), oracle.size(server), len(seen.cohort))  # FedAvg's
    expected = {0.0: lambda n: n == MOST, 1e9: lambda n: n == LAST + 1}.get(settled, lambda n: LAST < n <= MOST)
    assert lengths and all(map(expected, lengths))
    if settled == 0.02:
        assert LAST + 1 < min(n for n in lengths if n > LAST + 1) < MOST  # some on the way
    for client in oracle.CLIENTS:
        oracle.assert_close(held[client], record.own(client, held[client]), f"client {client}")
        ours = {f"blend.{name.replace('.', '/')}": value for name, value in weights[client].items()}
        oracle.assert_close(ours, record.own(client, ours), f"client {client}")
    assert any((value < 1).any() for own in weights.values() for value in own.values())
