"""Fed3+2p (Eqs. 4 to 13): relays through Type-A groups; then every Type-B group has a filter, every client a head."""

from functools import partial

import pytest
import torch
from torch import nn

from tests.support import oracle

ROUNDS = 3  # of each phase


def network(tensors, task):
    """Extractor, filter, and both heads on the filter's output."""
    *extractor, last = oracle.LAYERS[task]
    parts = {"body": oracle.layers(*extractor), "filter": oracle.layers(last)}
    return oracle.model(tensors, **parts, head=oracle.classifier(task), p_head=oracle.classifier(task))


def predicting(net, head):
    return nn.Sequential(net["body"], net["filter"], net[head])


def train(net, parts, head, record, steps, rate):
    optimizer = oracle.sgd([net[part] for part in parts], rate)
    for x, y in record.mini_batches(steps):
        oracle.step(optimizer, record.criterion(predicting(net, head)(x), y))


def test_fed3p2p():
    assert_fed3p2p("classes")


@pytest.mark.parametrize("task", oracle.OTHERS)
def test_fed3p2p_in_other_tasks(task):
    assert_fed3p2p(task)


def assert_fed3p2p(task):
    rounds = {"rounds_1": ROUNDS, "rounds_2": ROUNDS, "rounds": 2 * ROUNDS}
    record = oracle.Record("fed3p2p", oracle.NETS[task], task, **rounds, coordinators_a=3, coordinators_b=3)
    made = partial(network, task=task)
    server = phase_1(record, made, oracle.values(made(record.initial), "body", "filter", "head"))
    phase_2(record, made, server)


def phase_1(record, network, server):
    """Eqs. 4 and 6 to 9: within a group, each client goes on from where the one before it stopped."""
    for t, seen in enumerate(record.rounds[:ROUNDS]):
        groups = sorted({int(seen.groups[client]) for client in seen.cohort})
        assert len(groups) == 2  # half of three groups, with all their clients
        assert seen.cohort == [k for k in oracle.CLIENTS if int(seen.groups[k]) in groups]
        chains = dict.fromkeys(groups, server)
        trained = {}
        for hop in oracle.trained_by(seen):
            for client in hop.clients:
                group, [steps] = int(seen.groups[client]), hop.batches(client)
                net = network(chains[group])
                train(net, ("body", "filter", "head"), "head", record, steps, oracle.RATE * oracle.DECAY**t)
                chains[group] = oracle.values(net, "body", "filter", "head")
                trained[client] = record.logits(client, predicting(net, "head"))
        samples = [sum(record.samples[k] for k in seen.cohort if seen.groups[k] == group) for group in groups]
        server = oracle.mean([chains[group] for group in groups], torch.stack(samples))
        oracle.assert_copies(server, seen)
        oracle.assert_predictions(trained, seen, "trained")
        everyone = {k: record.logits(k, predicting(network(server), "head")) for k in oracle.CLIENTS}
        oracle.assert_predictions(everyone, seen, "received")
        oracle.assert_bytes(seen, oracle.size(server), oracle.size(server), len(seen.cohort))
        assert_global(record, network(server), seen)
    return server


def phase_2(record, network, server):
    """Eqs. 11 to 13: filters are averaged within groups, personal heads stay; the rest is frozen, rates begin anew."""
    first = record.rounds[ROUNDS]
    drawn = oracle.trained_by(first)[0]
    names = [name for name in record.initial if name.startswith("filter")]
    filters = {int(first.groups[k]): {name: drawn.received(k)[name] for name in names} for k in first.cohort}
    draw, seed = record.run.program.parts.draw, record.run.config.run.seed
    own = {k: draw(["p_head.weight", "p_head.bias"], seed, "fresh", 1, "client", k) for k in oracle.CLIENTS}
    own = {k: {name: value.double() for name, value in tensors.items()} for k, tensors in own.items()}
    fresh = [server, *filters.values()]
    bias = next(name for name in names if name.endswith("bias"))
    assert len({float(tensors[bias][0]) for tensors in fresh}) == 4, "one draw for each of three groups"
    assert len({float(tensors["p_head.bias"][0]) for tensors in own.values()}) == 8, "and one for each client"
    for t, seen in enumerate(record.rounds[ROUNDS:]):
        [exchange] = oracle.trained_by(seen)
        uploads, trained = {}, {}
        for client in seen.cohort:
            net, [steps] = (
                network({**server, **filters[int(seen.groups[client])], **own[client]}),
                exchange.batches(client),
            )
            train(net, ("filter", "p_head"), "p_head", record, steps, oracle.RATE * oracle.DECAY**t)
            uploads[client], own[client] = oracle.values(net, "filter"), oracle.values(net, "p_head")
            trained[client] = record.logits(client, predicting(net, "p_head"))
        for group in filters:
            members = [client for client in seen.cohort if seen.groups[client] == group]
            assert members
            filters[group] = oracle.mean([uploads[k] for k in members], record.samples[members])
        received = {}
        for client in oracle.CLIENTS:
            group = int(seen.groups[client])
            net = network({**server, **filters[group], **own[client]})
            received[client] = record.logits(client, predicting(net, "p_head"))
            oracle.assert_copies(filters[group], seen, client)
        oracle.assert_predictions(trained, seen, "trained")
        oracle.assert_predictions(received, seen, "received")
        oracle.assert_bytes(seen, oracle.size(filters[0]), oracle.size(filters[0]), len(seen.cohort))
        assert_global(record, network(server), seen)  # with the filter of phase 1
    for client in oracle.CLIENTS:
        oracle.assert_close(own[client], record.own(client, own[client]), f"client {client}")


@torch.no_grad()
def assert_global(record, net, seen):
    """The global model on the global test set."""
    logits = predicting(net, "head")(record.x[record.global_test])
    oracle.assert_close({"logits": logits}, {"logits": seen.global_predictions}, f"round {seen.record.round}, global")
