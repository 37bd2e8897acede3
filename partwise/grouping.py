"""Groups of clients by their label histograms: groups mixed like all together, or of clients alike (Fed3+2p).

Groups are numbered by their lowest client. A client without samples fits everywhere: when all others have their
groups, it falls to the smallest.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partwise.errors import ConfigError, DataError, needed, unknown

Histograms = Tensor | NDArray  # (clients, classes): how many samples of each class a client has
Table = NDArray[np.float64]
Groups = NDArray[np.int64]  # (clients,): the group of each

RESTARTS = 10  # of the local search
MOST_GROUPS = 20  # that are tried where their number is to be found
ROUNDING = 1e-9  # a smaller difference is none, or a search might never end
TINY = np.finfo(np.float64).tiny  # stands for 0 in a logarithm: 0 log 0 = 0


def balanced(histograms: Histograms, groups: int, how: str, random: np.random.Generator) -> Tensor:
    """Type-A: groups of equal sizes, to within one, whose pooled labels are mixed like those of all (Eq. 5)."""
    ways: dict[str, Callable[[Table, int], Groups]] = {
        "greedy_swap": lambda counts, number: swapped(counts, filled(counts, number)),
        "greedy": filled,
        "random": lambda counts, number: dealt(len(counts), number, random),
    }
    return grouped(histograms, groups, ways, how)


def alike(histograms: Histograms, groups: int, how: str, random: np.random.Generator) -> Tensor:
    """Type-B: groups, none of them empty, of clients whose labels are mixed alike (Eq. 10)."""
    ways: dict[str, Callable[[Table, int], Groups]] = {
        "local_search": lambda counts, number: searched(jensen_shannon(counts), number, random),
        "agglomerative": lambda counts, number: agglomerated(jensen_shannon(counts), number),
        "random": lambda counts, number: dealt(len(counts), number, random),
    }
    return grouped(histograms, groups, ways, how)


def number_of_groups(histograms: Histograms, how: str, random: np.random.Generator) -> int:
    """The number of Type-B groups, 2 to 20, with the largest mean silhouette (scikit-learn's); of equals the smallest.

    Eq. 10 cannot choose it: it falls with every group more, to 0 with one for each client.
    """
    score = needed("sklearn.metrics", "data").silhouette_score
    counts = table(histograms)
    counts = counts[counts.sum(1) > 0]
    distances, values = jensen_shannon(counts), {}
    for number in range(2, min(MOST_GROUPS, len(distances) - 1) + 1):
        values[number] = score(distances, alike(counts, number, how, random).numpy(), metric="precomputed")
    return max(values, key=values.__getitem__, default=1)


def kullback_leibler_objective(histograms: Histograms, groups: Tensor | Groups) -> float:
    """Eq. 5: the sum over groups of KL(labels of the group || labels of all), in nats; 0 for one without samples."""
    counts, groups = table(histograms), np.asarray(groups)
    pooled = np.stack([counts[groups == group].sum(0) for group in np.unique(groups)])
    return float(divergence(pooled, shares(counts.sum(0))).sum())


def jensen_shannon_objective(histograms: Histograms, groups: Tensor | Groups) -> float:
    """Eq. 10: the sum of the divergences of i and j over all i, j of one group, so that every pair counts twice."""
    groups = np.asarray(groups)
    return float(jensen_shannon(histograms)[groups[:, None] == groups].sum())


def jensen_shannon(histograms: Histograms) -> Table:
    """(clients, clients): the divergence (not its root) of their labels in nats; 0 for a client without samples."""
    share = shares(table(histograms))
    below = np.zeros((len(share), len(share)))
    terms = x_log_x(share)
    for client in range(len(share)):  # row by row: all pairs at once would need gigabytes
        middle = x_log_x((share[client] + share[:client]) / 2)
        below[client, :client] = ((terms[client] + terms[:client]) / 2 - middle).sum(1)
    known = share.sum(1) > 0
    return np.maximum(below + below.T, 0) * np.outer(known, known)


def grouped(histograms: Histograms, groups: int, ways: dict[str, Callable[[Table, int], Groups]], how: str) -> Tensor:
    """Group the clients that have samples in one of these ways; the others make the sizes more equal."""
    if how not in ways:
        raise ConfigError(unknown("way of grouping", how, ways))
    counts = table(histograms)
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
    """The same groups in the order of their lowest clients."""
    _, lowest, group = np.unique(groups, return_index=True, return_inverse=True)
    return lowest.argsort().argsort()[group]


def table(histograms: Histograms) -> Table:
    """The histograms, checked."""
    counts = np.asarray(histograms.cpu() if isinstance(histograms, Tensor) else histograms, np.float64)
    wrong = np.flatnonzero(~(np.isfinite(counts) & (counts >= 0)).all(1))
    if len(wrong):
        raise DataError(f"the label histogram of client {wrong[0]} holds numbers that are no counts")
    return counts


def shares(counts: Table) -> Table:
    """Counts along the last axis, scaled to the sum 1; where there are none they stay 0."""
    return counts / np.maximum(counts.sum(-1, keepdims=True), TINY)


def x_log_x(x: Table) -> Table:
    return x * np.log(np.maximum(x, TINY))


def divergence(counts: Table, mix: Table) -> Table:
    """KL(counts || mix) along the last axis, sum_r n_r log(n_r / p_r) / n - log n; 0 where there are no counts."""
    total = counts.sum(-1)
    total = np.where(total > 0, total, 1)
    logs = np.maximum(counts, TINY)
    np.log(logs, out=logs)  # in place: fresh memory for every step would take most of the time
    logs -= np.log(np.maximum(mix, TINY))
    return np.einsum("...r,...r->...", counts, logs) / total - np.log(total)


def dealt(clients: int, groups: int, random: np.random.Generator) -> Groups:
    """Random groups of equal sizes, to within one."""
    return random.permutation(np.arange(clients) % groups)


def filled(counts: Table, groups: int) -> Groups:
    """Group after group, add the client that brings its labels nearest to those of all (Duan et al. 2021).

    Of equals the first is taken.
    """
    mix, left, result = shares(counts.sum(0)), np.arange(len(counts)), np.zeros(len(counts), np.int64)
    for group, size in enumerate(np.bincount(np.arange(len(counts)) % groups)):
        pooled = np.zeros_like(mix)
        for _ in range(size):
            after = divergence(pooled + counts[left], mix)
            place = int(np.argmax(after <= after.min() + ROUNDING))
            result[left[place]] = group
            pooled += counts[left[place]]
            left = np.delete(left, place)
    return result


def swapped(counts: Table, groups: Groups) -> Groups:
    """Client after client, swap it with the one of another group that lowers Eq. 5 most, until no swap lowers it."""
    groups, mix, client, idle = groups.copy(), shares(counts.sum(0)), 0, 0
    pooled = np.stack([counts[groups == group].sum(0) for group in range(groups.max() + 1)])
    now = divergence(pooled, mix)
    while idle < len(counts):  # clients in a row that found nobody to swap with
        own, change = groups[client], counts - counts[client]
        after = divergence(pooled[own] + change, mix) + divergence(pooled[groups] - change, mix)
        gain = np.where(groups == own, 0, now[own] + now[groups] - after)
        partner = int(gain.argmax())
        idle += 1
        if gain[partner] > ROUNDING:
            other = groups[partner]
            groups[client], groups[partner] = other, own
            pooled[own] += change[partner]
            pooled[other] -= change[partner]
            now, idle = divergence(pooled, mix), 0
        client = (client + 1) % len(counts)
    return groups


def searched(distances: Table, groups: int, random: np.random.Generator) -> Groups:
    """The first of the best among some local searches from random groups."""
    found = [settled(distances, dealt(len(distances), groups, random)) for _ in range(RESTARTS)]
    within = np.array([distances[each[:, None] == each].sum() for each in found])
    return found[int(np.argmax(within <= within.min() + ROUNDING))]


def settled(distances: Table, groups: Groups) -> Groups:
    """Move whoever gains most to the group with the smallest sum of distances to its members, until nobody gains."""
    groups, clients = groups.copy(), np.arange(len(groups))
    sums = distances @ np.eye(groups.max() + 1)[groups]  # (clients, groups)
    while True:
        gain = sums[clients, groups] - sums.min(1)  # 0 for the last of a group: no group becomes empty
        client = int(gain.argmax())
        if gain[client] <= ROUNDING:
            return groups
        old, new = groups[client], int(sums[client].argmin())
        groups[client] = new
        sums[:, old] -= distances[client]
        sums[:, new] += distances[client]


def agglomerated(distances: Table, groups: int) -> Groups:
    """Average linkage: join the two groups with the smallest mean distance until so many are left."""
    cluster = needed("sklearn.cluster", "data")
    found = cluster.AgglomerativeClustering(groups, metric="precomputed", linkage="average").fit_predict(distances)
    return np.asarray(found, np.int64)
