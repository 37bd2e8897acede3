"""How the samples of a data set are divided among clients.

A rule draws tables that say how many samples of each class every client gets; the first table that fits is carried out.
Every purpose has a random stream of its own: another validation share moves no sample from one client to another.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partwise.data.checks import check
from partwise.data.rules import Rule, parse_rule
from partwise.data.source import Federation, Source
from partwise.errors import ConfigError, unknown
from partwise.streams import stream

DRAWS = 10_000
CLIENTS = 20  # where nobody says how many
SPLITS = ("merged", "original")

Counts = NDArray[np.int64]  # (classes, clients): how many samples of a class a client gets
Shares = NDArray[np.float64]  # (classes, clients): the shares of a class that a matched test set follows


def partition(
    source: Source,
    rule: str,
    clients: int | None,
    seed: int,
    *,
    split: str = "auto",
    cap: bool = False,
    min_samples: int | None = None,
    balance: bool = False,
    test_share: float | None = None,
    train_samples: int | None = None,
    validation: float = 0.0,
) -> Federation:
    """The source divided among `clients` by `rule`: `dir:ALPHA`, `pat:K` or `iid`.

    split        `merged`: the original training and test samples together are divided among the clients, then each
                 client's own into `test_share` for testing, to the nearest sample, and the rest for training; a client
                 of two samples or more gets at least one of either. `original`: the training set is divided, and the
                 test set class by class in the same shares.
    min_samples  no client gets fewer, counted before its own are divided any further; smaller draws are repeated, in
                 the end refused. 10 for `dir`, 1 for the others; with 0, `dir` may leave a client empty.
    cap          `dir` gives no more classes to a client that already holds an even share of all samples.
    balance      `pat` divides each class evenly among the clients that hold it.
    validation   this share of each client's training samples, rounded down, is set apart.
    """
    rule = source.partition if rule == "auto" else rule
    split = source.split if split == "auto" else split
    test_share = source.test_share if test_share is None else test_share
    clients = CLIENTS if clients is None else clients
    parsed = parse_rule(rule)
    least = min_samples if min_samples is not None else 10 if parsed.kind == "dir" else 1
    _check_settings(parsed, clients, split, cap, least, balance, test_share, validation)
    labels = check(source).y.numpy()
    pool = labels if split == "merged" else labels[: source.train]
    _check_fit(rule, parsed, clients, least, len(pool), source.classes)

    draw, sizes = stream(seed, "partition", "table"), np.bincount(pool, minlength=source.classes)
    if parsed.kind == "dir":
        tables = _dirichlet(draw, sizes, clients, parsed.alpha, cap)
    elif parsed.kind == "pat":
        tables = _pathological(draw, sizes, clients, parsed.classes, least, balance)
    else:
        tables = _iid(draw, sizes, clients)
    counts, shares = _large_enough(tables, least, f"partition '{rule}' among {clients} clients")

    train = _deal(pool, counts, seed, "train")
    if split == "merged":
        train, test = _take(train, [_test_samples(len(own), test_share) for own in train], seed, "test")
        global_test = torch.cat(test).sort().values
    else:
        held_out = labels[source.train :]
        matched = [largest_remainder(row, int((held_out == label).sum())) for label, row in enumerate(shares)]
        test = [own + source.train for own in _deal(held_out, np.stack(matched), seed, "test")]
        global_test = torch.arange(source.train, len(labels))
    train, held_back = _take(train, [_floor(validation * len(own)) for own in train], seed, "validation")
    return Federation(source, train, test, global_test, held_back, rule)


def _check_settings(
    rule: Rule,
    clients: int,
    split: str,
    cap: bool,
    least: int,
    balance: bool,
    test_share: float,
    validation: float,
) -> None:
    """Refuse what no data set could mend."""
    if split not in SPLITS:
        raise ConfigError(unknown("split", split, SPLITS))
    if clients < 1:
        raise ConfigError(f"clients must be at least 1, got {clients}")
    if least < 0:
        raise ConfigError(f"min_samples must be at least 0, got {least}")
    if not 0 < test_share < 1:
        raise ConfigError(f"test_share must lie between 0 and 1, got {test_share}")
    if not 0 <= validation < 1:
        raise ConfigError(f"validation must be at least 0 and below 1, got {validation}")
    if cap and rule.kind != "dir":
        raise ConfigError(f"cap belongs to the partition 'dir', not to '{rule.kind}'")
    if balance and rule.kind != "pat":
        raise ConfigError(f"balance belongs to the partition 'pat', not to '{rule.kind}'")


def _check_fit(text: str, rule: Rule, clients: int, least: int, samples: int, classes: int) -> None:
    """Refuse what this data set cannot give."""
    if clients * max(least, 1) > samples:
        raise ConfigError(
            f"{clients:,} clients of at least {max(least, 1)} samples need {clients * max(least, 1):,}, "
            f"but there are {samples:,} to divide; take fewer clients or a smaller min_samples"
        )
    if rule.classes > classes:
        raise ConfigError(f"partition '{text}' is not allowed; the data set has {classes} classes")
    if rule.kind == "pat" and clients * rule.classes < classes:
        raise ConfigError(f"partition '{text}': {clients} clients of {rule.classes} classes cannot hold all {classes}")


def _dirichlet(
    draw: np.random.Generator, sizes: Counts, clients: int, alpha: float, cap: bool
) -> Iterator[tuple[Counts, Shares]]:
    """For each class r shares q_r ~ Dir(alpha), and the class cut at the cumulative q_r."""
    shape = (len(sizes), clients)
    # With the cap a class depends on what the classes before it gave; without it all are drawn at once.
    steps = [slice(label, label + 1) for label in range(len(sizes))] if cap else [slice(None)]
    while True:
        counts, shares, held = np.zeros(shape, np.int64), np.zeros(shape), np.zeros(clients, np.int64)
        # Gamma(alpha) as Gamma(alpha + 1) * uniform ** (1 / alpha), in logarithms: a tiny alpha gives no 0 / 0.
        gamma, uniform = np.log(draw.standard_gamma(alpha + 1, shape)), np.log1p(-draw.random(shape))
        for rows in steps:
            full = held >= sizes.sum() / clients
            if not full.all():  # all full: nothing is left to give
                uniform[rows, full] = -np.inf
            shares[rows] = _softmax(gamma[rows], uniform[rows], alpha)
            counts[rows] = _cut(shares[rows], sizes[rows])
            held += counts[rows].sum(axis=0)
        yield counts, shares


def _softmax(gamma: Shares, uniform: Shares, alpha: float) -> Shares:
    """exp(gamma + uniform / alpha), each row scaled to the sum 1."""
    with np.errstate(over="ignore"):  # the quotient may be -infinity, but not at the row's largest
        logarithms = gamma + (uniform - uniform.max(axis=1, keepdims=True)) / alpha
    weights = np.exp(logarithms - logarithms.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def _cut(shares: Shares, sizes: Counts) -> Counts:
    """Each class cut at its cumulative shares, rounded down."""
    cumulative = shares.cumsum(axis=1)
    cumulative /= cumulative[:, -1:]  # the end is exactly 1, or a last client without a share would get a sample
    cuts: Counts = (cumulative * sizes[:, None]).astype(np.int64)
    return np.diff(cuts, axis=1, prepend=0)


def _pathological(
    draw: np.random.Generator, sizes: Counts, clients: int, classes: int, least: int, balance: bool
) -> Iterator[tuple[Counts, Shares]]:
    """`classes` classes per client, each class held by as equal a number of clients as possible."""
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


def _iid(draw: np.random.Generator, sizes: Counts, clients: int) -> Iterator[tuple[Counts, Shares]]:
    """All samples dealt out at random, to each client as many as to any other, or one fewer."""
    owners = draw.permutation(np.arange(sizes.sum()) % clients)
    cells = np.repeat(np.arange(len(sizes)) * clients, sizes) + owners
    counts = np.bincount(cells, minlength=len(sizes) * clients).reshape(len(sizes), clients)
    yield counts, counts / np.maximum(sizes, 1)[:, None]


def _large_enough(tables: Iterator[tuple[Counts, Shares]], least: int, what: str) -> tuple[Counts, Shares]:
    """The first table that gives every client `least` samples."""
    best, smallest = -1, 0
    for counts, shares in islice(tables, DRAWS):
        held = counts.sum(axis=0)
        client = int(held.argmin())
        if held[client] >= least:
            return counts, shares
        if held[client] > best:
            best, smallest = int(held[client]), client
    raise ConfigError(
        f"{what}: in up to {DRAWS:,} draws some client always had fewer than {least} samples; the best draw left "
        f"client {smallest} with {best}; take fewer clients, a more even rule or a smaller min_samples"
    )


def largest_remainder(shares: NDArray[np.float64], samples: int) -> Counts:
    """How many of `samples` each client gets: its share rounded down, then one more where the remainder is largest."""
    exact = shares * samples
    counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: samples - counts.sum()]] += 1
    return counts


def _deal(labels: NDArray[np.int64], counts: Counts, seed: int, purpose: str) -> list[Tensor]:
    """The indices of each client's samples, sorted: every class is shuffled and dealt out as the table says."""
    owners = np.empty(len(labels), np.int64)
    for label, row in enumerate(counts):
        shuffled = stream(seed, "partition", purpose, label).permutation(np.flatnonzero(labels == label))
        owners[shuffled] = np.repeat(np.arange(len(row)), row)
    order = np.split(np.argsort(owners, kind="stable"), counts.sum(axis=0).cumsum()[:-1])
    return [torch.from_numpy(own) for own in order]


def _take(own: list[Tensor], taken: list[int], seed: int, purpose: str) -> tuple[list[Tensor], list[Tensor]]:
    """What is left of each client's samples, and as many as said, drawn from them by lot; both sorted."""
    left, lots = [], []
    for client, (samples, number) in enumerate(zip(own, taken, strict=True)):
        order = stream(seed, "partition", purpose, client).permutation(len(samples))
        left.append(samples[np.sort(order[number:])])
        lots.append(samples[np.sort(order[:number])])
    return left, lots


def _test_samples(samples: int, share: float) -> int:
    """The nearest number to this share that leaves one sample for training and takes one for testing if it can."""
    return max(0, min(samples - 1, max(1, round(share * samples))))


def _floor(product: float) -> int:
    return int(round(product, 9))  # 0.29 * 100 is 28.999999999999996, but its floor is 29
