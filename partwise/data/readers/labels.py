"""Labels as numbers 0, 1, ..., and the names of their classes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partwise.errors import DataError

CLASS_LIMIT = 1000  # more different labels are no classes


def as_classes(values: NDArray[Any], where: str, place: Callable[[int], str]) -> tuple[Tensor, tuple[str, ...]]:
    """Return labels 0 .. classes-1 and the names of the classes; refuse values that cannot be labels."""
    check_whole(values, where, place)
    y, names = encode_labels(values, where)
    if len(names) > CLASS_LIMIT:
        raise DataError(
            f"{where}: {len(names):,} different labels; classification allows at most {CLASS_LIMIT:,} classes"
        )
    if len(names) < 2:
        raise DataError(f"{where}: there must be at least two classes, got {', '.join(map(repr, names)) or 'none'}")
    return y, names


def check_whole(values: NDArray[Any], where: str, place: Callable[[int], str]) -> None:
    """Refuse labels that are fractions."""
    if values.dtype.kind == "f":
        for row in np.flatnonzero(~np.isfinite(values) | (values != np.floor(values)))[:1].tolist():
            raise DataError(f"{where}: {values[row]} ({place(row)}) is not a whole number; labels must be classes")


def encode_labels(values: NDArray[Any], where: str) -> tuple[Tensor, tuple[str, ...]]:
    """Return each value's rank among the sorted distinct ones, and these as texts: 2 before 10, but '10' before '2'."""
    try:
        different, codes = np.unique(values, return_inverse=True)
    except (TypeError, ValueError):
        raise DataError(
            f"{where}: labels of several types, which cannot be sorted; use numbers only or texts only"
        ) from None
    whole = (int(value) if isinstance(value, float) and value.is_integer() else value for value in different.tolist())
    return torch.from_numpy(codes), tuple(map(str, whole))
