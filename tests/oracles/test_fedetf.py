"""FedETF: balanced softmax against a fixed simplex of class vectors; a copy adapts head and projection in turns."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from tests.support import oracle
from tests.support.runs import CLASSES

TURNS, EPOCHS, HEAD_RATE, PROJECTOR_RATE = 3, 2, 0.1, 0.05
PROJECTOR_MOMENTUM, PROJECTOR_DECAY = 0.9, 5e-4  # the authors'
OPTIONS = {"personal_rounds": TURNS, "personal_epochs": EPOCHS}
FEATURES = 64


class Scale(nn.Module):
    """The temperature s, one learnable number."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))


def network(tensors, norm):
    """x -> body, which ends in a ReLU -> linear projection -> unit length -> cosines with the class vectors -> s."""
    parts = {"projector": nn.Linear(FEATURES, FEATURES), "scale": Scale()}
    body = oracle.layers("conv1", "conv2", "fc1", norm=norm)
    return oracle.model(tensors, body=body, head=nn.Linear(FEATURES, CLASSES, bias=False), **parts)


def logits(net, x):
    return net["scale"].factor * net["head"](normalize(net["projector"](net["body"](x))))


def predicting(net):
    net.eval()
    return lambda x: logits(net, x)


def balanced(net, x, y, counts):
    """Softmax in which every class weighs as many samples as the client has of it; absent ones have no share."""
    weighed = counts * logits(net, x).exp()
    return -(weighed[torch.arange(len(y)), y] / weighed.sum(1)).log().mean()


def shared(tensors):
    """What travels: neither the class vectors nor running values."""
    return {name: v for name, v in tensors.items() if not name.startswith("head") and "running" not in name}


def kept(tensors):
    return {name: value for name, value in tensors.items() if "running" in name}


def assert_simplex(vectors):
    """Class vectors of length 1, any two at the cosine -1 / (C - 1)."""
    cosines = vectors @ vectors.T
    expected = torch.full_like(cosines, -1 / (CLASSES - 1)).fill_diagonal_(1)
    assert float((cosines - expected).abs().max()) < 1e-6  # of a matrix that was drawn in single precision


@pytest.mark.parametrize("net_name", ["cnn", "cnn+bn"])
def test_fedetf(net_name):
    norm = net_name == "cnn+bn"
    record = oracle.Record("fedetf", net_name, **OPTIONS)
    start = oracle.values(network(record.initial, norm))
    assert start.keys() == record.initial.keys() and float(start["scale.factor"]) == 1
    assert_simplex(start["head.weight"])
    server, held, stepped = shared(start), dict.fromkeys(oracle.CLIENTS, kept(start)), set()
    head = {"head.weight": start["head.weight"]}
    counts = [torch.bincount(record.y[own], minlength=CLASSES).double() for own in record.train]

    def local_round(net, client, steps, rate):
        everything = [net["body"], net["projector"], net["scale"]]
        optimizer = oracle.sgd(everything, rate)
        for x, y in record.mini_batches(steps):
            oracle.step(optimizer, balanced(net, x, y, counts[client]))

    for t, seen in enumerate(record.rounds):
        [exchange] = oracle.trained_by(seen)
        uploads, trained, rate = [], {}, oracle.RATE * oracle.DECAY**t
        for client in seen.cohort:
            net = network({**server, **held[client], **head}, norm)
            [steps] = exchange.batches(client)
            local_round(net, client, steps, rate)
            stepped |= {client} if steps else set()
            held[client] = kept(oracle.values(net))
            trained[client] = record.logits(client, predicting(net))
            uploads.append(shared(oracle.values(net)))
        server = oracle.mean(uploads, record.samples[seen.cohort])
        oracle.assert_copies(server, seen)
        oracle.assert_bytes(seen, oracle.size(server), oracle.size(server), len(seen.cohort))
        tested = oracle.with_average_running_values(record, held, stepped)
        models = {k: {**server, **tested[k], **head} for k in oracle.CLIENTS}
        received = {k: record.logits(k, predicting(network(models[k], norm))) for k in oracle.CLIENTS}
        oracle.assert_predictions(received, seen, "received")
        oracle.assert_predictions(trained, seen, "trained")
    adapted = {}
    for client in oracle.CLIENTS:  # a local round, then head and projection in turns, each with a new optimiser
        net = network(models[client], norm)
        first, *turns = seen.evaluations["method_adapted"].batches(client)
        assert len(turns) == 2 * TURNS
        local_round(net, client, first, rate)  # at the last round's rate
        for number, steps in enumerate(turns):
            assert sum(step.size for step in steps) == EPOCHS * len(record.train[client]) or norm
            if number % 2 == 0:
                optimizer = torch.optim.SGD(net["head"].parameters(), HEAD_RATE)
            else:
                settings = {"momentum": PROJECTOR_MOMENTUM, "weight_decay": PROJECTOR_DECAY}
                optimizer = torch.optim.SGD(net["projector"].parameters(), PROJECTOR_RATE, **settings)
            for x, y in record.mini_batches(steps):
                oracle.step(optimizer, cross_entropy(logits(net, x), y))
        adapted[client] = record.logits(client, predicting(net))
    oracle.assert_predictions(adapted, seen, "method_adapted")
