"""Losses and server-side training that several methods share."""

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from partwise.network.view import Batch, ClassRows

if TYPE_CHECKING:
    from partwise.rounds.server import Server


def supervised_contrast(features: Tensor, b: Batch, temperature: float) -> Tensor:
    """Return the supervised contrastive loss (Khosla et al. 2020, Eq. 2) of one view a sample, on unit vectors.

    -1/|P(i)| sum over p in P(i) of [u_i.u_p / t - log sum over a in A(i) of exp(u_i.u_a / t)], the mean over the batch;
    P(i) are the others of the same class, A(i) all others. Samples without positives add 0 and count in the mean.
    """
    features = features.float() if features.dtype is torch.bfloat16 else features  # as b.ce does
    unit = F.normalize(features, dim=1)
    others = b.mask[:, None] & b.mask & ~torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    b.task.require_classes("supervised_contrast")
    positives = (others & (b.y[:, None] == b.y)).to(unit.dtype)
    likeness = (unit @ unit.T / temperature).masked_fill(~others, torch.finfo(unit.dtype).min)
    log_share = torch.where(others, likeness - likeness.logsumexp(1, keepdim=True), torch.zeros_like(likeness))
    return b.mean(-(positives * log_share).sum(1) / (positives.sum(1) + 1e-6))


def balanced_logits(logits: Tensor, counts: Tensor, strength: float = 1.0) -> Tensor:
    """Return logits of the balanced softmax (Ren et al. 2020, Eq. 4): add `strength` times log n_c.

    A class without samples gets -inf, and so no gradient; at strength 0 nothing is added at all (0^0 is 1).
    """
    return logits + torch.xlogy(strength, counts)


def class_means(rows: ClassRows, before: Tensor | None = None) -> Tensor:
    """Return (classes, size) means of each class over all clients by samples; without samples `before`, or NaN."""
    sums, counts = rows.sums.sum(0), rows.counts.sum(0)
    before = torch.full_like(sums, math.nan) if before is None else before
    return torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], before)


def squares_from_means(features: Tensor, means: Tensor, b: Batch) -> Tensor:
    """Return (rows, size) squared differences from the mean of each row's class; 0 without a mean (NaN)."""
    mean = means[b.y]
    return (features - mean.nan_to_num()).square() * ~mean.isnan()


def train_on_class_means(
    server: "Server", part: str, rows: ClassRows, lr: float, batch: int, epochs: int, random: np.random.Generator
) -> None:
    """Train a part of the server's on pairs (a client's mean vector of a class, the class), in random order, by SGD.

    On the CPU, wherever clients train: these are hundreds of steps of a few numbers, in which a GPU only waits.
    """
    client, label = torch.nonzero(rows.counts.cpu() > 0, as_tuple=True)
    vectors = rows.mean.detach().cpu()[client, label]
    before, net = server[part], server.net()
    tensors = {name: value.detach().cpu() for name, value in before.items()}
    for _ in range(epochs):
        for chosen in torch.from_numpy(random.permutation(len(label))).split(batch):
            leaves = {name: value.requires_grad_() for name, value in tensors.items()}
            trained = net.with_tensors({f"{part}.{name}": value for name, value in leaves.items()})
            with torch.enable_grad():
                loss = F.cross_entropy(getattr(trained, part)(vectors[chosen]), label[chosen])
            grads = dict(zip(leaves, torch.autograd.grad(loss, tuple(leaves.values())), strict=True))
            tensors = {name: value.detach() - lr * grads[name] for name, value in leaves.items()}
    server[part] = {name: value.to(before[name].device) for name, value in tensors.items()}
