"""FedPAC (Algorithm 1): features are pulled to global centroids; a client's classifier is its best mix of all."""

from itertools import combinations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.support import oracle
from tests.support.runs import CLASSES

WEIGHT, HEAD_RATE = 0.7, 0.03  # lambda, eta_g
FEATURES = 64


def shared(tensors):
    """The extractor, without running values."""
    return {name: value for name, value in tensors.items() if name.startswith("body") and "running" not in name}


def kept(tensors):
    """What stays at a client: its classifier, and running values."""
    return {name: value for name, value in tensors.items() if name.startswith("head") or "running" in name}


def classifiers(tensors):
    return {name: value for name, value in tensors.items() if name.startswith("head")}


@torch.no_grad()
def class_means(net, record, client):
    """The mean feature of every class of a client, and its samples, by an extractor in evaluation mode."""
    net.eval()
    z, y = net["body"](record.x[record.train[client]]), record.y[record.train[client]]
    net.train()
    return {int(label): (z[y == label].mean(0), int((y == label).sum())) for label in y.unique()}


@torch.no_grad()
def statistics(net, record, client):
    """h_c = p_c mu_c and the variance V of a client, by the received extractor in evaluation mode."""
    net.eval()
    z, y = net["body"](record.x[record.train[client]]), record.y[record.train[client]]
    net.train()
    h, variance = torch.zeros(CLASSES, FEATURES, dtype=torch.float64), 0.0
    for label in y.unique():
        own = z[y == label]
        share = len(own) / len(y)
        h[label] = share * own.mean(0)
        variance += share * float(torch.trace(own.T @ own)) / len(own) - float(h[label].square().sum())
    return h, variance / len(y)


def best_shares(matrix):
    """The point of the simplex with the least a'Pa: of all choices of clients with a share, the best one."""
    number, best = len(matrix), None
    for chosen in (list(c) for size in range(1, number + 1) for c in combinations(range(number), size)):
        system = torch.zeros(len(chosen) + 1, len(chosen) + 1, dtype=torch.float64)  # P a = constant, sum a = 1
        system[:-1, :-1] = matrix[chosen][:, chosen]
        system[:-1, -1] = system[-1, :-1] = 1
        right = torch.zeros(len(chosen) + 1, dtype=torch.float64)
        right[-1] = 1
        shares = torch.zeros(number, dtype=torch.float64)
        shares[chosen] = torch.linalg.solve(system, right)[:-1]
        value = float(shares @ matrix @ shares)
        if (shares >= 0).all() and (best is None or value < best[0]):
            best = value, shares
    return best[1]


def mixing(reported):
    """The shares of all classifiers in each client's: by the variance of each, and how far its h is from mine."""
    every, variances = [h for h, _ in reported], torch.tensor([v for _, v in reported], dtype=torch.float64)
    result = []
    for mine in every:
        apart = torch.stack([(mine - other).flatten() for other in every])
        result.append(best_shares(torch.diag(variances) + apart @ apart.T))
    return result


def centroids_of(measured, before):
    """Class means of all participants, by samples; of a class that none of them has, those that there were."""
    result = dict(before)
    for label in range(CLASSES):
        of_class = [means[label] for means in measured if label in means]
        if of_class:
            total = sum(number for _, number in of_class)
            result[label] = sum(number / total * mean for mean, number in of_class)
    return result


def aligned(z, y, centroids):
    """Mean over the mini-batch of the squared distance to the centroid over the features' number."""
    distances = [(z[i] - centroids[int(k)]).square().mean() for i, k in enumerate(y) if int(k) in centroids]
    return sum(distances) / len(y)


@pytest.mark.parametrize(("net_name", "head_rate"), [("cnn+bn", HEAD_RATE), ("cnn", HEAD_RATE), ("cnn", None)])
def test_fedpac(net_name, head_rate):
    compare(net_name, head_lr=head_rate)


def test_a_class_without_a_centroid_adds_nothing():
    record = compare("cnn", clients_per_round=1, participation=1)
    known, trained = (set(record.y[record.train[seen.cohort[0]]].tolist()) for seen in record.rounds[:2])
    assert len(known) < len(trained)  # so there was such a class in the second round


def compare(net_name, **settings):
    norm = net_name == "cnn+bn"
    record = oracle.Record("fedpac", net_name, align_weight=WEIGHT, **settings)
    head_rate = settings.get("head_lr") or oracle.RATE  # unset: the run's
    start = oracle.values(oracle.two_parts(record.initial, norm))
    server, held, stepped = shared(start), dict.fromkeys(oracle.CLIENTS, kept(start)), set()
    mixes, centroids = dict.fromkeys(oracle.CLIENTS, classifiers(start)), {}
    for t, seen in enumerate(record.rounds):
        [exchange] = oracle.trained_by(seen)
        uploads, reported, measured, trained, decay = [], [], [], {}, oracle.DECAY**t
        for client in seen.cohort:
            net = oracle.two_parts({**server, **held[client], **mixes[client]}, norm)
            reported.append(statistics(net, record, client))  # before training
            phases = exchange.batches(client)
            *_, first, second = phases  # before them, perhaps, one of the statistics
            assert sum(map(np.size, second)) == oracle.EPOCHS * sum(map(np.size, first))  # one epoch on the classifier
            optimizer = oracle.sgd(net["head"], head_rate * decay)
            for x, y in record.mini_batches(first):
                oracle.step(optimizer, cross_entropy(net["head"](net["body"](x)), y))
            optimizer = oracle.sgd(net["body"], oracle.RATE * decay)
            for x, y in record.mini_batches(second):
                z = net["body"](x)
                oracle.step(optimizer, cross_entropy(net["head"](z), y) + WEIGHT * aligned(z, y, centroids))
            measured.append(class_means(net, record, client))  # after training, by the client's own extractor
            stepped |= {client} if any(phases) else set()
            held[client] = kept(oracle.values(net))
            trained[client] = record.logits(client, oracle.predicting(net))
            uploads.append(oracle.values(net))
        server = oracle.mean([shared(one) for one in uploads], record.samples[seen.cohort])
        heads = [classifiers(one) for one in uploads]
        for client, shares in zip(seen.cohort, mixing(reported), strict=True):  # others keep theirs
            mixes[client] = {n: sum(w * one[n] for w, one in zip(shares, heads, strict=True)) for n in heads[0]}
        centroids = centroids_of(measured, centroids)
        oracle.assert_copies(server, seen)
        for client in oracle.CLIENTS:
            oracle.assert_copies(mixes[client], seen, client)
        tested = oracle.with_average_running_values(record, held, stepped)
        models = {k: oracle.two_parts({**server, **tested[k], **mixes[k]}, norm) for k in oracle.CLIENTS}
        received = {k: record.logits(k, oracle.predicting(models[k])) for k in oracle.CLIENTS}
        oracle.assert_predictions(received, seen, "received")
        oracle.assert_predictions(trained, seen, "trained")
    for client in oracle.CLIENTS:
        oracle.assert_close(held[client], record.own(client, held[client]), f"client {client}")
    return record
