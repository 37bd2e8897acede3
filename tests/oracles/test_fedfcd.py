"""FedFCD (Algorithm 1, Eqs. 3 to 10): aligned features, fused decisions, a classifier that the server trains."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.support import oracle
from tests.support.runs import CLASSES

WEIGHT, SERVER_RATE = 2.0, 0.03


def network(tensors, norm):
    """The client's extractor and personal classifier, and the global classifier that it received."""
    body = oracle.layers("conv1", "conv2", "fc1", norm=norm)
    return oracle.model(tensors, body=body, head=oracle.classifier(), g_head=oracle.classifier())


def fused(net, z):
    """Eqs. 7 and 8: the sum of both classifiers' logits."""
    return net["g_head"](z) + net["head"](z)


def predicting(net):
    net.eval()
    return lambda x: fused(net, net["body"](x))


@torch.no_grad()
def class_means(net, record, client):
    """Eq. 3: the mean feature and the number of samples of each class that a client has, in evaluation mode."""
    net.eval()
    z, y = net["body"](record.x[record.train[client]]), record.y[record.train[client]]
    return {int(label): (z[y == label].mean(0), int((y == label).sum())) for label in y.unique()}


class Server:
    """The global classifier and the global class features."""

    def __init__(self, g_head, shuffles):
        self.g_head, self.features, self.shuffles = g_head, {}, iter(shuffles)

    def take_in(self, received):
        """Eq. 4 on every pair in shuffled order, one step each; Eq. 5 for the classes that were received."""
        pairs = [(feature, label) for means in received for label, (feature, _) in means.items()]
        classifier = oracle.model(self.g_head, g_head=oracle.classifier())
        optimizer = torch.optim.SGD(classifier.parameters(), SERVER_RATE)
        order = next(self.shuffles)
        assert sorted(order) == list(range(len(pairs)))
        for place in order:
            feature, label = pairs[place]
            oracle.step(optimizer, cross_entropy(classifier["g_head"](feature[None]), torch.tensor([label])))
        self.g_head = oracle.values(classifier)
        for label in range(CLASSES):
            of_class = [means[label] for means in received if label in means]
            if of_class:
                total = sum(number for _, number in of_class)
                self.features[label] = sum(number / total * feature for feature, number in of_class)


def aligned(z, y, features):
    """Eq. 6: the squared distance to the global features, mean over the mini-batch and the dimensions."""
    distances = [(z[i] - features[int(k)]).square().mean() for i, k in enumerate(y) if int(k) in features]
    return sum(distances) / len(y)  # a class that nobody has reported adds nothing


@pytest.mark.parametrize("net_name", ["cnn+bn", "cnn"])
def test_fedfcd(net_name):
    norm = net_name == "cnn+bn"
    settings = {"align_weight": WEIGHT, "server_lr": SERVER_RATE, "server_batch": 1, "server_epochs": 1}
    record = oracle.Record("fedfcd", net_name, **settings, rounds=3)
    start = oracle.values(network(record.initial, norm), "body", "head")
    held, stepped = dict.fromkeys(oracle.CLIENTS, start), set()
    server = Server({name: record.initial[name] for name in ("g_head.weight", "g_head.bias")}, record.shuffles)
    server.take_in([class_means(network(start, norm), record, client) for client in oracle.CLIENTS])
    for t, seen in enumerate(record.rounds):
        [exchange] = oracle.trained_by(seen)
        received, trained, rate = [], {}, oracle.RATE * oracle.DECAY**t
        sent = torch.stack([server.features[label] for label in range(CLASSES)])
        oracle.assert_close({"features": sent}, exchange.received_extras(seen.cohort[0]), f"before round {t + 1}")
        oracle.assert_close(server.g_head, exchange.received(seen.cohort[0]), f"before round {t + 1}")
        for client in seen.cohort:
            net = network({**held[client], **server.g_head}, norm)
            net.train()
            extractor, classifier = oracle.sgd(net["body"], rate), oracle.sgd(net["head"], rate)
            phases = exchange.batches(client)
            for number, steps in enumerate(phases):  # an epoch each: pass A, pass B, and again
                for x, y in record.mini_batches(steps):
                    z = net["body"](x)
                    loss = cross_entropy(fused(net, z), y)
                    if number % 2 == 0:  # Eq. 9
                        oracle.step(extractor, loss + WEIGHT * aligned(z, y, server.features))
                    else:  # Eq. 10
                        oracle.step(classifier, loss)
            stepped |= {client} if phases[0] else set()
            held[client] = oracle.values(net, "body", "head")
            received.append(class_means(net, record, client))
            trained[client] = record.logits(client, predicting(net))
        server.take_in(received)
        oracle.assert_copies(server.g_head, seen)
        oracle.assert_predictions(trained, seen, "trained")
        tested = oracle.with_average_running_values(record, held, stepped)
        now = {k: record.logits(k, predicting(network({**tested[k], **server.g_head}, norm))) for k in oracle.CLIENTS}
        oracle.assert_predictions(now, seen, "received")
        down = len(seen.cohort) * oracle.FLOAT * (oracle.size(server.g_head) + CLASSES * 64)
        up = sum(len(means) * (64 * oracle.FLOAT + 4 + 4) for means in received)  # feature, label and count
        assert (seen.record.bytes_down, seen.record.bytes_up) == (down, up)
    for client in oracle.CLIENTS:
        oracle.assert_close(held[client], record.own(client, held[client]), f"client {client}")
