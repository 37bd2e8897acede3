"""FedTC (Algorithm 1, Eqs. 5 and 6): a client's own classifier learns, the received one guides the extractor."""

from functools import partial

import pytest

from tests.support import oracle

CLASSIFIER_RATE = 0.02


def kept(tensors):
    """What stays at a client: its classifier, and running values."""
    return {name: value for name, value in tensors.items() if name.startswith("head") or "running" in name}


@pytest.mark.parametrize("net_name", ["cnn+bn", "cnn"])
def test_fedtc(net_name):
    assert_fedtc(net_name)


@pytest.mark.parametrize("task", oracle.OTHERS)
def test_fedtc_in_other_tasks(task):
    assert_fedtc(oracle.NETS[task], task)


def assert_fedtc(net_name, task="classes"):
    record = oracle.Record("fedtc", net_name, task, lr_classifier=CLASSIFIER_RATE)
    loss, two_parts = record.criterion, partial(oracle.two_parts, norm=net_name == "cnn+bn", task=task)
    start = oracle.values(two_parts(record.initial))
    server = {name: value for name, value in start.items() if "running" not in name}  # extractor and shared classifier
    own, stepped = dict.fromkeys(oracle.CLIENTS, kept(start)), set()
    for t, seen in enumerate(record.rounds):
        [exchange] = oracle.trained_by(seen)
        uploads, trained = [], {}
        for client in seen.cohort:
            net, guide = two_parts({**server, **own[client]}), two_parts(server)["head"]
            extractor = oracle.sgd(net["body"], oracle.RATE * oracle.DECAY**t)
            classifier = oracle.sgd(net["head"], CLASSIFIER_RATE * oracle.DECAY**t)
            [steps] = exchange.batches(client)
            for x, y in record.mini_batches(steps):
                z = net["body"](x)  # one forward pass for both: running values change once
                oracle.step(classifier, loss(net["head"](z.detach()), y))  # Eq. 5
                oracle.step(extractor, loss(guide(z), y))  # Eq. 6: through the frozen shared classifier
            stepped |= {client} if steps else set()
            own[client] = kept(oracle.values(net))
            trained[client] = record.logits(client, oracle.predicting(net))
            uploads.append({name: value for name, value in oracle.values(net).items() if name in server})
        server = oracle.mean(uploads, record.samples[seen.cohort])
        tested = oracle.with_average_running_values(record, own, stepped)
        received = {k: record.logits(k, oracle.predicting(two_parts({**server, **tested[k]}))) for k in oracle.CLIENTS}
        oracle.assert_copies(server, seen)
        oracle.assert_predictions(received, seen, "received")
        oracle.assert_predictions(trained, seen, "trained")
        oracle.assert_bytes(seen, oracle.size(server), oracle.size(server), len(seen.cohort))  # FedAvg's
    for client in oracle.CLIENTS:
        oracle.assert_close(own[client], record.own(client, own[client]), f"client {client}")
