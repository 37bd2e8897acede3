"""What filters do to one vector of one client; randomness is handed in."""

import math

import numpy as np
import torch
from torch import Tensor


def clip_vector(vector: Tensor, norm: float) -> Tensor:
    """The vector, scaled down to an L2 norm where it is longer."""
    return vector * (norm / vector.norm()).clamp(max=1)


def add_noise(vector: Tensor, deviation: float, random: np.random.Generator) -> Tensor:
    """The vector with Gaussian noise of this standard deviation on every number."""
    return vector + deviation * torch.from_numpy(random.standard_normal(len(vector))).to(vector)


def quantised(vector: Tensor, bits: int, random: np.random.Generator) -> Tensor:
    """Every number at one of 2^bits levels from the smallest to the largest, rounded up or down at random.

    A number between two levels goes to each with the chance that makes its expectation the number itself (stochastic
    rounding; Alistarh et al.: QSGD, NeurIPS 2017).
    """
    if not len(vector):
        return vector
    low, high, levels = vector.min(), vector.max(), 2**bits - 1
    step = (high - low).double() / levels
    place = (vector - low).double() / torch.where(step > 0, step, 1.0)
    level = torch.floor(place + torch.from_numpy(random.random(len(vector))).to(place)).clamp(max=levels)
    return (low + level * step).to(vector.dtype)


def largest_entries(vector: Tensor, share: float) -> Tensor:
    """(numbers,) where the largest of a vector stand: this share of them by size, at least one."""
    kept = torch.zeros(len(vector), dtype=torch.bool, device=vector.device)
    if len(vector):
        kept[vector.abs().topk(math.ceil(round(share * len(vector), 9))).indices] = True
    return kept
