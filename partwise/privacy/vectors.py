"""Filters of one vector of one client, with a given random generator."""

import math

import numpy as np
import torch
from torch import Tensor


def clip_vector(vector: Tensor, norm: float) -> Tensor:
    """Return the vector, scaled down to an L2 norm if it is longer."""
    return vector * (norm / vector.norm()).clamp(max=1)


def add_noise(vector: Tensor, deviation: float, random: np.random.Generator) -> Tensor:
    """Return the vector plus Gaussian noise of this standard deviation."""
    return vector + deviation * torch.from_numpy(random.standard_normal(len(vector))).to(vector)


def quantised(vector: Tensor, bits: int, random: np.random.Generator) -> Tensor:
    """Return every number as one of 2^bits levels from the smallest to the largest, rounded up or down at random.

    The chance of each level makes its expectation the number itself (stochastic rounding; Alistarh et al.: QSGD,
    NeurIPS 2017).
    """
    if not len(vector):
        return vector
    low, high, levels = vector.min(), vector.max(), 2**bits - 1
    step = (high - low).double() / levels
    place = (vector - low).double() / torch.where(step > 0, step, 1.0)
    level = torch.floor(place + torch.from_numpy(random.random(len(vector))).to(place)).clamp(max=levels)
    return (low + level * step).to(vector.dtype)


def largest_entries(vector: Tensor, share: float) -> Tensor:
    """Return (numbers,) a mask of this share of a vector's numbers, the largest by size, at least one."""
    kept = torch.zeros(len(vector), dtype=torch.bool, device=vector.device)
    if len(vector):
        kept[vector.abs().topk(math.ceil(round(share * len(vector), 9))).indices] = True
    return kept
