"""What was handed in to be predicted, as the run's data set would hold it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partwise.errors import DataError, short


@dataclass(frozen=True)
class Given:
    """Samples as the data set holds them, and what each is called."""

    x: Tensor
    names: Sequence[str]

    def __post_init__(self) -> None:
        if not len(self.x):
            raise DataError("there are no samples to predict")


def numbered(x: Tensor) -> Given:
    """Samples that have no names but their numbers, from 0."""
    return Given(x, list(map(str, range(len(x)))))


@dataclass(frozen=True)
class Arrays:
    """Numbers as they are."""

    shape: tuple[int, ...]

    def __call__(self, samples: Any) -> Given:
        wanted = f"(samples, {', '.join(map(str, self.shape))})"
        if isinstance(samples, str | Path):
            raise DataError(f"this model takes arrays {wanted}, not a file")
        try:
            x = samples.detach().cpu() if isinstance(samples, Tensor) else torch.tensor(np.array(samples, np.float32))
        except (TypeError, ValueError):
            raise DataError(f"samples must be an array of numbers, got {short(repr(samples))}") from None
        if tuple(x.shape[1:]) != self.shape:
            raise DataError(f"samples must be {wanted}, got {tuple(x.shape)}")
        return numbered(x.float())
