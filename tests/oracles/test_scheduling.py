"""Vanilla and Anti layer scheduling on FedBABU (Algorithm 1): base layers unfreeze in turn, the head never trains."""

from functools import partial

import pytest
from torch import nn

from tests.support import oracle

FINE_TUNING = 2  # epochs


def predicting(net):
    return nn.Sequential(net["body"], net["head"])


def train(net, modules, record, steps, rate):
    optimizer = oracle.sgd(modules, rate)
    for x, y in record.mini_batches(steps):
        oracle.step(optimizer, record.criterion(predicting(net)(x), y))


@pytest.mark.parametrize("method", ["vanilla", "anti"])
def test_schedule(method):
    assert_schedule(method, "classes")


@pytest.mark.parametrize("task", oracle.OTHERS)
def test_vanilla_in_other_tasks(task):
    assert_schedule("vanilla", task)


def assert_schedule(method, task):
    layers, network = oracle.LAYERS[task], partial(oracle.two_parts, norm=False, task=task)
    settings = {"unfreeze": tuple(range(len(layers))), "finetune_epochs": FINE_TUNING, "host": "fedbabu"}
    record = oracle.Record(method, oracle.NETS[task], task, **settings)
    order = layers if method == "vanilla" else layers[::-1]
    server = oracle.values(network(record.initial))
    for t, seen in enumerate(record.rounds):
        [exchange] = oracle.trained_by(seen)
        open_layers, rate = order[: t + 1], oracle.RATE * oracle.DECAY**t  # layer k trains in round t where t >= t_k
        uploads, trained = [], {}
        for client in seen.cohort:
            net = network(server)
            [steps] = exchange.batches(client)
            train(net, [getattr(net["body"], layer) for layer in open_layers], record, steps, rate)
            uploads.append(oracle.values(net, *(f"body.{layer}." for layer in open_layers)))
            trained[client] = record.logits(client, predicting(net))
        server = {**server, **oracle.mean(uploads, record.samples[seen.cohort])}
        oracle.assert_copies(server, seen)
        oracle.assert_predictions(trained, seen, "trained")
        received = {k: record.logits(k, predicting(network(server))) for k in oracle.CLIENTS}
        oracle.assert_predictions(received, seen, "received")
        oracle.assert_bytes(seen, oracle.size(uploads[0]), oracle.size(uploads[0]), len(seen.cohort))
    adapted = {}
    for client in oracle.CLIENTS:  # every one, on a copy, all parts, at the rate of the round just finished
        net = network(server)
        [steps] = record.rounds[-1].evaluations["method_adapted"].batches(client)
        assert sum(step.shape[1] for step in steps) == FINE_TUNING * len(record.train[client])
        train(net, [net], record, steps, rate)
        adapted[client] = record.logits(client, predicting(net))
    oracle.assert_predictions(adapted, record.rounds[-1], "method_adapted")
    frozen = {name: value for name, value in server.items() if name.startswith("head")}
    assert all((value == record.initial[name]).all() for name, value in frozen.items())
