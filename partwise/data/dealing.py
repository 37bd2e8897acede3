"""Samples are dealt out to clients, and each client's own are divided into those for training, testing and validation.

Every purpose has a random stream of its own: another validation share moves no sample from one client to another.
These streams bear the clients' numbers, or their names where they have some: then a client's samples are divided alike
wherever it stands among the others, also alone on its own machine.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partwise.data.draws import Counts, Shares
from partwise.errors import ConfigError
from partwise.streams import stream


def deal(labels: NDArray[np.int64], counts: Counts, seed: int, purpose: str) -> list[Tensor]:
    """Return the indices of each client's samples, sorted: every class is shuffled and dealt out as the table says."""
    owners = np.empty(len(labels), np.int64)
    for label, row in enumerate(counts):
        shuffled = stream(seed, "partition", purpose, label).permutation(np.flatnonzero(labels == label))
        owners[shuffled] = np.repeat(np.arange(len(row)), row)
    return owned(owners, counts.shape[1])


def owned(owners: NDArray[np.int64], clients: int) -> list[Tensor]:
    """Return the indices of each client's samples, sorted, where the owner of every sample is known."""
    ends = np.bincount(owners, minlength=clients).cumsum()
    return [torch.from_numpy(own) for own in np.split(np.argsort(owners, kind="stable"), ends[:-1])]


def match(labels: NDArray[np.int64], shares: Shares, seed: int) -> list[Tensor]:
    """Deal out a test set class by class in these shares."""
    sizes = np.bincount(labels, minlength=len(shares))
    counts = [largest_remainder(row, int(size)) for row, size in zip(shares, sizes, strict=True)]
    return deal(labels, np.stack(counts), seed, "test")


def largest_remainder(shares: NDArray[np.float64], samples: int) -> Counts:
    """Return each client's number of `samples`: its share rounded down, plus one for the largest remainders."""
    exact = shares * samples
    counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: samples - counts.sum()]] += 1
    return counts


def check_shares(test_share: float, train_samples: int | None, validation: float) -> None:
    """Refuse numbers by which no client's samples can be divided."""
    if not 0 < test_share < 1:
        raise ConfigError(f"test_share must lie between 0 and 1, got {test_share}")
    if train_samples is not None and train_samples < 1:
        raise ConfigError(f"train_samples must be at least 1, got {train_samples}")
    if not 0 <= validation < 1:
        raise ConfigError(f"validation must be at least 0 and below 1, got {validation}")


def take_test(
    own: list[Tensor], share: float, seed: int, names: Sequence[str] = ()
) -> tuple[list[Tensor], list[Tensor]]:
    """Each client's samples divided into the rest and this share of them, to the nearest sample, for testing.

    A client of two samples or more gets at least one of either.
    """
    numbers = [max(0, min(len(mine) - 1, max(1, round(share * len(mine))))) for mine in own]
    return take(own, numbers, seed, "test", names)


def take_validation(
    own: list[Tensor], share: float, seed: int, names: Sequence[str] = ()
) -> tuple[list[Tensor], list[Tensor]]:
    """Each client's training samples divided into the rest and this share of them, rounded down, for validation."""
    numbers = [int(round(share * len(mine), 9)) for mine in own]  # 0.29 * 100 is 28.999999999999996, its floor 29
    return take(own, numbers, seed, "validation", names)


def take_train(own: list[Tensor], most: int, seed: int, names: Sequence[str] = ()) -> list[Tensor]:
    """At most so many of each client's training samples; the others are left out."""
    return take(own, [min(most, len(mine)) for mine in own], seed, "train_samples", names)[1]


def take(
    own: list[Tensor], numbers: list[int], seed: int, purpose: str, names: Sequence[str]
) -> tuple[list[Tensor], list[Tensor]]:
    """What is left of each client's samples, and as many as said, drawn from them by lot; both sorted."""
    left, taken = [], []
    for client, (mine, number) in enumerate(zip(own, numbers, strict=True)):
        order = stream(seed, "partition", purpose, names[client] if names else client).permutation(len(mine))
        left.append(mine[np.sort(order[number:])])
        taken.append(mine[np.sort(order[:number])])
    return left, taken
