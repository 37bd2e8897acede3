"""Groups of clients by their label histograms: with labels mixed like all clients', or with similar labels (Fed3+2p).

Groups are numbered by their lowest client. Clients without samples join the smallest groups, after all others.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partwise.errors import ConfigError, DataError, needed, unknown

Histograms = Tensor | NDArray  # (clients, classes): how many samples of each class a client has
Matrix = NDArray[np.float64]
Groups = NDArray[np.int64]  # (clients,): the group of each

RESTARTS = 200  # of a local search among few clients, which then ends at the optimum
FEWEST_RESTARTS = 10  # among many, for Eq. 10; the first search for Eq. 5 begins with greedy groups and may be the only
WORK = 2_500_000  # numbers that a step of all searches reads, times clients: more takes seconds
MOST_GROUPS = 20  # that are tried to find their number
EQUAL_WITHIN = 1e-9  # a smaller difference counts as equal, or a search might never end
SMALLEST_FLOAT = np.finfo(np.float64).tiny  # stands for 0 in a logarithm: 0 log 0 = 0


def group_balanced(histograms: Histograms, groups: int, how: str, random: np.random.Generator) -> Tensor:
    """Return Type-A groups, none empty, whose pooled labels are mixed like those of all clients (Eq. 5).

    All ways but `local_search` make groups of equal sizes, to within one.
    """
    ways: dict[str, Callable[[Matrix, int], Groups]] = {
        "local_search": lambda counts, number: mixed_like_all(counts, number, random, equal=False),
        "equal_sizes": lambda counts, number: mixed_like_all(counts, number, random, equal=True),
        "greedy": fill_groups,
        "random": lambda counts, number: dealt(len(counts), number, random),
    }
    return grouped(histograms, groups, ways, how)


def group_similar(histograms: Histograms, groups: int, how: str, random: np.random.Generator) -> Tensor:
    """Return Type-B groups, none empty, of clients with similar label mixes (Eq. 10)."""
    ways: dict[str, Callable[[Matrix, int], Groups]] = {
        "local_search": lambda counts, number: searched(jensen_shannon(counts), number, random),
        "agglomerative": lambda counts, number: agglomerated(jensen_shannon(counts), number),
        "random": lambda counts, number: dealt(len(counts), number, random),
    }
    return grouped(histograms, groups, ways, how)


def number_of_groups(histograms: Histograms, how: str, random: np.random.Generator) -> int:
    """Return the number of Type-B groups, 2 to 20, with the largest mean silhouette; of equals the smallest.

    Eq. 10 cannot choose it: it falls with every further group, to 0 with a group for each client.
    """
    score = needed("sklearn.metrics", "data").silhouette_score
    counts = checked_counts(histograms)
    counts = counts[counts.sum(1) > 0]
    distances, values = jensen_shannon(counts), {}
    for number in range(2, min(MOST_GROUPS, len(distances) - 1) + 1):
        values[number] = score(distances, group_similar(counts, number, how, random).numpy(), metric="precomputed")
    return max(values, key=values.__getitem__, default=1)


def jensen_shannon(histograms: Histograms) -> Matrix:
    """Return (clients, clients) the divergence (not its root) of their labels in nats; 0 without samples."""
    share = scale_to_shares(checked_counts(histograms))
    below = np.zeros((len(share), len(share)))
    terms = x_log_x(share)
    for client in range(len(share)):  # row by row: all pairs at once would need gigabytes
        middle = x_log_x((share[client] + share[:client]) / 2)
        below[client, :client] = ((terms[client] + terms[:client]) / 2 - middle).sum(1)
    known = share.sum(1) > 0
    return np.maximum(below + below.T, 0) * np.outer(known, known)


def grouped(histograms: Histograms, groups: int, ways: dict[str, Callable[[Matrix, int], Groups]], how: str) -> Tensor:
    """Group the clients that have samples in one of these ways; the others make the sizes more equal."""
    if how not in ways:
        raise ConfigError(unknown("way of grouping", how, ways))
    counts = checked_counts(histograms)
    if not 1 <= groups <= len(counts):
        raise ConfigError(f"{groups} groups cannot be made of {len(counts)} clients: at least 1, at most {len(counts)}")
    known = counts.sum(1) > 0
    enough = known.sum() > groups
    result = np.zeros(len(counts), np.int64)
    result[known] = numbered(ways[how](counts[known], groups)) if enough else np.arange(known.sum())
    sizes = np.bincount(result[known], minlength=groups)
    for client in np.flatnonzero(~known):
        result[client] = sizes.argmin()
        sizes[result[client]] += 1
    return torch.from_numpy(numbered(result))


def numbered(groups: Groups) -> Groups:
    """Return the same groups, numbered by their lowest clients."""
    _, lowest, group = np.unique(groups, return_index=True, return_inverse=True)
    return lowest.argsort().argsort()[group]


def checked_counts(histograms: Histograms) -> Matrix:
    """Return the histograms after checks."""
    counts = np.asarray(histograms.cpu() if isinstance(histograms, Tensor) else histograms, np.float64)
    wrong = np.flatnonzero(~(np.isfinite(counts) & (counts >= 0)).all(1))
    if len(wrong):
        raise DataError(f"the label histogram of client {wrong[0]} holds numbers that are not counts")
    return counts


def scale_to_shares(counts: Matrix) -> Matrix:
    """Scale counts along the last axis to the sum 1; rows without counts stay 0."""
    return counts / np.maximum(counts.sum(-1, keepdims=True), SMALLEST_FLOAT)


def x_log_x(x: Matrix) -> Matrix:
    """Return x log x; 0 at 0."""
    return x * np.log(np.maximum(x, SMALLEST_FLOAT))


def kl_divergence(counts: Matrix, mix: Matrix) -> Matrix:
    """Return KL(counts || mix) along the last axis, sum_r n_r log(n_r / p_r) / n - log n; 0 without counts."""
    total = counts.sum(-1)
    total = np.where(total > 0, total, 1)
    logs = np.maximum(counts, SMALLEST_FLOAT)
    np.log(logs, out=logs)  # in place: fresh memory for every step would take most of the time
    logs -= np.log(np.maximum(mix, SMALLEST_FLOAT))
    return np.einsum("...r,...r->...", counts, logs) / total - np.log(total)


def dealt(clients: int, groups: int, random: np.random.Generator) -> Groups:
    """Return random groups of equal sizes, to within one."""
    return random.permutation(np.arange(clients) % groups)


def fill_groups(counts: Matrix, groups: int) -> Groups:
    """Return greedy groups: to one after another, add the client that brings its labels nearest to those of all.

    (Duan et al. 2021.) Of equals the first is taken.
    """
    mix, left, result = scale_to_shares(counts.sum(0)), np.arange(len(counts)), np.zeros(len(counts), np.int64)
    for group, size in enumerate(np.bincount(np.arange(len(counts)) % groups)):
        pooled = np.zeros_like(mix)
        for _ in range(size):
            after = kl_divergence(pooled + counts[left], mix)
            place = int(np.argmax(after <= after.min() + EQUAL_WITHIN))
            result[left[place]] = group
            pooled += counts[left[place]]
            left = np.delete(left, place)
    return result


def scattered(clients: int, groups: int, random: np.random.Generator) -> Groups:
    """Return random groups of random sizes, none empty."""
    others = random.choice(groups, clients - groups, p=random.dirichlet(np.ones(groups)))
    return random.permutation(np.concatenate([np.arange(groups), others]))


def restarts(clients: int, columns: int, least: int) -> int:
    """Return how many local searches fit into about a second; a step reads this many columns of every client."""
    return max(least, min(RESTARTS, WORK // (clients**2 * columns)))


def mixed_like_all(counts: Matrix, groups: int, random: np.random.Generator, equal: bool) -> Groups:
    """Return the best of some local searches for Eq. 5, the first from greedy groups; `equal` keeps sizes equal."""
    start = dealt if equal else scattered
    others = [start(len(counts), groups, random) for _ in range(1, restarts(len(counts), counts.shape[1], 1))]
    found, value = descended(counts, np.stack([fill_groups(counts, groups), *others]), moves=not equal)
    return first_of_best(found, value)


def descended(counts: Matrix, starts: Groups, moves: bool) -> tuple[Groups, Matrix]:
    """Lower Eq. 5 from every start, (starts, clients), by swaps and moves until none helps; also its values.

    Client after client takes the swap with a client of another group, or the move into another group, that lowers it
    most. A move is a swap with a partner without samples, which every group has. No group loses its last client.
    """
    groups, mix, clients = starts.copy(), scale_to_shares(counts.sum(0)), len(counts)
    row, number = np.arange(len(groups)), groups.max() + 1
    nobody = np.tile(np.arange(number), (len(groups), 1)) if moves else groups[:, :0]
    partners = np.concatenate([counts, np.zeros((nobody.shape[1], counts.shape[1]))])
    pooled = np.eye(number)[groups].swapaxes(1, 2) @ counts  # (starts, groups, classes)
    now, idle, client = kl_divergence(pooled, mix), np.zeros(len(groups), np.int64), 0
    while (idle < clients).any():  # clients in a row that found nothing better
        own, other = groups[:, client].copy(), np.concatenate([groups, nobody], 1)
        change = partners - counts[client]
        after = kl_divergence(pooled[row, own][:, None] + change, mix)
        after += kl_divergence(pooled[row[:, None], other] - change, mix)
        gain = now[row, own][:, None] + now[row[:, None], other] - after
        gain[other == own[:, None]] = 0
        gain[(groups == own[:, None]).sum(1) == 1, clients:] = 0
        best = gain.argmax(1)
        idle += 1
        better = np.flatnonzero(gain[row, best] > EQUAL_WITHIN)
        best, old, new = best[better], own[better], other[better, best[better]]
        swap = best < clients
        groups[better, client] = new
        groups[better[swap], best[swap]] = old[swap]
        pooled[better, old] += change[best]
        pooled[better, new] -= change[best]
        now[better], idle[better] = kl_divergence(pooled[better], mix), 0
        client = (client + 1) % clients
    return groups, now.sum(1)


def searched(distances: Matrix, groups: int, random: np.random.Generator) -> Groups:
    """Return the best of some local searches for Eq. 10 from random groups, the first of equal sizes."""
    clients = len(distances)
    others = [scattered(clients, groups, random) for _ in range(1, restarts(clients, groups, FEWEST_RESTARTS))]
    return first_of_best(*settled(distances, np.stack([dealt(clients, groups, random), *others])))


def settled(distances: Matrix, starts: Groups) -> tuple[Groups, Matrix]:
    """Lower Eq. 10 from every start, (starts, clients), by moves until none helps; also its values.

    The client that gains most moves to the group with the smallest sum of distances to its members.
    """
    groups, row = starts.copy(), np.arange(len(starts))
    sums = distances @ np.eye(groups.max() + 1)[groups]  # (starts, clients, groups)
    while True:
        own = np.take_along_axis(sums, groups[:, :, None], 2)[:, :, 0]
        gain = own - sums.min(2)  # 0 for the last of a group: no group becomes empty
        client = gain.argmax(1)
        better = np.flatnonzero(gain[row, client] > EQUAL_WITHIN)
        if not len(better):
            return groups, own.sum(1)
        client = client[better]
        old, new = groups[better, client], sums[better, client].argmin(1)
        groups[better, client] = new
        sums[better, :, old] -= distances[client]
        sums[better, :, new] += distances[client]


def first_of_best(found: Groups, value: Matrix) -> Groups:
    """Return the first of the groups with the lowest value."""
    return found[int(np.argmax(value <= value.min() + EQUAL_WITHIN))]


def agglomerated(
    distances: Matrix, groups: int | None = None, linkage: str = "average", threshold: float | None = None
) -> Groups:
    """Merge the two nearest groups until this many are left, or none are nearer than `threshold`; return the groups.

    The distance of two groups is the mean of their members' distances (`average`), the smallest (`single`) or the
    largest (`complete`).
    """
    found = clustering(n_clusters=groups, linkage=linkage, distance_threshold=threshold).fit_predict(distances)
    return np.asarray(found, np.int64)


def groups_at_largest_gap(distances: Matrix) -> int:
    """Return the number of groups before the largest gap between the distances at which average linkage merges.

    Without a gap it is 1: at least one pair merges, and then all groups that are as near.
    """
    heights = merge_heights(distances)
    gaps = np.diff(heights)
    return len(gaps) + 1 - int(gaps.argmax()) if (gaps > EQUAL_WITHIN * heights.max()).any() else 1


def half_of_last_merge(distances: Matrix) -> float:
    """Return half of the distance of average linkage's last merge: a threshold for data of any scale."""
    return float(max(merge_heights(distances).max(initial=0) / 2, EQUAL_WITHIN))


