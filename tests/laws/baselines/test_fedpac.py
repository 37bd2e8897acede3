"""FedPAC: weights of classifiers by hand and by their conditions, statistics of what was received, centroids."""

import numpy as np
import pytest
import torch

from partwise.methods import find
from partwise.methods.fedpac import least_on_simplex
from tests.support.runs import awkward_federation, network, simulate


def test_weights_of_a_diagonal_are_inverse_to_it():
    """a'Ma is least where M a is the same for all that count: a = (6, 3, 2) / 11 for M = diag(1, 2, 3)."""
    assert np.allclose(least_on_simplex(np.diag([1.0, 2.0, 3.0])), np.array([6, 3, 2]) / 11, rtol=0, atol=1e-12)


def test_weights_satisfy_the_conditions_of_the_optimum():
    random, empty = np.random.default_rng(0), 0
    for _ in range(50):
        h, variance = random.normal(size=(6, 3)), random.uniform(0.01, 2, 6)
        away = h[0] - h
        matrix = np.diag(variance) + away @ away.T
        weights = least_on_simplex(matrix)
        slope = matrix @ weights
        assert weights.min() >= 0 and weights.sum() == pytest.approx(1)
        assert np.allclose(slope[weights > 0], slope[weights > 0][0]) and (slope >= slope[weights > 0][0] - 1e-9).all()
        empty += (weights == 0).sum()
    assert empty  # some classifiers do not help at all


@pytest.mark.parametrize("spread", [0.5, 0.0])
def test_equal_statistics_give_equal_weights(spread):
    assert np.allclose(least_on_simplex(np.diag([spread] * 4)), 0.25, rtol=0, atol=1e-9)


def test_a_client_without_spread_trusts_itself_alone():
    away = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    assert np.allclose(least_on_simplex(np.diag([0.0, 0.1, 0.1]) + away @ away.T), [1, 0, 0], rtol=0, atol=1e-9)


def features(federation, weight, bias, client):
    """The features of a client's training samples under an extractor of one layer, and their labels."""
    own = federation.train[client]
    x = (federation.source.x[own].double() - 127.5) / 127.5
    return torch.relu(x.flatten(1) @ weight.T + bias), federation.source.y[own]


def test_statistics_are_measured_before_training_and_centroids_after_it():
    """h and V = (mean of squared norms - sum of squared h) / n by the received body; class means by the own one."""
    seen = {}

    class Listening(find("fedpac")):
        def aggregate(self, server, updates):
            super().aggregate(server, updates)
            seen.update(updates.extras, **updates.parts)

    federation = awkward_federation()
    run = simulate(Listening, network("mlp"), federation, rounds=1)
    received = [network("mlp").tensors()[f"body.fc1.1.{name}"].detach() for name in ("weight", "bias")]
    everything = torch.zeros(4, 100, dtype=torch.float64)
    for client in range(8):
        z, y = features(federation, *received, client)
        member = torch.nn.functional.one_hot(y, 4).double()
        assert torch.allclose(seen["features"].sums[client], member.T @ z)
        assert torch.equal(seen["features"].counts[client], member.sum(0))
        h = member.T @ z / len(y)
        variance = (z.square().sum(1).mean() - h.square().sum()) / len(y)
        assert torch.allclose(seen["variance"][client], variance)
        own, _ = features(federation, *(seen[f"body.fc1.1.{name}"][client] for name in ("weight", "bias")), client)
        assert torch.allclose(seen["centroids"].sums[client], member.T @ own)
        assert not torch.allclose(own, z)
        everything += member.T @ own
    counts = seen["centroids"].counts.sum(0)
    assert torch.allclose(run.server.memory["centroids"], everything / counts[:, None])


def test_every_client_begins_with_its_own_mix_of_classifiers():
    """With a learning rate of 0 for all rounds but the first, what is left of a client's head is its mix."""
    run = simulate("fedpac", network("mlp"), rounds=2, lr_decay=1e-13)
    mixes = simulate("fedpac", network("mlp"), rounds=1).server.copies["head.weight"].values
    assert len(mixes) == 8 and (mixes[0] - mixes[1]).abs().max() > 1e-6
    for client in range(8):
        held = run.engine.store.own(client, ["head.weight"])["head.weight"]
        assert torch.allclose(held, mixes[client], rtol=0, atol=1e-9)


def test_alignment_pulls_features_to_centroids_and_spares_the_classifier():
    """A weight of 0 leaves the first rounds heads as they are: heads learn before bodies, on cross-entropy alone."""
    loose, tight = (simulate("fedpac", network("mlp"), rounds=2, align_weight=weight) for weight in (0.0, 50.0))
    spread = []
    for run in (loose, tight):
        body = run.server["body"]
        z, y = features(run.federation, body["fc1.1.weight"], body["fc1.1.bias"], 7)
        spread.append(
            sum(float((z[y == label] - run.server.memory["centroids"][label]).square().sum()) for label in range(4))
        )
    assert spread[1] < spread[0]


def test_classifiers_learn_first_and_for_their_own_epochs():
    one, two = (simulate("fedpac", network("mlp"), rounds=1, head_epochs=epochs) for epochs in (1, 2))
    assert (one.server["body"]["fc1.1.weight"] - two.server["body"]["fc1.1.weight"]).abs().max() > 1e-6
