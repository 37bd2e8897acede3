"""Partitioning a data set among clients: at random, by a column of the data, or as saved."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partwise.data import saved
from partwise.data.checks import check
from partwise.data.rule_counts import CountTable, Shares, counts_by_rule
from partwise.data.rules import Rule, parse_rule
from partwise.data.source import Column, Federation, Source
from partwise.data.splits import check_shares, limit_train, split_samples, split_validation
from partwise.errors import ConfigError, unknown
from partwise.streams import stream

DEFAULT_CLIENTS = 20  # where their number is unset
SPLITS = ("merged", "original")


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
    by_name: bool = False,
) -> Federation:
    """Partition the source among `clients` by `rule`; `auto`, here and for `split`, is the source's own choice.

    rule           `dir:ALPHA`: shares ~ Dir(ALPHA) of each class. `hsu:ALPHA`: equal sizes, each client's class mix
                   ~ Dir(ALPHA * the classes' shares), Hsu et al. 2019. `pat:K`: K classes a client. `quantity:ALPHA`:
                   sizes ~ Dir(ALPHA), equal class mixes. `iid`: random, equal sizes. `column:NAME`: a client for each
                   value of that column; `domain`: of the column domain. `file:PATH`: a saved partition, as it is.
    clients        unset: 20, or as many as the column has values.
    split          `merged`: the original training and test samples together are divided among the clients, then each
                   client's own into `test_share` for testing, to the nearest sample, and the rest for training; a
                   client of two samples or more gets at least one of either. Groups of the source stay together, and
                   its late samples are those for testing. `original`: the training set is divided, and the test set by
                   the same column, or class by class in the same shares.
    min_samples    fewest samples of a client, before its own are split; smaller draws are repeated, and finally
                   refused. 10 for `dir` and `quantity`, 1 for the others; with 0, a client may be left empty.
    cap            `dir` gives no more classes to a client that already holds an even share of all samples.
    balance        `pat` divides each class evenly among the clients that have it.
    train_samples  the largest number of training samples of a client, drawn at random; others are left out.
    validation     this share of each client's training samples, rounded down, is set apart.
    by_name        each client's own samples are divided by its name, as on a node of that name, not by its number.
    """
    labels = check(source, allow_nonfinite=True).bins.numpy()  # the values of x do not matter here
    rule = source.partition if rule == "auto" else rule
    parsed = parse_rule(rule)
    if parsed.kind == "file":
        beside = {
            "split": split != "auto",
            "min_samples": min_samples is not None,
            "cap": cap,
            "balance": balance,
            "test_share": test_share is not None,
            "train_samples": train_samples is not None,
            "validation": validation != 0,
            "split_seed": by_name,
        }
        return _saved(source, parsed.path, clients, [name for name, given in beside.items() if given])
    split = source.split if split == "auto" else split
    test_share = source.test_share if test_share is None else test_share
    least = min_samples if min_samples is not None else 10 if parsed.kind in ("dir", "quantity") else 1
    _check_settings(parsed, clients, split, cap, least, balance)
    check_shares(test_share, train_samples, validation)
    if split == "original" and source.train == len(labels):
        raise ConfigError(f"data set '{source.name}' has no test set of its own; use split merged")
    if split == "original" and (source.groups is not None or source.late is not None):
        raise ConfigError("split_by and test_after divide each client's own samples; use split merged")

    names: tuple[str, ...] = ()
    first_test = source.train if split == "original" else len(labels)
    pool, held_out = np.split(labels, [first_test])
    if parsed.kind == "column":
        column = _column(source, parsed.column, clients)
        names = column.names
        train, test = (partition_by_owner(owners, len(names)) for owners in np.split(column.code.numpy(), [first_test]))
        _check_sizes(parsed.column, names, train, least)
    else:
        clients = DEFAULT_CLIENTS if clients is None else clients
        _check_fit(rule, parsed, clients, least, len(pool), source.classes)
        sizes, what = np.bincount(pool, minlength=source.classes), f"partition '{rule}' among {clients} clients"
        counts, shares = counts_by_rule(parsed, sizes, clients, seed, least, cap, balance, what)
        train, test = partition_by_counts(pool, counts, seed, "train"), partition_by_shares(held_out, shares, seed)

    streams = (names or tuple(map(str, range(len(train))))) if by_name else ()
    if split == "original":
        test = [own + first_test for own in test]
        global_test = torch.arange(first_test, len(labels))
    else:
        train, test = split_samples(source, train, test_share, seed, streams)
        if source.groups is not None and not any(map(len, test)):
            raise ConfigError("split_by: no client has rows of two different values, so no client could be tested")
        global_test = torch.cat(test).sort().values
    if train_samples is not None:
        train = limit_train(train, train_samples, seed, streams)
    train, held_back = split_validation(train, validation, seed, streams, source.groups)
    return Federation(source, train, test, global_test, held_back, rule, names)


def _saved(source: Source, path: str, clients: int | None, given: list[str]) -> Federation:
    """Read a saved partition; refuse settings that it already decides, because they would be ignored."""
    if given:
        raise ConfigError(f"partition 'file:{path}' already says which samples are whose; leave out {', '.join(given)}")
    federation = saved.read_partition(path, source)
    if clients not in (None, federation.clients):
        raise ConfigError(f"clients = {clients}, but '{path}' holds a partition among {federation.clients} clients")
    return federation


def _column(source: Source, name: str, clients: int | None) -> Column:
    """Return the column of this name; refuse one whose number of values differs from `clients`."""
    if not source.columns:
        raise ConfigError(
            f"partition 'column:{name}' needs a table with that column, or folders of domains; "
            f"data set '{source.name}' has neither"
        )
    if name not in source.columns:
        raise ConfigError(unknown("column", name, source.columns))
    column = source.columns[name]
    if clients not in (None, len(column.names)):
        raise ConfigError(f"clients = {clients}, but column '{name}' has {len(column.names)} values, a client for each")
    return column


def _check_sizes(column: str, names: tuple[str, ...], own: list[Tensor], least: int) -> None:
    small = [f"'{name}' has {len(mine)}" for name, mine in zip(names, own, strict=True) if len(mine) < least]
    if small:
        raise ConfigError(
            f"partition 'column:{column}': every client needs at least {least} samples (min_samples), "
            f"but {', '.join(small[:8])}"
        )


def _check_settings(rule: Rule, clients: int | None, split: str, cap: bool, least: int, balance: bool) -> None:
    """Refuse settings that fit no data set."""
    if split not in SPLITS:
        raise ConfigError(unknown("split", split, SPLITS))
    if clients is not None and clients < 1:
        raise ConfigError(f"clients must be at least 1, got {clients}")
    if least < 0:
        raise ConfigError(f"min_samples must be at least 0, got {least}")
    if cap and rule.kind != "dir":
        raise ConfigError(f"cap applies to partition 'dir' only, not to '{rule.kind}'; leave it out")
    if balance and rule.kind != "pat":
        raise ConfigError(f"balance applies to partition 'pat' only, not to '{rule.kind}'; leave it out")


def _check_fit(text: str, rule: Rule, clients: int, least: int, samples: int, classes: int) -> None:
    """Refuse settings that do not fit this data set."""
    if clients * max(least, 1) > samples:
        raise ConfigError(
            f"{clients:,} clients of at least {max(least, 1)} samples need {clients * max(least, 1):,}, "
            f"but there are {samples:,} to divide; take fewer clients or a smaller min_samples"
        )
    if rule.classes > classes:
        raise ConfigError(f"partition '{text}' is not allowed; the data set has {classes} classes")
    if rule.kind == "pat" and clients * rule.classes < classes:
        raise ConfigError(f"partition '{text}': {clients} clients of {rule.classes} classes cannot hold all {classes}")


# ---- which samples are whose


def partition_by_counts(labels: NDArray[np.int64], counts: CountTable, seed: int, purpose: str) -> list[Tensor]:
    """Return the sorted indices of each client's samples: every class is shuffled and divided as the table says."""
    owners = np.empty(len(labels), np.int64)
    for label, row in enumerate(counts):
        shuffled = stream(seed, "partition", purpose, label).permutation(np.flatnonzero(labels == label))
        owners[shuffled] = np.repeat(np.arange(len(row)), row)
    return partition_by_owner(owners, counts.shape[1])


def partition_by_owner(owners: NDArray[np.int64], clients: int) -> list[Tensor]:
    """Return the sorted indices of each client's samples, by the owner of every sample."""
    ends = np.bincount(owners, minlength=clients).cumsum()
    return [torch.from_numpy(own) for own in np.split(np.argsort(owners, kind="stable"), ends[:-1])]


def partition_by_shares(labels: NDArray[np.int64], shares: Shares, seed: int) -> list[Tensor]:
    """Return the sorted indices of each client's test samples: every class is divided in these shares."""
    sizes = np.bincount(labels, minlength=len(shares))
    counts = [largest_remainder(row, int(size)) for row, size in zip(shares, sizes, strict=True)]
    return partition_by_counts(labels, np.stack(counts), seed, "test")


def largest_remainder(shares: NDArray[np.float64], samples: int) -> CountTable:
    """Return each client's number of `samples`: its share rounded down, plus one for the largest remainders."""
    exact = shares * samples
    counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: samples - counts.sum()]] += 1
    return counts