def merge_heights(distances: Matrix) -> Matrix:
    """Return the distances at which average linkage merges two groups, in order."""
    if len(distances) < 2:
        return np.zeros(0)
    return np.sort(clustering(n_clusters=1, linkage="average", compute_distances=True).fit(distances).distances_)


def of_all_clients(found: Groups, clients: list[int], number: int) -> Tensor:
    """Return (number,) the cluster of every client; clients that were not compared belong to the largest."""
    groups = torch.full((number,), int(np.bincount(found).argmax()))
    groups[clients] = torch.from_numpy(found)
    return groups


def says_little(groups: Tensor, remedy: str) -> str:
    """Return a warning where all clients are in one cluster, or most are alone in theirs; otherwise ""."""
    sizes = groups.bincount()
    alone = int((sizes == 1).sum())
    if len(groups) > 1 and int(sizes.max()) == len(groups):
        return f"all {len(groups)} clients are in one cluster: {remedy}"
    return (
        f"{alone} of {len(groups)} clients are alone in their cluster: {remedy}" if 2 * alone > len(groups) > 1 else ""
    )


def clustering(**settings: Any) -> Any:
    """Return scikit-learn's agglomerative clustering for a matrix of distances."""
    return needed("sklearn.cluster", "data").AgglomerativeClustering(metric="precomputed", **settings)
