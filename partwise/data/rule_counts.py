"""Numbers of samples of each class for every client, by a rule: tables of counts are drawn until one fits."""

from collections.abc import Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from partwise.data.rules import Rule
from partwise.errors import ConfigError
from partwise.streams import stream

MOST_DRAWS = 10_000

CountTable = NDArray[np.int64]  # (classes, clients): how many samples of a class a client gets
Shares = NDArray[np.float64]  # (classes, clients): the shares of a class that a matched test set follows
Candidates = Iterator[tuple[CountTable, Shares]]


def counts_by_rule(
    rule: Rule, sizes: CountTable, clients: int, seed: int, least: int, cap: bool, balance: bool, what: str
) -> tuple[CountTable, Shares]:
    """Draw the first table of this rule that gives every client `least` samples; `sizes` are the classes' sizes."""
    draw = stream(seed, "partition", "table")
    if rule.kind == "dir":
        return large_enough(dirichlet(draw, sizes, clients, rule.alpha, cap), least, what)
    if rule.kind == "pat":
        return large_enough(pathological(draw, sizes, clients, rule.classes, least, balance), least, what)
    if rule.kind == "quantity":
        whole = dirichlet(draw, sizes.sum(keepdims=True), clients, rule.alpha)  # as if all were of one class
        counts = evenly(draw, sizes, large_enough(whole, least, what)[0][0])
    else:
        counts = hsu(draw, sizes, clients, rule.alpha) if rule.kind == "hsu" else iid(draw, sizes, clients)
    return counts, counts / np.maximum(sizes, 1)[:, None]


def large_enough(tables: Candidates, least: int, what: str) -> tuple[CountTable, Shares]:
    """Return the first drawn table that gives every client `least` samples."""
    best, smallest = -1, 0
    for counts, shares in islice(tables, MOST_DRAWS):
        held = counts.sum(axis=0)
        client = int(held.argmin())
        if held[client] >= least:
            return counts, shares
        if held[client] > best:
            best, smallest = int(held[client]), client
    raise ConfigError(
        f"{what}: in up to {MOST_DRAWS:,} draws some client always had fewer than {least} samples; the best draw left "
        f"client {smallest} with {best}; take fewer clients, a more even rule or a smaller min_samples"
    )


def dirichlet(
    draw: np.random.Generator, sizes: CountTable, clients: int, alpha: float, cap: bool = False
) -> Candidates:
    """Draw shares q_r ~ Dir(alpha) for each class r, and cut the class at the cumulative q_r."""
    shape = (len(sizes), clients)
    # With the cap a class depends on what the classes before it gave; without it all are drawn at once.
    steps = [slice(label, label + 1) for label in range(len(sizes))] if cap else [slice(None)]
    while True:
        counts, shares, held = np.zeros(shape, np.int64), np.zeros(shape), np.zeros(clients, np.int64)
        gamma, uniform = np.log(draw.standard_gamma(alpha + 1, shape)), np.log1p(-draw.random(shape))
        for rows in steps:
            full = held >= sizes.sum() / clients
            if not full.all():  # all full: nothing is left to give
                uniform[rows, full] = -np.inf
            shares[rows] = softmax(gamma[rows], uniform[rows], alpha)
            counts[rows] = cut_classes(shares[rows], sizes[rows])
            held += counts[rows].sum(axis=0)
        yield counts, shares


