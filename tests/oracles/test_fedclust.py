"""FedClust: all train alone once; by their final layers they form clusters, which are FedAvg from the common model."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.support import linkage, oracle


def train(net, record, steps, rate):
    optimizer = oracle.sgd(net, rate)
    for x, y in record.mini_batches(steps):
        oracle.step(optimizer, cross_entropy(net["head"](net["body"](x)), y))


def running(tensors):
    return {name: value for name, value in tensors.items() if "running" in name}


@pytest.mark.parametrize(("net_name", "cut"), [("cnn", {}), ("cnn+bn", {"clusters": 3}), ("cnn", {"threshold": 0.11})])
def test_fedclust(net_name, cut):
    norm = net_name == "cnn+bn"
    record = oracle.Record("fedclust", net_name, cluster_epochs=2, **cut)
    start = oracle.values(oracle.two_parts(record.initial, norm))
    common, clusters, stepped = oracle.parameters(start), None, set()
    models, held = dict.fromkeys(oracle.CLIENTS, common), dict.fromkeys(oracle.CLIENTS, running(start))
    for t, seen in enumerate(record.rounds):
        [exchange] = oracle.trained_by(seen)
        assert len(seen.cohort) == (4 if t else 8)  # everybody in the first round
        uploads, trained = {}, {}
        for client in seen.cohort:
            net, [steps] = oracle.two_parts({**models[client], **held[client]}, norm), exchange.batches(client)
            train(net, record, steps, oracle.RATE * oracle.DECAY**t)
            uploads[client], held[client] = oracle.parameters(oracle.values(net)), running(oracle.values(net))
            stepped |= {client} if steps else set()
            trained[client] = record.logits(client, oracle.predicting(net))
        if t == 0:  # the final layers say who belongs together; nothing is averaged
            heads = [torch.cat([uploads[k]["head.weight"].flatten(), uploads[k]["head.bias"]]) for k in oracle.CLIENTS]
            apart = [[float((one - other).norm()) for other in heads] for one in heads]
            clusters = linkage.clusters(apart, cut.get("clusters"), cut.get("threshold"))
            head = sum(value.numel() for name, value in common.items() if name.startswith("head"))
            oracle.assert_bytes(seen, oracle.size(common), head, len(seen.cohort))
        else:
            assert linkage.partition(seen.groups) == clusters and len(clusters) > 1
            for members in clusters:
                present = [k for k in members if k in uploads]
                if present:
                    mean = oracle.mean([uploads[k] for k in present], record.samples[present])
                    models |= dict.fromkeys(members, mean)
            oracle.assert_bytes(seen, oracle.size(common), oracle.size(common), len(seen.cohort))
        tested = oracle.with_average_running_values(record, held, stepped) if norm else held
        received = {}
        for client in oracle.CLIENTS:
            oracle.assert_copies(models[client], seen, client)
            net = oracle.two_parts({**models[client], **tested[client]}, norm)
            received[client] = record.logits(client, oracle.predicting(net))
        oracle.assert_predictions(trained, seen, "trained")
        oracle.assert_predictions(received, seen, "received")
