"""Tensors that are close, and rows of a batch."""

import torch
from torch import Tensor


def close(one: Tensor, two: Tensor, within: float = 1e-12) -> bool:
    return one.shape == two.shape and float((one - two).detach().abs().max()) <= within


def rows(number: int, shape: tuple[int, ...], seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(number, *shape, generator=random, dtype=torch.float64) + 1
