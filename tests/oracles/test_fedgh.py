"""FedGH (Algorithm 1): everyone has an extractor of its own; the server trains one header on clients' class means."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.support import oracle

SERVER_RATE = 0.03  # where it is not the run's


def extractor(tensors):
    return {name: value for name, value in tensors.items() if name.startswith("body")}


def header(tensors):
    return {name: value for name, value in tensors.items() if name.startswith("head")}


@torch.no_grad()
def class_means(net, record, client):
    """The mean feature of each class that a client has, after its training, in evaluation mode."""
    net.eval()
    z, y = net["body"](record.x[record.train[client]]), record.y[record.train[client]]
    return {int(label): z[y == label].mean(0) for label in y.unique()}


def trained_on(values, received, rate, order):
    """The header after one plain step for each pair of feature and class, in the order in which the run took them."""
    pairs = [(mean, label) for means in received for label, mean in means.items()]
    assert sorted(order) == list(range(len(pairs)))
    net = oracle.model(values, head=oracle.classifier())
    optimizer = torch.optim.SGD(net.parameters(), rate)
    for mean, label in (pairs[place] for place in order):
        oracle.step(optimizer, cross_entropy(net["head"](mean[None]), torch.tensor([label])))
    return oracle.values(net)


@pytest.mark.parametrize("server_rate", [SERVER_RATE, None])
@pytest.mark.parametrize("net_name", ["cnn", "cnn+bn"])
def test_fedgh(net_name, server_rate):
    norm = net_name == "cnn+bn"
    record = oracle.Record("fedgh", net_name, server_lr=server_rate)
    start = oracle.values(oracle.two_parts(record.initial, norm))
    held, stepped, server = dict.fromkeys(oracle.CLIENTS, extractor(start)), set(), header(start)
    for t, seen in enumerate(record.rounds):
        [exchange] = oracle.trained_by(seen)
        received, trained = [], {}
        for client in seen.cohort:
            net = oracle.two_parts({**held[client], **server}, norm)
            optimizer = oracle.sgd(net, oracle.RATE * oracle.DECAY**t)
            [steps] = exchange.batches(client)
            for x, y in record.mini_batches(steps):
                oracle.step(optimizer, cross_entropy(net["head"](net["body"](x)), y))
            stepped |= {client} if steps else set()
            held[client] = extractor(oracle.values(net))
            received.append(class_means(net, record, client))
            trained[client] = record.logits(client, oracle.predicting(net))  # with the header that it trained
        server = trained_on(server, received, (server_rate or oracle.RATE) * oracle.DECAY**t, record.shuffles[t])
        tested = oracle.with_average_running_values(record, held, stepped)
        now = {k: oracle.predicting(oracle.two_parts({**tested[k], **server}, norm)) for k in oracle.CLIENTS}
        oracle.assert_copies(server, seen)
        oracle.assert_predictions(trained, seen, "trained")
        oracle.assert_predictions({k: record.logits(k, net) for k, net in now.items()}, seen, "received")
        down = len(seen.cohort) * oracle.FLOAT * oracle.size(server)
        up = sum(len(means) * (64 * oracle.FLOAT + 4 + 4) for means in received)  # feature, label and count
        assert (seen.record.bytes_down, seen.record.bytes_up) == (down, up)
    for client in oracle.CLIENTS:
        oracle.assert_close(held[client], record.own(client, held[client]), f"client {client}")
