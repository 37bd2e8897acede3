"""Splits of each client's own samples into training, test and validation sets.

Every purpose has its own random stream: another validation share does not move samples between clients. Streams are
named by the clients' numbers, or by their names where they have some: a named client's samples are split the same way
in any federation, and alone on its own machine. Samples of one group, such as the visits of one patient, stay on one
side of every split.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from partwise.data.source import Source
from partwise.errors import ConfigError
from partwise.streams import stream


def check_shares(test_share: float, train_samples: int | None, validation: float) -> None:
    """Refuse shares and numbers by which no client's samples can be split."""
    if not 0 < test_share < 1:
        raise ConfigError(f"test_share must lie between 0 and 1, got {test_share}")
    if train_samples is not None and train_samples < 1:
        raise ConfigError(f"train_samples must be at least 1, got {train_samples}")
    if not 0 <= validation < 1:
        raise ConfigError(f"validation must be at least 0 and below 1, got {validation}")


def split_samples(
    source: Source, own: list[Tensor], share: float, seed: int, names: Sequence[str] = ()
) -> tuple[list[Tensor], list[Tensor]]:
    """Return by client the samples for training, and those for testing: by date where the source has one."""
    if source.late is not None:
        return [mine[~source.late[mine]] for mine in own], [mine[source.late[mine]] for mine in own]
    return split_test(own, share, seed, names, source.groups)


def split_test(
    own: list[Tensor], share: float, seed: int, names: Sequence[str] = (), groups: Tensor | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Return by client the rest of its samples, and this share of them for testing, to the nearest sample or group.

    A client of two samples or groups or more gets at least one of either; with one, it has none for testing.
    """
    numbers = [max(0, min(len(mine) - 1, max(1, round(share * len(mine))))) for mine in own]
    return split_off(own, numbers, seed, "test", names, groups)


def split_validation(
    own: list[Tensor], share: float, seed: int, names: Sequence[str] = (), groups: Tensor | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Return by client the rest of its training samples, and this share of them for validation.

    The number is rounded down; of groups, it is that of whole groups which is nearest to it.
    """
    numbers = [int(round(share * len(mine), 9)) for mine in own]  # 0.29 * 100 is 28.999999999999996, its floor 29
    return split_off(own, numbers, seed, "validation", names, groups)


def limit_train(own: list[Tensor], most: int, seed: int, names: Sequence[str] = ()) -> list[Tensor]:
    """Return by client at most this many of its training samples; the others are left out."""
    return split_off(own, [min(most, len(mine)) for mine in own], seed, "train_samples", names)[1]


def split_off(
    own: list[Tensor], numbers: list[int], seed: int, purpose: str, names: Sequence[str], groups: Tensor | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Return by client the rest of its samples, and the wanted number, drawn at random; both sorted."""
    left, taken = [], []
    for client, (mine, number) in enumerate(zip(own, numbers, strict=True)):
        draw = stream(seed, "partition", purpose, names[client] if names else client)
        if groups is None:
            order = draw.permutation(len(mine))
        else:
            order, number = order_of_groups(groups[mine].numpy(), number, draw)
        left.append(mine[np.sort(order[number:])])
        taken.append(mine[np.sort(order[:number])])
    return left, taken


def order_of_groups(groups: NDArray[np.int64], number: int, draw: np.random.Generator) -> tuple[NDArray[np.int64], int]:
    """Return samples in a random order, group after group, and how many to take: whole groups, near `number`.

    Where `number` is not 0, at least one group is taken and at least one is left; of a single group, nothing is taken.
    """
    _, firsts, member = np.unique(groups, return_index=True, return_inverse=True)
    drawn = np.argsort(firsts)[draw.permutation(len(firsts))]  # groups of one sample each are drawn as samples are
    ends = np.bincount(member)[drawn].cumsum()[:-1]
    taken = int(ends[np.abs(ends - number).argmin()]) if number and len(ends) else 0
    return np.argsort(np.argsort(drawn)[member], kind="stable"), taken
