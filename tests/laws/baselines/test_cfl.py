"""CFL: when a cluster splits, into which halves, and that it is FedAvg until then."""

import math
from types import SimpleNamespace

import pytest
import torch

from partwise.methods.cfl import CFL
from partwise.rounds.messages import Updates
from partwise.rounds.mixing import Copies
from tests.helpers import network, simulate

AT_ONCE = {"mean_norm": 1e9, "max_norm": 0.0, "first_split_round": 1}


def clusters(method, changes, clients=None, groups=None, samples=None, round=19):
    """The clusters after a round in which these clients changed their models, two tensors of one number, so far."""
    changes = torch.tensor([each if isinstance(each, tuple) else (each, 0) for each in changes], dtype=torch.float64)
    clients = list(range(len(changes))) if clients is None else clients
    groups = torch.tensor([0] * len(changes) if groups is None else groups)
    before = torch.tensor([[10.0], [-5.0]], dtype=torch.float64)[: groups.max() + 1]  # the models of the clusters
    copies = {name: Copies(before, groups) for name in ("body.weight", "head.weight")}
    server = SimpleNamespace(
        round=round, groups=groups, copies=copies, memory={}, net=lambda: {"*": dict.fromkeys([*copies, "frozen"])}
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
    found = clusters(CFL(), [2, 2, 2, -2, -2, -2], [1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 0, 0, 1], samples)
    assert found == expected


@pytest.mark.parametrize(
    ("changes", "round", "splits"),
    [
        ([2.39, -1.61, 2.39, -1.61], 19, True),
        ([2.41, -1.59, 2.41, -1.59], 19, False),  # the mean is 0.41 long
        ([1.59, -1.59, 1.59, -1.59], 19, False),  # none is longer than 1.6
        ([(1.2, 1.2), (-1.2, -1.2), (1.2, 1.2), (-1.2, -1.2)], 19, True),  # 1.7 long
        ([2, -2, 0], 19, True),  # three are enough, and a change of nothing has no direction
        ([2, -2], 19, False),
        ([2, -2, 2, -2], 18, False),  # round 19
    ],
)
def test_a_cluster_splits_when_its_mean_rests_and_a_client_does_not(changes, round, splits):
    assert len(set(clusters(CFL(), changes, round=round))) == 1 + splits


def test_two_clusters_split_in_one_round():
    found = clusters(CFL(), [2, 2, 2, 2, -2, -2, -2, -2], groups=[0, 1] * 4)
    assert found == [0, 1, 0, 1, 2, 3, 2, 3]


def test_single_linkage_cuts_at_the_largest_angle_between_neighbours_and_complete_by_the_widest():
    """Angles of 38, 40, 42 and 45 degrees lie between neighbours; how long an update is makes no difference."""
    angles = {0: 2, 38: 9, 78: 3, 120: 5, 165: 4}
    changes = [(r * math.cos(math.radians(angle)), r * math.sin(math.radians(angle))) for angle, r in angles.items()]
    assert clusters(CFL(mean_norm=9.0, linkage="single"), changes) == [0, 0, 0, 0, 1]
    assert clusters(CFL(mean_norm=9.0), changes) == [1, 1, 0, 0, 0]  # three have more samples than two
    assert clusters(CFL(mean_norm=9.0), changes, samples=[3, 3, 2, 2, 2]) == [0, 0, 1, 1, 1]


def test_until_a_split_it_is_fedavg_with_plain_means(caplog):
    settings = {"participation": 0.5, "server_momentum": 0.5, "rounds": 3}
    run = simulate("cfl", network("mlp"), **settings)
    fedavg = simulate("fedavg", network("mlp"), aggregation="uniform", **settings)
    for name, copies in fedavg.server.copies.items():
        assert torch.equal(run.server.copies[name].values, copies.values)
    assert "global" in fedavg.history.rows[-1] and "global" not in run.history.rows[-1]
    assert "nothing was split: the last mean update had the norm" in caplog.text


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
    assert not run.server.groups[absent].any() and "nothing was split" not in caplog.text


def test_a_schedule_keeps_the_clusters_when_layers_wake():
    run = simulate("anti", network("cnn"), host="cfl", unfreeze=(0, 1, 2), rounds=3, **AT_ONCE | {"max_norm": 1e-3})
    assert run.server.groups.max() >= 2
