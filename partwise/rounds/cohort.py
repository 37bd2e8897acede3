"""Draw the participants of a round, from all clients or from groups, with the round's own random stream."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from partwise.method import Method, Relay, WithinGroups


@dataclass(frozen=True)
class Participation:
    """How many clients take part in a round: a number where one is set, else a fraction."""

    fraction: float
    number: int | None = None

    @classmethod
    def of(cls, method: Method, clients: int) -> "Participation":
        """Return a method's participation in a federation of `clients` clients."""
        number = method.clients_per_round
        return cls(method.participation if number is None else number / clients, number)

    def among(self, clients: int) -> int:
        """Return how many of these clients take part."""
        return self.number or share_of(clients, self.fraction)


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


def draw_from_groups(
    random: np.random.Generator,
    members: Sequence[NDArray[np.int64]],
    cohort: Relay | WithinGroups,
    participation: Participation,
) -> list[int]:
    """Draw the participants of clients in groups: all of some groups, or some of every group; sorted by number."""
    fraction, sizes = participation.fraction, [len(group) for group in members]
    if cohort.sample == "groups":
        chosen = drawn(random, np.arange(len(members)), share_of(len(members), fraction))
        return sorted(np.concatenate([members[group] for group in chosen]).tolist())
    if isinstance(cohort, Relay):  # every chain is drawn for itself
        numbers = [share_of(size, fraction) for size in sizes]
    else:
        numbers = in_proportion(max(participation.among(sum(sizes)), len(sizes)), sizes)
    return sorted(k for group, number in zip(members, numbers, strict=True) for k in drawn(random, group, number))


def raised_for_groups(members: Sequence[NDArray[np.int64]], participation: Participation) -> str:
    """Return a line for a cohort that is larger than set, because every group needs a participant; '' if it is not."""
    groups, clients = len(members), sum(map(len, members))
    if (wanted := participation.among(clients)) >= groups:
        return ""
    rate = f"{groups} of {clients} clients, {groups / clients:.0%}, take part in a round"
    return f"{rate}, not {wanted}: each of the {groups} groups needs a participant"
