"""FedClust: clusters of final layers by hand, what its first round does and sends, and FedAvg in every cluster."""

from types import SimpleNamespace

import pytest
import torch

from partwise.errors import ConfigError
from partwise.methods.fedclust import FedClust
from partwise.rounds.messages import Updates
from tests.support.runs import CLASSES, awkward_federation, network, simulate

FLOAT = 8  # bytes


def clusters(method, *heads, clients=None, of=None):
    """The clusters that final layers of a weight and a bias make."""
    rows = torch.tensor(heads, dtype=torch.float64)
    clients = list(range(len(rows))) if clients is None else clients
    nothing = torch.zeros(len(rows))
    server = SimpleNamespace(round=0, clients=of or len(rows), memory={}, tell_once=lambda line: None)
    parts = {"head.weight": rows[:, :1], "head.bias": rows[:, 1:]}
    matrix = method.mix(server, Updates(clients, 0, nothing, nothing, nothing, parts, {}))
    assert matrix.shape == (1, len(rows)) and not matrix.any()  # nothing is averaged
    return method.groups(server).tolist()


APART = (0, 0), (3, 4), (0, 1), (30, 40), (30, 42)  # 1, 2 and 5 apart, and then some 45


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0, 0, 0, 1, 1]),  # from 5 to 45 is the largest leap
        ({"clusters": 1}, [0, 0, 0, 0, 0]),
        ({"clusters": 3}, [0, 1, 0, 2, 2]),
        ({"clusters": 5}, [0, 1, 2, 3, 4]),
        ({"threshold": 0.9}, [0, 1, 2, 3, 4]),
        ({"threshold": 1.9}, [0, 1, 0, 2, 3]),
        ({"threshold": 4.5}, [0, 1, 0, 2, 2]),
        ({"threshold": 4.7}, [0, 0, 0, 1, 1]),  # (3, 4) lies 5 and the root of 18 from the others: 4.62 in the mean
        ({"threshold": 99.0}, [0, 0, 0, 0, 0]),
    ],
)
def test_clusters_by_hand(settings, expected):
    assert clusters(FedClust(**settings), *APART) == expected


def test_who_sent_nothing_joins_the_largest_cluster():
    assert clusters(FedClust(), *APART, clients=[1, 3, 4, 5, 6], of=8) == [0, 0, 0, 0, 0, 1, 1, 0]
    assert clusters(FedClust(), *reversed(APART), clients=[1, 3, 4, 5, 6], of=7) == [1, 0, 1, 0, 1, 1, 1]


def test_final_layers_that_are_equal_or_only_two_are_one_cluster():
    assert clusters(FedClust(), *[(1, 2)] * 4) == [0] * 4
    assert clusters(FedClust(), (0, 0), (9, 9)) == [0, 0]
    assert clusters(FedClust(), (0, 0)) == [0]
    assert clusters(FedClust(clusters=3), (0, 0), (0, 0)) == [0, 1]


def test_in_the_first_round_everybody_trains_the_common_model_and_sends_its_final_layer():
    one_batch = {"cluster_epochs": 2, "epochs": 3, "batch": 100}
    run = simulate("fedclust", network("mlp"), rounds=2, participation=0.5, clusters=3, **one_batch)
    first, second = run.history.rows
    assert first["participants"] == list(range(8)) and len(second["participants"]) == 4
    assert "global" not in second
    every = sum(value.numel() for value in network("mlp").tensors().values())
    head = 100 * CLASSES + CLASSES
    assert (first["bytes_down"], first["bytes_up"]) == (8 * FLOAT * every, 8 * FLOAT * head)
    assert (second["bytes_down"], second["bytes_up"]) == (4 * FLOAT * every, 4 * FLOAT * every)
    [(request, updates)] = run.server.asked
    assert updates.steps.tolist() == [3] * 4 and sorted(run.server.groups.unique().tolist()) == [0, 1, 2]
    for name, value in network("mlp").tensors().items():  # what clusters began with
        assert all(torch.equal(copy, value) for copy in request.copies[name].values)


def test_the_first_round_has_epochs_of_its_own():
    one, two = (
        simulate("fedclust", network("mlp"), rounds=2, epochs=2, **settings).history.rows[0]["train_loss"]
        for settings in ({}, {"cluster_epochs": 2})
    )
    fedavg = [simulate("fedavg", network("mlp"), rounds=1, epochs=n).history.rows[0]["train_loss"] for n in (1, 2)]
    assert [one, two] == fedavg


def test_afterwards_every_cluster_is_fedavg_among_its_own():
    """With one cluster, round 2 is that of FedAvg which has not moved in round 1; with one each, everybody is alone."""
    together = simulate("fedclust", network("mlp"), rounds=2, clusters=1)
    alone = simulate("fedclust", network("mlp"), rounds=2, clusters=8)
    [(_, updates)] = together.server.asked
    weights = updates.samples / updates.samples.sum()
    for name, value in updates.parts.items():
        mean = torch.einsum("k,k...->...", weights, value)
        assert torch.allclose(together.server.copies[name].values[0], mean, rtol=0, atol=1e-14)
        assert torch.equal(alone.server.copies[name].values, value)


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="rounds = 1 is not allowed: fedclust finds clusters in the first round"):
        simulate("fedclust", network("mlp"), rounds=1)
    with pytest.raises(ConfigError, match="clusters = 9 is more than the 8 clients"):
        simulate("fedclust", network("mlp"), awkward_federation(), rounds=2, clusters=9)
    with pytest.raises(ConfigError, match="threshold"):
        FedClust(clusters=3, threshold=1.0)


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (1, "all 8 clients are in one cluster: set clusters, or another threshold"),
        (6, ""),  # at most half of them are alone
        (8, "8 of 8 clients are alone in their cluster: set clusters, or another threshold"),
    ],
)
def test_a_clustering_that_says_little_is_told(number, line, caplog):
    simulate("fedclust", network("mlp"), rounds=2, clusters=number)
    told = [record.message for record in caplog.records if "cluster:" in record.message]
    assert told == ([line] if line else [])
