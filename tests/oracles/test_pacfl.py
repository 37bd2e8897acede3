"""PACFL (Algorithm 1): clusters by the principal angles between spans of raw samples, class by class; then FedAvg."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.support import linkage, oracle

DIRECTIONS = 2


def basis(record, client):
    """An orthonormal basis of what the leading left singular vectors of every class of pixels by samples span."""
    pixels = (record.x * 127.5 + 127.5).round().flatten(1)  # as they are stored, from 0 to 255: no mean is taken off
    mine, vectors = torch.as_tensor(record.train[client]), []
    for label in record.y[mine].unique():
        of_class = pixels[mine[record.y[mine] == label]].T
        vectors.append(torch.linalg.svd(of_class, full_matrices=False).U[:, :DIRECTIONS])
    return torch.linalg.qr(torch.cat(vectors, 1)).Q


def principal_angles(one, other):
    """In degrees, from the principal vectors u, v of each pair as 2 atan(|u - v| / |u + v|): exact near 0, too."""
    left, _, right = torch.linalg.svd(one.T @ other, full_matrices=False)
    u, v = one @ left, other @ right.T
    return [
        math.degrees(2 * math.atan2(float((a - b).norm()), float((a + b).norm())))
        for a, b in zip(u.T, v.T, strict=True)
    ]


def angles(record, how):
    bases = [basis(record, k) for k in oracle.CLIENTS]
    take = {"smallest": min, "sum": sum}[how]
    return [
        [0.0 if i == j else take(principal_angles(bases[i], bases[j])) for j in oracle.CLIENTS] for i in oracle.CLIENTS
    ]


def train(net, record, steps, rate):
    optimizer = oracle.sgd(net, rate)
    for x, y in record.mini_batches(steps):
        oracle.step(optimizer, cross_entropy(net["head"](net["body"](x)), y))


@pytest.mark.parametrize(
    ("how", "cut"), [("smallest", {}), ("sum", {"clusters": 3}), ("smallest", {"threshold": 5.0}), ("sum", {})]
)
def test_pacfl(how, cut):
    record = oracle.Record("pacfl", directions=DIRECTIONS, angle=how, **cut)
    between = angles(record, how)
    oracle.assert_close(
        {"angles": torch.tensor(between, dtype=torch.float64)}, record.run.server.memory, "principal angles"
    )
    clusters = linkage.clusters(between, cut.get("clusters"), cut.get("threshold"))
    start = oracle.values(oracle.two_parts(record.initial, norm=False))
    models = dict.fromkeys(oracle.CLIENTS, start)
    for t, seen in enumerate(record.rounds):
        assert linkage.partition(seen.groups) == clusters
        [exchange] = oracle.trained_by(seen)
        uploads, trained = {}, {}
        for client in seen.cohort:
            net, [steps] = oracle.two_parts(models[client], norm=False), exchange.batches(client)
            train(net, record, steps, oracle.RATE * oracle.DECAY**t)
            uploads[client] = oracle.values(net)
            trained[client] = record.logits(client, oracle.predicting(net))
        for members in clusters:  # FedAvg in each; one without participants keeps its model
            present = [k for k in members if k in uploads]
            if present:
                mean = oracle.mean([uploads[k] for k in present], record.samples[present])
                models |= dict.fromkeys(members, mean)
        received = {}
        for client in oracle.CLIENTS:
            oracle.assert_copies(models[client], seen, client)
            received[client] = record.logits(client, oracle.predicting(oracle.two_parts(models[client], norm=False)))
        oracle.assert_predictions(trained, seen, "trained")
        oracle.assert_predictions(received, seen, "received")
        oracle.assert_bytes(seen, oracle.size(start), oracle.size(start), len(seen.cohort))
