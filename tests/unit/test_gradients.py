"""Differential test D7: the gradients of the losses that methods share, by finite differences in float64."""

import pytest
import torch
from torch.autograd import gradcheck

from partwise.losses import balanced_logits, squares_from_means, supervised_contrast
from partwise.network.view import Batch
from partwise.tasks import Classes

RANDOM = torch.Generator().manual_seed(7)
FEATURES = torch.randn(6, 4, generator=RANDOM, dtype=torch.float64)
MEANS = torch.randn(3, 4, generator=RANDOM, dtype=torch.float64)
COUNTS = torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64)


def batch(real=6):
    labels = torch.tensor([0, 1, 0, 2, 1, 0])
    mask = torch.arange(6) < real
    return Batch(FEATURES, labels, mask, Classes.numbered(3))


LOSSES = {
    "contrast": lambda z, b: supervised_contrast(z, b, 0.5),
    "balanced softmax": lambda z, b: b.ce(balanced_logits(z[:, :3], COUNTS)),
    "balanced softmax, half": lambda z, b: b.ce(balanced_logits(z[:, :3], COUNTS, 0.5)),
    "distance to class means": lambda z, b: b.mean(squares_from_means(z, MEANS, b).sum(1)),
    "cross-entropy": lambda z, b: b.ce(z[:, :3]),
}


@pytest.mark.parametrize("real", [6, 4])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_has_the_gradient_of_its_values(name, real):
    features = FEATURES.clone().requires_grad_()
    assert gradcheck(lambda z: LOSSES[name](z, batch(real)), features)
    [slope] = torch.autograd.grad(LOSSES[name](features, batch(real)), features)
    assert (slope[real:] == 0).all()  # padded rows have no part in it
