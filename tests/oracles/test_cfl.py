"""CFL (the paper's algorithm): a cluster that has settled while its clients pull apart is cut in two, by cosines."""

import itertools
import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.support import linkage, oracle

EAGER = {"rounds": 5, "epsilon_1": 0.95, "epsilon_2": 0.1, "first_split_round": 2}


def train(net, record, steps, rate):
    optimizer = oracle.sgd(net, rate)
    for x, y in record.mini_batches(steps):
        oracle.step(optimizer, cross_entropy(net["head"](net["body"](x)), y))


def flat(tensors):
    return torch.cat([value.flatten() for value in tensors.values()])


def cosine(one, other):
    return float(one @ other) / (float(one.norm() * other.norm()) + 1e-300)


def bipartitions(members):
    """All ways to cut a cluster in two, neither half empty."""
    first, *others = members
    for size in range(len(others)):
        for more in itertools.combinations(others, size):
            yield [first, *more], [k for k in others if k not in more]


def halves(changes, how):
    """Return, of all bipartitions, the one whose largest cosine between the halves is smallest; or complete linkage.

    Return that largest cosine, too.
    """
    alike = {(i, j): cosine(changes[i], changes[j]) for i in changes for j in changes}

    def across(pair):
        return max(alike[i, j] for i in pair[0] for j in pair[1])

    if how == "single":
        pair = min(bipartitions(list(changes)), key=across)
    else:  # two clusters are as near as their least similar members
        pair = [[k] for k in changes]
        while len(pair) > 2:
            a, b = max(
                itertools.combinations(range(len(pair)), 2),
                key=lambda ab: min(alike[i, j] for i in pair[ab[0]] for j in pair[ab[1]]),
            )
            pair = [own for at, own in enumerate(pair) if at not in (a, b)] + [pair[a] + pair[b]]
    return pair, across(pair)


@pytest.mark.parametrize(
    ("how", "settings"),
    [
        ("complete", {}),
        ("single", {"aggregation": "samples"}),
        ("single", {"gamma_max": 0.9}),  # no cosine below 1 - 2 x 0.81: nothing is split
        ("complete", {"participation": 1.0}),
        ("single", {"participation": 1.0}),
    ],
)
def test_cfl(how, settings):
    settings = {**EAGER, **settings}
    record = oracle.Record("cfl", linkage=how, **settings)
    start = oracle.values(oracle.two_parts(record.initial, norm=False))
    models, clusters = dict.fromkeys(oracle.CLIENTS, start), [list(oracle.CLIENTS)]
    weights = record.samples if settings.get("aggregation") == "samples" else torch.ones_like(record.samples)
    largest = 0.0  # norm of a mean update in this run
    for t, seen in enumerate(record.rounds):
        [exchange] = oracle.trained_by(seen)
        changes, trained = {}, {}
        for client in seen.cohort:
            net, [steps] = oracle.two_parts(models[client], norm=False), exchange.batches(client)
            train(net, record, steps, oracle.RATE * oracle.DECAY**t)
            changes[client] = {name: value - models[client][name] for name, value in oracle.values(net).items()}
            trained[client] = record.logits(client, oracle.predicting(net))
        present = [[k for k in members if k in changes] for members in clusters]
        rest = [
            float(flat(oracle.mean([changes[k] for k in own], weights[own])).norm()) if own else 0.0 for own in present
        ]
        largest, after = max(largest, *rest), []
        for members, own, mean in zip(clusters, present, rest, strict=True):
            longest = max((float(flat(changes[k]).norm()) for k in own), default=0.0)
            settled = mean < settings["epsilon_1"] * largest and longest > settings["epsilon_2"] * largest
            if t + 1 >= settings["first_split_round"] and len(own) > 2 and settled:
                pair, across = halves({k: flat(changes[k]) for k in own}, how)
                if settings.get("gamma_max", 0) < math.sqrt((1 - across) / 2):
                    _, fewer = sorted(pair, key=lambda half: -float(record.samples[half].sum()))
                    after += [sorted({*members} - {*fewer}), sorted(fewer)]  # who is absent stays with more samples
                    continue
            after.append(members)
        clusters = after
        for members in clusters:
            own = [k for k in members if k in changes]
            if own:
                mean = oracle.mean([changes[k] for k in own], weights[own])
                models |= {k: {name: models[k][name] + mean[name] for name in mean} for k in members}
        assert linkage.partition(seen.groups) == sorted(clusters)
        received = {}
        for client in oracle.CLIENTS:
            oracle.assert_copies(models[client], seen, client)
            received[client] = record.logits(client, oracle.predicting(oracle.two_parts(models[client], norm=False)))
        oracle.assert_predictions(trained, seen, "trained")
        oracle.assert_predictions(received, seen, "received")
    assert (len(clusters) > 2) == ("gamma_max" not in settings)
