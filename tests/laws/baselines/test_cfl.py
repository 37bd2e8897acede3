"""CFL: when a cluster splits, into which halves, and that it is FedAvg until then."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from partwise import Federation, Source
from partwise.methods.cfl import CFL
from partwise.rounds.messages import Updates
from partwise.rounds.mixing import Copies
from tests.support.runs import network, simulate

AT_ONCE = {"epsilon_1": 1e9, "epsilon_2": 0.0, "first_split_round": 1}


def clusters(method, changes, clients=None, groups=None, samples=None, round=20, largest=4.0):
    """The clusters after a round in which these clients changed their models, two tensors of one number, so far.

    `largest` is the norm of the longest mean update before it.
    """
    changes = torch.tensor([each if isinstance(each, tuple) else (each, 0) for each in changes], dtype=torch.float64)
    clients = list(range(len(changes))) if clients is None else clients
    groups = torch.tensor([0] * len(changes) if groups is None else groups)
    before = torch.tensor([[10.0], [-5.0]], dtype=torch.float64)[: groups.max() + 1]  # the models of the clusters
    copies = {name: Copies(before, groups) for name in ("body.weight", "head.weight")}
    server = SimpleNamespace(
        round=round,
        groups=groups,
        copies=copies,
        memory={"largest": torch.tensor(largest, dtype=torch.float64)},
        net=lambda: {"*": dict.fromkeys([*copies, "frozen"])},
        weights=lambda updates: updates.samples.double() ** (method.aggregation == "samples"),
    )
    parts = {name: before[groups[clients]] + changes[:, [at]] for at, name in enumerate(copies)}
    parts["head.running_mean"] = 100 * torch.arange(len(changes))[:, None]  # no part of an update
    weights = torch.tensor([1.0] * len(changes) if samples is None else samples)
    return method.clusters(server, Updates(clients, round, weights, weights, weights, parts, {})).tolist()


@pytest.mark.parametrize(
    ("samples", "expected"),
    [([1, 1, 9, 3, 3, 9], [0, 2, 2, 1, 0, 0, 1]), ([3, 3, 9, 1, 1, 9], [0, 0, 0, 1, 2, 2, 1])],
)
def test_halves_are_those_of_the_clients_themselves_and_absent_ones_follow_more_samples(samples, expected):
    """Clients 1 and 2 pull to one side, 4 and 5 to the other; 3 and 6 have a cluster of their own, too small to split.

    Client 0 is absent: it stays with 4 and 5 where they have more samples, else with 1 and 2.
    """
    found = clusters(CFL(), [3, 3, 3, -3, -3, -3], [1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 0, 0, 1], samples)
    assert found == expected


@pytest.mark.parametrize(
    ("changes", "round", "splits"),
    [
        ([2.39, -1.61, 2.39, -1.61], 20, True),
        ([2.41, -1.59, 2.41, -1.59], 20, False),  # the mean is 0.41 long
        ([1.59, -1.59, 1.59, -1.59], 20, False),  # none is longer than 1.6
        ([(1.2, 1.2), (-1.2, -1.2), (1.2, 1.2), (-1.2, -1.2)], 20, True),  # 1.7 long
        ([2, -2, 0], 20, True),  # three are enough, and a change of nothing has no direction
        ([2, -2], 20, False),
        ([2, -2, 2, -2], 19, False),  # round 20
    ],
)
def test_a_cluster_splits_when_its_mean_rests_and_a_client_does_not(changes, round, splits):
    """The longest mean update was 4: eps 1 is 0.4, and eps 2 is 1.6."""
    assert len(set(clusters(CFL(epsilon_2=0.4), changes, round=round))) == 1 + splits


def test_the_scale_is_the_longest_mean_update_of_the_run_this_round_included():
    """Cluster 0 moves on by 20 in the mean: beside that the 1.2 of cluster 1 is rest, and its updates are long."""
    changes, groups = [20, 20, 20, 14.2, -12.8, 2.2], [0, 0, 0, 1, 1, 1]
    assert clusters(CFL(), changes, groups=groups) == [0, 0, 0, 1, 2, 1]
    assert clusters(CFL(), changes[3:]) == [0, 0, 0]


@pytest.mark.parametrize(("aggregation", "splits"), [("uniform", True), ("samples", False)])
def test_the_mean_is_by_the_weights_in_use(aggregation, splits):
    """Plain, three updates have the mean 0.1; by samples that of the first is half of it, and the mean 1.25."""
    found = clusters(CFL(aggregation=aggregation), [2.4, -2.3, 0.2], samples=[2, 1, 1])
    assert len(set(found)) == 1 + splits


@pytest.mark.parametrize(("gamma_max", "splits"), [(0.38, True), (0.39, False)])
def test_halves_that_are_too_much_alike_stay_together(gamma_max, splits):
    """By single linkage 120 and 165 degrees are nearest: the root of (1 - cos 45) / 2 is sin 22.5 = 0.3827."""
    directions = [math.radians(angle) for angle in (40, 80, 120, 165)]
    changes = [(9 * math.cos(angle), 9 * math.sin(angle)) for angle in directions]
    found = clusters(CFL(epsilon_1=9.0, gamma_max=gamma_max), changes)
    assert found == ([0, 0, 0, 1] if splits else [0, 0, 0, 0])


def test_two_clusters_split_in_one_round():
    found = clusters(CFL(), [3, 3, 3, 3, -3, -3, -3, -3], groups=[0, 1] * 4)
    assert found == [0, 1, 0, 1, 2, 3, 2, 3]


def test_single_linkage_cuts_at_the_largest_angle_between_neighbours_and_complete_by_the_widest():
    """Angles of 38, 40, 42 and 45 degrees lie between neighbours; how long an update is makes no difference."""
    angles = {0: 2, 38: 9, 78: 3, 120: 5, 165: 4}
    changes = [(r * math.cos(math.radians(angle)), r * math.sin(math.radians(angle))) for angle, r in angles.items()]
    assert clusters(CFL(epsilon_1=9.0), changes) == [0, 0, 0, 0, 1]
    assert clusters(CFL(epsilon_1=9.0, linkage="complete"), changes) == [
        1,
        1,
        0,
        0,
        0,
    ]  # three have more samples than two
    assert clusters(CFL(epsilon_1=9.0, linkage="complete"), changes, samples=[3, 3, 2, 2, 2]) == [0, 0, 1, 1, 1]


def test_until_a_split_it_is_fedavg_with_plain_means(caplog):
    settings = {"participation": 0.5, "server_momentum": 0.5, "rounds": 3}
    run = simulate("cfl", network("mlp"), **settings)
    fedavg = simulate("fedavg", network("mlp"), aggregation="uniform", **settings)
    for name, copies in fedavg.server.copies.items():
        assert torch.equal(run.server.copies[name].values, copies.values)
    assert "global" in fedavg.history.rows[-1] and "global" not in run.history.rows[-1]
    assert "all 8 clients are in one cluster: set epsilon_1" in caplog.text


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_after_a_split_each_half_has_the_mean_of_its_own(participation, caplog):
    run = simulate("cfl", network("mlp"), rounds=1, participation=participation, **AT_ONCE)
    [(_, updates)] = run.server.asked
    groups = run.server.groups[updates.clients]
    assert sorted(groups.unique().tolist()) == [0, 1]
    for name, copies in run.server.copies.items():
        for group in (0, 1):
            mean = updates.parts[name][groups == group].mean(0)
            assert torch.allclose(copies.values[group], mean, rtol=0, atol=1e-14)
    absent = [client for client in range(8) if client not in updates.clients]
    assert not run.server.groups[absent].any() and "in one cluster" not in caplog.text


def test_a_schedule_keeps_the_clusters_when_layers_wake():
    run = simulate("anti", network("cnn"), host="cfl", unfreeze=(0, 1, 2), rounds=3, **AT_ONCE | {"epsilon_2": 1e-3})
    assert run.server.groups.max() >= 2


def planted(swapped):
    """Six clients of four classes, as many samples of each in the mean; 1, 3 and 5 have classes 2 and 3 swapped."""
    random = np.random.default_rng(5)
    y, centres = random.integers(0, 4, (6, 44)), random.uniform(0, 255, (4, 1, 8, 8))
    x = np.clip(centres[y] + random.normal(0, 20, (6, 44, 1, 8, 8)), 0, 255).astype(np.uint8)
    if swapped:
        y[1::2] = np.where(y[1::2] >= 2, 5 - y[1::2], y[1::2])
    place = torch.arange(y.size).view(6, 44)
    samples, labels = torch.from_numpy(x.reshape(-1, 1, 8, 8)), torch.from_numpy(y.reshape(-1))
    source = Source("planted", samples, labels, 4, len(labels), (127.5,), (127.5,), "cnn-digits")
    return Federation(source, list(place[:, :40]), list(place[:, 40:]), place[:, 40:].reshape(-1))


@pytest.mark.parametrize(("swapped", "expected"), [(True, [0, 1, 0, 1, 0, 1]), (False, [0] * 6)])
def test_with_the_defaults_planted_clusters_are_split_at_a_rate_of_0_01_and_nothing_else_is(swapped, expected):
    training = {"lr": 0.01, "momentum": 0.9, "batch": 40, "epochs": 10, "rounds": 24, "eval_every": 24}
    run = simulate("cfl", network("mlp"), planted(swapped), **training)
    assert run.server.groups.tolist() == expected
