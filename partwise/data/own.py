"""Data passed from Python: arrays, data sets or frames, of all clients together or of each."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import Dataset

from partwise.data.readers import client_tables, tables
from partwise.data.readers.arrays import ACCEPTED, LabelledSamples, joined_samples, make_source, read_samples
from partwise.data.readers.hugging_face import from_hugging_face
from partwise.data.reading import Reading, TaskName
from partwise.data.source import Federation, Source, resized
from partwise.data.splits import check_shares, limit_train, split_test, split_validation
from partwise.errors import ConfigError, one_line


def as_data(
    data: Any,
    reading: Reading,
    *,
    test_share: float | None = None,
    train_samples: int | None = None,
    validation: float = 0.0,
    seed: int = 0,
    by_name: bool = False,
) -> Source | Federation:
    """Return an object passed as data as a source or federation; the keywords divide each client's samples."""
    if _is(data, "pandas", "DataFrame"):
        return tables.from_frame(data, reading)
    if _is(data, "datasets", "Dataset", "DatasetDict"):
        return from_hugging_face(data, reading)
    if isinstance(data, Federation):
        source = resized(data.source, reading.image_size)
        return data if source is data.source else replace(data, source=source)
    if isinstance(data, Source):
        return resized(data, reading.image_size)
    if isinstance(data, list | dict) and data:
        frames = data if isinstance(data, dict) else dict(enumerate(data))
        if all(_is(frame, "pandas", "DataFrame") for frame in frames.values()):
            return client_tables.from_frames(frames, reading)
    reading.refuse_what_is_for_tables("what was handed in")
    if isinstance(data, Dataset | tuple):
        train, test = _with_test(data)
        return resized(make_source("data", train, test, task=reading.task), reading.image_size)
    if isinstance(data, list | dict):
        names, clients = (list(data), list(data.values())) if isinstance(data, dict) else (None, data)
        federation = from_clients(
            clients, names, test_share, train_samples, validation, seed, by_name=by_name, task=reading.task
        )
        return replace(federation, source=resized(federation.source, reading.image_size))
    raise ConfigError(
        f"data cannot be a {type(data).__name__}: it must be the name of a data set, a path, {ACCEPTED}, a list or "
        "dict with one of these for each client, a pandas DataFrame or a list or dict of them, a Hugging Face Dataset, "
        "a Source or a Federation"
    )


def from_clients(
    clients: Sequence[Any],
    names: Sequence[Any] | None = None,
    test_share: float | None = None,
    train_samples: int | None = None,
    validation: float = 0.0,
    seed: int = 0,
    name: str = "clients",
    by_name: bool = False,
    task: TaskName = "auto",
) -> Federation:
    """Read each client's data: a torch Dataset, a pair (x, y) of arrays, or a pair (train, test) of either.

    A client without a test set of its own tests on a share of its samples, drawn as `partition` would.
    """
    test_share = Source.test_share if test_share is None else test_share
    called = [f"client '{one_line(who)}'" for who in (range(len(clients)) if names is None else names)]
    if not clients or len(called) != len(clients) or len(set(called)) < len(called):
        raise ConfigError(
            f"{len(clients)} clients with {len(set(called))} different names; give each client its own name"
        )
    check_shares(test_share, train_samples, validation)
    sets: dict[str, LabelledSamples] = {}
    for who, data in zip(called, clients, strict=True):
        train, test = _with_test(data)
        sets[who] = read_samples(train, who)
        if test is not None:
            sets[f"{who} (test)"] = read_samples(test, f"{who} (test)")
    sizes = [len(samples.labels) for samples in sets.values()]
    index = dict(zip(sets, torch.arange(sum(sizes)).split(sizes), strict=True))
    source = joined_samples(name, sets, train=sum(sizes), task=task)

    own = [index[who] for who in called]
    labelled = tuple(map(str, range(len(clients)) if names is None else names))
    streams = labelled if by_name else ()
    rest, drawn = split_test(own, test_share, seed, streams)
    train = [mine if f"{who} (test)" in index else left for who, mine, left in zip(called, own, rest, strict=True)]
    test = [index.get(f"{who} (test)", share) for who, share in zip(called, drawn, strict=True)]
    if train_samples is not None:
        train = limit_train(train, train_samples, seed, streams)
    train, held_back = split_validation(train, validation, seed, streams)
    return Federation(source, train, test, torch.cat(test).sort().values, held_back, names=labelled)


def _is(data: Any, module: str, *kinds: str) -> bool:
    """Return whether data are of a package's type; without that package imported, they cannot be."""
    return any(isinstance(data, getattr(sys.modules.get(module), kind, ())) for kind in kinds)


def _with_test(data: Any) -> tuple[Any, Any]:
    """Return (train, test) as they are; anything else has no test set."""
    if isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, Dataset | tuple) for part in data):
        return data
    return data, None
