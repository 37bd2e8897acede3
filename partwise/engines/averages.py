"""Means over what clients keep, computed block by block."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from partwise.devices import on_device
from partwise.engines.store import Store
from partwise.network.view import Tensors

MEAN_BLOCK = 2**24  # bytes that are summed at a time where clients are averaged


def average_own(
    store: Store, names: Sequence[str], clients: NDArray[np.int64], weights: NDArray[np.float64]
) -> Tensors:
    """Return the weighted mean of some clients' own tensors; clients that never took part count at once."""
    weights = weights / weights.sum()
    drawn, common = ([name for name in names if (name in store.fresh) == fresh] for fresh in (True, False))
    known = store.row[clients] >= 0
    result = total(store, drawn, clients, weights) | total(store, common, clients[known], weights[known])
    for name in common:
        copies = store.initial[name]
        which = np.zeros(len(clients), np.int64) if copies.row is None else copies.row.numpy()[clients]
        counted = np.bincount(which[~known], weights[~known], len(copies.values))
        for copy in np.flatnonzero(counted):
            result[name] += float(counted[copy]) * copies.values[copy].double()
    return {name: result[name].to(store.initial[name].values.dtype) for name in names}


def total(store: Store, names: Sequence[str], clients: NDArray[np.int64], weights: NDArray[np.float64]) -> Tensors:
    """Return the weighted sum of some clients' own tensors, computed block by block."""
    first = {name: store.initial[name].values[0] for name in names}
    result = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in first.items()}
    step = max(1, MEAN_BLOCK // max(1, sum(value.nbytes for value in first.values())))
    for start in range(0, len(clients) if names else 0, step):
        weight = on_device(torch.from_numpy(weights[start : start + step]), store.device)
        for name, rows in store.stacked(clients[start : start + step], names).items():
            result[name] += torch.tensordot(weight, rows.double(), 1)
    return result
