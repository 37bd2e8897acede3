"""SphereFed: unit features against fixed orthonormal class vectors, which a ridge regression replaces in the end."""

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize, one_hot

from tests.support import oracle
from tests.support.runs import CLASSES

RATE, RIDGE = 0.5, 0.3  # gamma


def network(tensors, norm):
    body = oracle.layers("conv1", "conv2", "fc1", norm=norm)
    return oracle.model(tensors, body=body, head=nn.Linear(64, CLASSES, bias=False))


def scores(net, x):
    """The cosine of a sample's features with every class vector."""
    return net["head"](normalize(net["body"](x)))


def predicting(net):
    net.eval()
    return lambda x: scores(net, x)


def squared_error(net, x, y):
    """The mean over the mini-batch and the classes."""
    return (scores(net, x) - one_hot(y, CLASSES)).square().mean()


def shared(tensors):
    """What travels: neither the class vectors nor running values."""
    return {name: v for name, v in tensors.items() if name.startswith("body") and "running" not in name}


def kept(tensors):
    return {name: value for name, value in tensors.items() if "running" in name}


@torch.no_grad()
def calibrated(nets, record):
    """The class vectors that fit all clients' one-hot labels best: a ridge regression over all samples at once.

    It is solved as a problem of least squares, the ridge being rows of its own: |ZV - Y|^2 + gamma |V|^2.
    """
    z = torch.cat([normalize(net.eval()["body"](record.x[record.train[k]])) for k, net in nets.items()])
    y = torch.cat([one_hot(record.y[record.train[k]], CLASSES).double() for k in nets])
    rows = torch.cat([z, RIDGE**0.5 * torch.eye(64, dtype=torch.float64)])
    right = torch.cat([y, torch.zeros(64, CLASSES, dtype=torch.float64)])
    return torch.linalg.lstsq(rows, right).solution.T


@pytest.mark.parametrize("net_name", ["cnn", "cnn+bn"])
@pytest.mark.parametrize("settings", [{"calibration_ridge": RIDGE}, {"calibration": False}])  # the default: on
def test_spherefed(net_name, settings):
    norm = net_name == "cnn+bn"
    record = oracle.Record("spherefed", net_name, lr=RATE, **settings)
    start = oracle.values(network(record.initial, norm))
    head = {"head.weight": start["head.weight"]}
    products = head["head.weight"] @ head["head.weight"].T
    assert float((products - torch.eye(CLASSES)).abs().max()) < 1e-6  # drawn in single precision
    server, held, stepped = shared(start), dict.fromkeys(oracle.CLIENTS, kept(start)), set()
    for t, seen in enumerate(record.rounds):
        [exchange] = oracle.trained_by(seen)
        uploads, trained, rate = [], {}, RATE * oracle.DECAY**t
        for client in seen.cohort:
            net = network({**server, **held[client], **head}, norm)
            optimizer = oracle.sgd(net["body"], rate)
            [steps] = exchange.batches(client)
            for x, y in record.mini_batches(steps):
                oracle.step(optimizer, squared_error(net, x, y))
            stepped |= {client} if steps else set()
            held[client] = kept(oracle.values(net))
            trained[client] = record.logits(client, predicting(net))
            uploads.append(shared(oracle.values(net)))
        server = oracle.mean(uploads, record.samples[seen.cohort])
        if t == len(record.rounds) - 1 and settings.get("calibration", True):  # before the last round is tested
            nets = {k: network({**server, **held[k]}, norm) for k in oracle.CLIENTS}
            head = {"head.weight": calibrated(nets, record)}
        oracle.assert_copies({**server, **head}, seen)
        tested = oracle.with_average_running_values(record, held, stepped)
        models = {k: network({**server, **tested[k], **head}, norm) for k in oracle.CLIENTS}
        received = {k: record.logits(k, predicting(models[k])) for k in oracle.CLIENTS}
        oracle.assert_predictions(received, seen, "received")
        oracle.assert_predictions(trained, seen, "trained")
        oracle.assert_bytes(seen, oracle.size(server), oracle.size(server), len(seen.cohort))
