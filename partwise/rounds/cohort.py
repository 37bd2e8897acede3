"""Who takes part in a round: shares of clients and of groups, and draws from the round's own stream."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def share_of(number: int, share: float) -> int:
    """Return max(1, round(share x number)), with halves rounded up."""
    return max(1, int(round(share * number, 9) + 0.5))  # 0.29 x 50 is 14.5, whatever floats make of it


def in_proportion(total: int, sizes: Sequence[int]) -> list[int]:
    """Spread a total over groups by their sizes, at least one each; of equal claims the first group's comes first.

    One by one, each goes to the group that is farthest below its share: where a share is one or more in every group,
    that is the method of the largest remainder, and no group ever gets more than it has.
    """
    every, number = np.array(sizes), np.ones(len(sizes), np.int64)
    for _ in range(total - len(sizes)):
        number[(total * every - number * every.sum()).argmax()] += 1
    return number.tolist()


def drawn(random: np.random.Generator, among: NDArray[np.int64], number: int) -> list[int]:
    """Draw some of the clients (or groups) without repetition; return them sorted by number."""
    return sorted(random.choice(among, min(number, len(among)), replace=False).tolist())


def members_of(groups: NDArray[np.int64], eligible: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the eligible clients of each group that has some; `groups` is (clients,) the group of every client."""
    own = groups[eligible]
    by_group, sizes = own.argsort(kind="stable"), np.bincount(own)
    return np.split(eligible[by_group], sizes[sizes > 0].cumsum()[:-1])
