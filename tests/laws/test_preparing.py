"""What happens between download and training: phases that prepare, moves that overwrite, shares of the samples."""

import numpy as np
import pytest
import torch
from torch import nn

from partwise import EVERYONE, LOCAL, UPLOAD, ConfigError, Method, Move, Phase
from partwise.runs.observers import Observer
from tests.support.runs import awkward_federation, network, simulate


class Counting(Method):
    """Counts the samples that its clients go through before they train."""

    share = {"*": UPLOAD, "passed": LOCAL}
    predict_global = None

    def build(self, parts, sizes):
        return parts.add(
            "passed", nn.ParameterDict({"samples": nn.Parameter(torch.zeros(()), requires_grad=False)}), False
        )

    def prepare(self):
        return Phase(Move("passed", update="count"), epochs=lambda times: times, sample_range=(0.0, 0.5))

    def count(self, net, b, me):
        return {"passed.samples": net["passed"]["samples"] + b.sum(torch.ones_like(b.x[:, 0, 0, 0]))}


def counted(run):
    return [float(run.engine.store.own(client, ["passed.samples"])["passed.samples"]) for client in range(8)]


def test_a_client_prepares_by_how_often_it_took_part_and_keeps_what_it_learned():
    federation = awkward_federation()
    run = simulate(Counting, network("mlp"), federation, rounds=3)
    halves = [int(len(own) / 2 + 0.5) for own in federation.train]
    assert counted(run) == [half * (0 + 1 + 2) for half in halves]


def test_who_is_absent_does_not_get_older():
    run = simulate(Counting, network("mlp"), rounds=3, participation=0.5)
    times, federation = run.server.times, awkward_federation()
    assert times.sum() == 12 and times.max() > times.min()
    halves = [int(len(own) / 2 + 0.5) for own in federation.train]
    assert counted(run) == [half * n * (n - 1) / 2 for half, n in zip(halves, times.tolist(), strict=True)]


def test_tests_prepare_on_a_copy():
    runs = [simulate(Counting, network("mlp"), rounds=3, eval_every=every) for every in (1, 3)]
    assert counted(runs[0]) == counted(runs[1])


class Watching(Observer):
    def __init__(self):
        self.rounds = []

    def round(self, seen):
        [exchange] = seen.exchanges
        self.rounds.append({client: exchange.batches(client) for client in seen.cohort})


class Halves(Method):
    share = {"*": LOCAL}
    predict_global = None

    def prepare(self):
        return Phase(Move("head"), sample_range=(0.0, 0.8))

    def phases(self):
        return Phase(Move("*"), sample_range=(0.8, 1.0))


def test_shares_of_the_samples_are_disjoint_and_the_same_in_every_round():
    watching, federation = Watching(), awkward_federation()
    simulate(Halves, network("mlp"), federation, rounds=2, observers=[watching])
    for client, own in enumerate(federation.train):
        rounds = [
            [np.sort(np.concatenate([step.ravel() for step in steps] or [[]])) for steps in seen[client]]
            for seen in watching.rounds
        ]
        first, second = rounds[0]
        assert np.array_equal(np.sort([*first, *second]), np.sort(own))
        assert len(first) == int(0.8 * len(own) + 0.5)
        assert all(np.array_equal(*pair) for pair in zip(*rounds, strict=True))


@pytest.mark.parametrize("sample_range", [(0.5, 0.5), (-0.1, 1.0), (0.0, 1.5)])
def test_a_share_that_is_none_is_refused(sample_range):
    with pytest.raises(ConfigError, match="is no range of samples"):
        Phase(Move("*"), sample_range=sample_range)


class Overwriting(Counting):
    def count(self, net, b, me):
        return {"head.bias": net["head"]["bias"]}


def test_a_move_overwrites_its_own_parts_alone():
    with pytest.raises(ConfigError, match=r"'head\.bias'"):
        simulate(Overwriting, network("mlp"), rounds=2)


class Describing(Method):
    def describe(self, b):
        largest = {"largest": b.x.flatten(1).max(0).values, "pixel": b.raw.flatten(1).max(0).values}
        return {**largest, "labels": b.one_hot().sum(0), "samples": b.mask.sum()}

    def begin(self, server, run):
        server.memory["told"] = run("describe", EVERYONE)


@pytest.mark.parametrize("engine", ["loop", "vector"])
def test_clients_describe_all_their_samples_at_once_and_need_no_network_for_it(engine):
    federation = awkward_federation()
    run = simulate(Describing, network("mlp"), federation, engine, rounds=1)
    told = run.server.memory["told"]
    for client, own in enumerate(federation.train):
        x = (federation.source.x[own].double() - 127.5) / 127.5
        assert torch.equal(told.extras["largest"][client], x.flatten(1).max(0).values)
        assert torch.equal(told.extras["pixel"][client], federation.source.x[own].flatten(1).max(0).values)
        assert torch.equal(told.extras["labels"][client], torch.bincount(federation.source.y[own], minlength=4))
    assert told.extras["samples"].tolist() == [len(own) for own in federation.train]
    ledger = run.server.ledger.as_dict()["once"]
    assert ledger["down"] == {} and ledger["up"] == {
        "largest": 8 * 64 * 8,
        "pixel": 8 * 64 * 4,
        "labels": 8 * 4 * 4,
        "samples": 8 * 4,
    }
