"""Attacks on an upload: they estimate its client's label histogram, and its samples.

They are simple on purpose, so they give a lower bound: better attacks may find more.

References:
    Wainakh, Ventola, Muessig, Keim, Garcia Cordero, Zimmer, Grube, Kersting, Muehlhaeuser: User-Level Label Leakage
    from Gradients in Federated Learning. PETS 2022.
    Geiping, Bauermeister, Droege, Moeller: Inverting Gradients - How Easy Is It to Break Privacy in Federated
    Learning? NeurIPS 2020.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from partwise.network.view import Tensors

SMOOTH = 1e-2  # weight of the differences between neighbouring pixels
RATE = 0.1  # of the search for samples, in standard deviations of a pixel


def shares_from_bias(change: Tensor, rate: float, steps: float) -> Tensor:
    """Return (classes,) estimated shares of classes in a client's samples, from the change of its head's bias.

    A step of cross-entropy moves the bias of class c by rate x (share of c - mean probability of c). The probabilities
    are assumed equal, as those of a model that has learned little are.
    """
    guess = (1 / len(change) + change / max(rate * steps, 1e-300)).clamp(min=0)
    return count_shares(guess)


def count_shares(counts: Tensor) -> Tensor:
    """Return (classes,) counts as shares; equal shares without counts."""
    total = counts.sum()
    return counts / total if total > 0 else torch.full_like(counts, 1 / len(counts))


def total_variation(one: Tensor, two: Tensor) -> float:
    """Return the total variation distance of two histograms: the share of samples with another label."""
    return float((one - two).abs().sum() / 2)


def inverted(
    gradients: Callable[[Tensor], Tensors], seen: Tensors, shape: Sequence[int], steps: int, random: torch.Generator
) -> Tensor:
    """Return (samples, ...) samples whose gradients point where the seen ones do.

    `gradients` returns those of samples. Labels are assumed known: the bias reveals them. The samples are standardised
    as the network takes them.
    """
    x = torch.randn(*shape, generator=random, dtype=next(iter(seen.values())).dtype).requires_grad_()
    search = torch.optim.Adam([x], lr=RATE)
    goal = torch.cat([value.flatten() for value in seen.values()])
    for _ in range(steps):
        made = gradients(x)
        now = torch.cat([made[name].flatten() for name in seen])
        rough = sum((x.diff(dim=axis).abs().mean() for axis in range(2, x.dim())), torch.zeros(()))
        loss = 1 - F.cosine_similarity(now, goal, dim=0) + SMOOTH * rough
        (x.grad,) = torch.autograd.grad(loss, [x])
        search.step()
    return x.detach()
