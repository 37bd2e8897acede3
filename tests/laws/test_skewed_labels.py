"""Class weights and balanced sampling, for clients whose labels are skewed."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from partwise.network.view import Batch
from partwise.rounds.batches import Recipe, equally_likely, shuffled
from partwise.rounds.client import balanced_weights
from partwise.tasks import Classes
from tests.support.parity import BLOCKS, assert_engines_agree
from tests.support.runs import awkward_federation, network, simulate
from tests.support.states import distance


def test_weights_are_those_of_scikit_learn():
    """n / (classes that are there x n_c): of 6, 3, 0 and 1 samples 10/18, 10/9, 0 and 10/3."""
    counts = torch.tensor([6.0, 3.0, 0.0, 1.0], dtype=torch.float64)
    assert torch.allclose(balanced_weights(counts), torch.tensor([10 / 18, 10 / 9, 0, 10 / 3], dtype=torch.float64))
    assert float((balanced_weights(counts) * counts).sum() / counts.sum()) == pytest.approx(1)


def test_weighted_cross_entropy_is_torchs_and_padding_has_no_weight():
    random = torch.Generator().manual_seed(0)
    logits, y = torch.randn(5, 3, generator=random, dtype=torch.float64), torch.tensor([0, 2, 1, 2, 0])
    weights = torch.tensor([0.5, 2.0, 1.5], dtype=torch.float64)
    b = Batch(logits, y, torch.tensor([True, True, True, True, False]), Classes.numbered(3), class_weights=weights)
    assert torch.allclose(b.ce(logits), nn.CrossEntropyLoss(weight=weights)(logits[:4], y[:4]))
    assert float(b._replace(mask=torch.zeros(5, dtype=torch.bool)).ce(logits)) == 0


def test_a_clients_weighted_step_by_hand():
    """One client, one full batch: the head's bias moves by lr times the mean of weighted residuals."""
    federation = awkward_federation((0, 0, 0, 17))
    run = simulate("fedavg", network("mlp"), federation, rounds=1, batch=32, class_weights="balanced")
    x = (federation.source.x[federation.train[3]].double() - 127.5) / 127.5
    y = federation.source.y[federation.train[3]]
    initial = {name: value.detach() for name, value in network("mlp").tensors().items()}
    z = torch.relu(x.flatten(1) @ initial["body.fc1.1.weight"].T + initial["body.fc1.1.bias"])
    logits = z @ initial["head.weight"].T + initial["head.bias"]
    weights = balanced_weights(torch.bincount(y, minlength=4).double())[y][:, None]
    slope = (weights * (logits.softmax(1) - F.one_hot(y, 4))).sum(0) / weights.sum()
    assert torch.allclose(run.server["head"]["bias"], initial["head.bias"] - 0.05 * slope)
    assert weights.max() > weights.min()


@pytest.mark.parametrize("setting", [{"class_weights": "balanced"}, {"sampling": "balanced"}])
def test_they_change_runs_of_skewed_clients_and_are_the_same_in_every_engine(setting):
    plain, skewed = (simulate("fedper", network("mlp"), rounds=2, **more) for more in ({}, setting))
    assert distance(plain, skewed) > 1e-6
    assert_engines_agree("fedper", "mlp", BLOCKS, **setting)


def test_a_client_with_one_class_needs_no_weights():
    federation = awkward_federation((0, 20, 0, 0))
    plain, weighted = (
        simulate("fedavg", network("mlp"), federation, rounds=2, class_weights=how) for how in ("equal", "balanced")
    )
    assert distance(plain, weighted) < 1e-12


def test_every_class_is_as_likely_as_the_others_and_an_epoch_as_long():
    labels = np.array([0] * 90 + [3] * 9 + [5])
    chances = equally_likely(labels)
    assert [chances[labels == label].sum() for label in (0, 3, 5)] == pytest.approx([1 / 3] * 3)
    table = shuffled(np.arange(100), Recipe(10, 60), 0, 1, labels=labels)
    drawn = labels[table.samples.ravel()]
    assert table.steps == 600 and len(drawn) == 6000
    expected = 2000
    assert all(abs((drawn == label).sum() - expected) < 6 * np.sqrt(6000 * 2 / 9) for label in (0, 3, 5))
