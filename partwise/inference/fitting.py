"""Whether what a newcomer has fits the run that it joins: the kind of data, the columns, the classes, the names."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from partwise.data import Federation
from partwise.data.checks import other_columns
from partwise.data.readers.catalogue import data_names
from partwise.data.readers.client_tables import files_in
from partwise.data.readers.tables import opened
from partwise.data.reading import Reading
from partwise.data.sources import is_table, own_path
from partwise.errors import ConfigError, DataError, short
from partwise.federation.protocol.handshake import Agreed
from partwise.inference.described import Described


def check_kind(described: Described, name: str, table: bool) -> None:
    """Refuse a table where the run had none, and the other way round."""
    kind = described["input"]["kind"]
    if table != (kind == "table"):
        learned = "a table" if kind == "table" else kind
        raise DataError(f"'{name}' is {'a' if table else 'no'} table, but the run learned from {learned}")


def check_kind_of(described: Described, data: Any, root: str | None) -> None:
    """Refuse data of another kind than the run's before they are read, as far as it shows."""
    if hasattr(data, "columns"):
        check_kind(described, "data", table=True)
    elif (path := path_of(data, root)) is not None:
        check_kind(described, str(data), is_table(path))


def path_of(data: Any, root: str | None) -> Path | None:
    """Where a user's own data lie; None: they were handed in, or are a data set that is known by its name."""
    if not isinstance(data, str | Path) or str(data).startswith("hf:"):
        return None
    return None if data in data_names() else own_path(str(data), root)


def beside(described: Described, data: Any, root: str | None) -> str | None:
    """Return the columns of a table that were not features of the run, such as the clients' column."""
    others, path = no_features(described), path_of(data, root)
    if path is not None and is_table(path):
        file = files_in(path)[0] if path.is_dir() else path
        data = opened(file, Reading(drop=others)).frame
    return ",".join(name for name in others if name in getattr(data, "columns", ())) or None


def no_features(described: Described) -> tuple[str, ...]:
    """Return the columns of the run's table that were neither features nor the label, which comes first among them."""
    return tuple(described["input"].get("beside", ())[1:])


def renamed(federation: Federation, described: Described, name: str | None) -> Federation:
    """Newcomers with names that no client of the run has."""
    if federation.clients == 1:
        federation = replace(federation, names=(name or "newcomer",))
    taken = [each for each in federation.names if each in described["clients"]]
    if taken:
        raise ConfigError(f"the run already has a client '{taken[0]}'; give the new one another name with --name")
    return federation


def agreed(described: Described, federation: Federation) -> Agreed:
    """What the run and newcomers agree on: the classes and features are the run's."""
    source, about = federation.source, described["input"]
    shape, classes, features = list(about["shape"]), described["classes"], about.get("features", [])
    check_kind(described, source.name, table=bool(source.feature_names))
    own_columns, columns = set(source.feature_columns or source.feature_names), list(about.get("columns", ()))
    if wrong := other_columns(own_columns, set(columns)):
        of_run = short(", ".join(map(repr, dict.fromkeys(columns))))
        raise DataError(f"'{source.name}': {wrong}; the run learned from {of_run}")
    if not features and list(source.x.shape[1:]) != shape:
        raise DataError(f"'{source.name}' has samples of the shape {list(source.x.shape[1:])}, the run's are {shape}")
    own = source.class_names or tuple(map(str, range(source.classes)))
    strange = [each for each in own if each not in classes]
    if strange:
        raise DataError(f"'{source.name}' has the class '{strange[0]}'; the run knows {', '.join(classes)}")
    known = set(features)
    if lost := [each for each in source.feature_names if features and each not in known]:
        raise DataError(f"'{source.name}' has a text that the run's data do not have: {lost[0]}")
    sets = zip(federation.train, federation.test, federation.validation, strict=True)
    old = described["clients"]
    return Agreed(
        names=[*old, *federation.names],
        hosts=[],
        sizes=[[0, 0, 0]] * len(old) + [[len(each) for each in own] for own in sets],
        shape=shape,
        classes=len(classes),
        class_names=list(classes) if source.class_names else [],
        columns=list(dict.fromkeys(columns)),
        features=list(features),
        whole=source.x.dtype == torch.uint8,
        standardise=source.standardise,
        centre=list(described["standardise"]["centre"]),
        scale=list(described["standardise"]["scale"]),
        white=source.white,
        data=described["data"],
        model=source.model,
    )
