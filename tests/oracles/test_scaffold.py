"""SCAFFOLD (Algorithm 1, option II): every step is corrected by how the server's control variate differs from mine."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.support import oracle

CLIENTS = len(oracle.CLIENTS)  # N: those that are absent too


def running(tensors):
    return {name: value for name, value in tensors.items() if "running" in name}


def train(net, record, steps, rate, c, c_i, clip):
    """Local steps by the gradient plus c - c_i; weight decay comes after the correction, and momentum is none."""
    optimizer = oracle.sgd(net, rate, momentum=0)
    for x, y in record.mini_batches(steps):
        gradient = oracle.gradients(net, cross_entropy(net["head"](net["body"](x)), y))
        corrected = {name: g + c[name] - c_i[name] for name, g in gradient.items()}
        oracle.descend(optimizer, net, corrected, clip)


def remembered(record, client):
    """A client's control variate as the run left it, by full name."""
    return {name: value[0] for name, value in record.run.engine.store.remembered([client]).items()}


@pytest.mark.parametrize(("net_name", "clip"), [("cnn", 0.5), ("cnn+bn", None), ("cnn", None)])
def test_scaffold(net_name, clip):
    norm = net_name == "cnn+bn"
    record = oracle.Record("scaffold", net_name, momentum=0, clip_norm=clip, moment="adapted")
    start = oracle.values(oracle.two_parts(record.initial, norm))
    server = oracle.parameters(start)
    zeros = {name: torch.zeros_like(value) for name, value in server.items()}
    c, own_c = zeros, dict.fromkeys(oracle.CLIENTS, zeros)
    held, stepped = dict.fromkeys(oracle.CLIENTS, running(start)), set()
    for t, seen in enumerate(record.rounds):
        [exchange] = oracle.trained_by(seen)
        rate, uploads, changes, trained = oracle.RATE * oracle.DECAY**t, [], [], {}
        for client in seen.cohort:
            net, c_i = oracle.two_parts({**server, **held[client]}, norm), own_c[client]
            [steps] = exchange.batches(client)
            train(net, record, steps, rate, c, c_i, clip)
            w = oracle.parameters(oracle.values(net))
            if steps:  # option II; without a step everything stays, whatever c is
                stepped |= {client}
                own_c[client] = {n: c_i[n] - c[n] + (server[n] - w[n]) / (len(steps) * rate) for n in w}
            changes.append({name: own_c[client][name] - c_i[name] for name in w})
            uploads.append(w)
            held[client] = running(oracle.values(net))
            trained[client] = record.logits(client, oracle.predicting(net))
        server = oracle.mean(uploads, torch.ones(len(uploads), dtype=torch.float64))  # w + the plain mean of w_i - w
        c = {name: c[name] + sum(change[name] for change in changes) / CLIENTS for name in c}
        tested = oracle.with_average_running_values(record, held, stepped)
        received = {
            k: record.logits(k, oracle.predicting(oracle.two_parts({**server, **tested[k]}, norm)))
            for k in oracle.CLIENTS
        }
        oracle.assert_copies(server, seen)
        oracle.assert_predictions(received, seen, "received")
        oracle.assert_predictions(trained, seen, "trained")
        average = oracle.average_running_values(record, held, stepped)
        oracle.assert_global_predictions(oracle.predicting(oracle.two_parts({**server, **average}, norm)), record, seen)
        oracle.assert_bytes(seen, 2 * oracle.size(server), 2 * oracle.size(server), len(seen.cohort))  # w and c
    oracle.assert_close(c, record.run.server.memory["c"], "server's control variate")
    for client in oracle.CLIENTS:
        oracle.assert_close(own_c[client], remembered(record, client), f"client {client}, control variate")
        oracle.assert_close(held[client], record.own(client, held[client]), f"client {client}")
    for moment in ("adapted", "method_adapted"):  # both without control variates; the second is a local round more
        adapted, adapting = {}, record.rounds[-1].evaluations[moment]
        for client in oracle.CLIENTS:
            net = oracle.two_parts({**server, **tested[client]}, norm)
            [steps] = adapting.batches(client)
            train(net, record, steps, rate, zeros, zeros, clip)
            adapted[client] = record.logits(client, oracle.predicting(net))
        oracle.assert_predictions(adapted, record.rounds[-1], moment)