def softmax(gamma: Shares, uniform: Shares, alpha: float) -> Shares:
    """Return exp(gamma + uniform / alpha), each row scaled to the sum 1.

    Gamma(alpha) is Gamma(alpha + 1) * uniform ** (1 / alpha): in logarithms a tiny alpha gives no 0 / 0.
    """
    with np.errstate(over="ignore"):  # the quotient may be -infinity, but not at the row's largest
        logarithms = gamma + (uniform - uniform.max(axis=-1, keepdims=True)) / alpha
    weights = np.exp(logarithms - logarithms.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def cut_classes(shares: Shares, sizes: CountTable) -> CountTable:
    """Cut each class at its cumulative shares, rounded down."""
    cumulative = shares.cumsum(axis=1)
    cumulative /= cumulative[:, -1:]  # the end is exactly 1, or a last client without a share would get a sample
    cuts: CountTable = (cumulative * sizes[:, None]).astype(np.int64)
    return np.diff(cuts, axis=1, prepend=0)


def pathological(
    draw: np.random.Generator, sizes: CountTable, clients: int, classes: int, least: int, balance: bool
) -> Candidates:
    """Give each client `classes` classes, and each class to as equal a number of clients as possible."""
    held_by: list[list[int]] = [[] for _ in sizes]
    for client in draw.permutation(clients).tolist():
        # The classes that the fewest hold so far, by lot among equals: their numbers never differ by more than one.
        for label in np.argsort([len(holders) + draw.random() for holders in held_by])[:classes]:
            held_by[label].append(client)
    for label, holders in enumerate(held_by):
        draw.shuffle(holders)
        if sizes[label] < len(holders):
            raise ConfigError(
                f"partition 'pat:{classes}' among {clients} clients: class {label} has {sizes[label]} samples "
                f"for the {len(holders)} clients that hold it; take fewer clients or classes per client"
            )
    while True:
        counts = np.zeros((len(sizes), clients), np.int64)
        for label, holders in enumerate(held_by):
            average, rest = divmod(int(sizes[label]), len(holders))
            if balance:
                counts[label, holders] = average
                counts[label, holders[:rest]] += 1
            else:
                lowest = min(average, int(np.ceil(max(1, average / 10, least / len(sizes)))))
                counts[label, holders[:-1]] = draw.integers(lowest, average, len(holders) - 1, endpoint=True)
                counts[label, holders[-1]] = sizes[label] - counts[label].sum()
        yield counts, counts / sizes[:, None]
        if balance:  # another draw of the same sizes would be no larger
            return


def hsu(draw: np.random.Generator, sizes: CountTable, clients: int, alpha: float) -> CountTable:
    """Give every client equally many samples, to within one, from its own class mix (Hsu et al. 2019).

    The mix of a client is q ~ Dir(alpha * p), where p are the shares of the classes in the data set. Clients draw
    without replacement, one after the other: a class that is used up leaves the mix, which is scaled to the sum 1.
    """
    counts, left = np.zeros((len(sizes), clients), np.int64), sizes.copy()
    prior = np.maximum(sizes, 1) / sizes.sum()  # classes without samples have left every mix before the first draw
    average, rest = divmod(int(sizes.sum()), clients)
    for place, client in enumerate(draw.permutation(clients)):
        gamma = np.log(draw.standard_gamma(alpha * prior + 1))
        uniform = np.log1p(-draw.random(len(sizes))) / prior
        missing = average + (place < rest)
        while missing:
            free = np.flatnonzero(left)
            # What is beyond the rest of a class is drawn again: the same as one sample after the other, but quicker.
            mix = softmax(gamma[free], uniform[free], alpha)
            drawn = np.minimum(draw.multinomial(missing, mix), left[free])
            counts[free, client] += drawn
            left[free] -= drawn
            missing -= drawn.sum()
    return counts


def evenly(draw: np.random.Generator, sizes: CountTable, held: CountTable) -> CountTable:
    """Give clients of the sizes `held` the class mix of the data set; no cell is off by more than one."""
    exact = np.outer(sizes, held)
    counts: CountTable = exact // sizes.sum()
    left = sizes - counts.sum(axis=1)
    # The rest, one sample at most to a cell: who takes from the classes with most left never ends without a choice.
    for client, missing in enumerate(held - counts.sum(axis=0)):
        chosen = np.argsort(draw.random(len(sizes)) - left)[:missing]
        counts[chosen, client] += 1
        left[chosen] -= 1
    return counts


def iid(draw: np.random.Generator, sizes: CountTable, clients: int) -> CountTable:
    """Give every client equally many samples, to within one, whatever their classes."""
    owners = draw.permutation(np.arange(sizes.sum()) % clients)
    cells = np.repeat(np.arange(len(sizes)) * clients, sizes) + owners
    return np.bincount(cells, minlength=len(sizes) * clients).reshape(len(sizes), clients)
