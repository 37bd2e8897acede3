"""FedTC (Algorithm 1, Eqs. 5 and 6): a client's own classifier learns, the received one guides the extractor."""

from torch import nn
from torch.nn.functional import cross_entropy

from tests.oracles import helpers as oracle

CLASSIFIER_RATE = 0.02


def network(extractor, head):
    parts = {"body": oracle.layers("conv1", "conv2", "fc1"), "head": oracle.classifier()}
    return oracle.model({**extractor, **head}, **parts)


def predicting(net):
    return nn.Sequential(net["body"], net["head"])


def test_fedtc():
    record = oracle.Record("fedtc", lr_classifier=CLASSIFIER_RATE)
    server = oracle.values(network(record.initial, {}))  # shared extractor and shared classifier
    first = {name: value for name, value in server.items() if name.startswith("head")}
    own = dict.fromkeys(oracle.CLIENTS, first)  # the classifier that a client keeps
    for t, seen in enumerate(record.rounds):
        [exchange] = oracle.trained_by(seen)
        uploads, trained = [], {}
        for client in seen.cohort:
            net, guide = network(server, own[client]), network(server, {})["head"]
            extractor = oracle.sgd(net["body"], oracle.RATE * oracle.DECAY**t)
            classifier = oracle.sgd(net["head"], CLASSIFIER_RATE * oracle.DECAY**t)
            [steps] = exchange.batches(client)
            for x, y in record.mini_batches(steps):
                z = net["body"](x)  # one forward pass for both
                oracle.step(classifier, cross_entropy(net["head"](z.detach()), y))  # Eq. 5
                oracle.step(extractor, cross_entropy(guide(z), y))  # Eq. 6: through the frozen shared classifier
            own[client] = oracle.values(net, "head")
            trained[client] = record.logits(client, predicting(net))
            uploads.append(oracle.values(net))
        server = oracle.mean(uploads, record.samples[seen.cohort])
        received = {k: record.logits(k, predicting(network(server, own[k]))) for k in oracle.CLIENTS}
        oracle.assert_copies(server, seen)
        oracle.assert_predictions(received, seen, "received")
        oracle.assert_predictions(trained, seen, "trained")
        oracle.assert_bytes(seen, oracle.size(server), oracle.size(server), len(seen.cohort))  # FedAvg's
    for client in oracle.CLIENTS:
        oracle.assert_close(own[client], record.own(client, first), f"client {client}")
