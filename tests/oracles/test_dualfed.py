"""DualFed (Algorithm 1): stage 1 trains encoder, projector and personal classifier, stage 2 the global classifier."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from tests.support import oracle

WEIGHT, TEMPERATURE = 0.7, 0.5
# Batch-norm over three samples blows up rounding errors, to 1e-8 in three rounds. In batches of 16 they stay below
# 1e-13; one batch still has a single sample and is left out.
RATE, BATCH = 0.001, 16
SHARED = ("body", "head")


def network(tensors):
    """x -> body -> z -> projector -> u -> p_head; from z also head."""
    projector = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 64), nn.BatchNorm1d(64))
    body = oracle.layers("conv1", "conv2", "fc1", norm=True)
    parts = {"body": body, "projector": projector, "p_head": oracle.classifier(), "head": oracle.classifier()}
    return oracle.model(tensors, **parts)


def contrast(u, y):
    """The supervised contrastive loss; an anchor without positives counts as 0 in the mean."""
    u, itself = normalize(u), torch.eye(len(u), dtype=torch.bool)
    similar = u @ u.T / TEMPERATURE
    log_shares = similar - similar.masked_fill(itself, -torch.inf).logsumexp(1, keepdim=True)
    positives = ((y == y[:, None]) & ~itself).double()
    return -((log_shares * positives).sum(1) / (positives.sum(1) + 1e-6)).mean()


def predicting(net):
    """The sum of both branches' logits, in evaluation mode."""
    net.eval()

    def both(x):
        z = net["body"](x)
        return net["p_head"](net["projector"](z)) + net["head"](z)

    return both


def shared(tensors):
    """What travels: no running values."""
    return {name: v for name, v in tensors.items() if name.startswith(SHARED) and "running" not in name}


def test_dualfed():
    settings = {"contrast_weight": WEIGHT, "temperature": TEMPERATURE, "projector_hidden": 16}
    record = oracle.Record("dualfed", "cnn+bn", **settings, lr=RATE, batch=BATCH, aggregation="uniform")
    start = oracle.values(network(record.initial))
    server, held = shared(start), dict.fromkeys(oracle.CLIENTS, start)
    stepped: set[int] = set()
    for t, seen in enumerate(record.rounds):
        [exchange] = oracle.trained_by(seen)
        uploads, trained = [], {}
        for client in seen.cohort:
            net, rate = network({**held[client], **server}), RATE * oracle.DECAY**t
            net.train()
            one, two = exchange.batches(client)  # mini-batches of one sample are left out: batch-norm
            optimizer = oracle.sgd([net["body"], net["projector"], net["p_head"]], rate)
            for x, y in record.mini_batches(one):
                u = net["projector"](net["body"](x))
                oracle.step(optimizer, cross_entropy(net["p_head"](u), y) + WEIGHT * contrast(u, y))
            optimizer = oracle.sgd(net["head"], rate)
            for x, y in record.mini_batches(two):
                with torch.no_grad():
                    z = net["body"](x)
                    net["projector"](z)  # for its running values
                oracle.step(optimizer, cross_entropy(net["head"](z), y))
            stepped |= {client} if one else set()
            held[client] = oracle.values(net)
            trained[client] = record.logits(client, predicting(net))
            uploads.append(shared(held[client]))
        server = oracle.mean(uploads, torch.ones(len(uploads), dtype=torch.float64))  # uniform
        oracle.assert_copies(server, seen)
        oracle.assert_bytes(seen, oracle.size(server), oracle.size(server), len(seen.cohort))
        tested = oracle.with_average_running_values(record, held, stepped)
        received = {k: record.logits(k, predicting(network({**tested[k], **server}))) for k in oracle.CLIENTS}
        oracle.assert_predictions(received, seen, "received")
        oracle.assert_predictions(trained, seen, "trained")
    for client in oracle.CLIENTS:
        own = {name: value for name, value in held[client].items() if name not in server}
        oracle.assert_close(own, record.own(client, own), f"client {client}")
