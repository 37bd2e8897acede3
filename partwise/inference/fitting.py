"""Check that a newcomer's data fit the run that it joins: the kind of data, the columns, the labels, the names."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from partwise.data import Federation
from partwise.data.checks import other_columns
from partwise.data.readers.catalogue import data_names
from partwise.data.readers.client_tables import table_files
from partwise.data.readers.tables import opened_table
from partwise.data.reading import Reading
from partwise.data.schema import Schema
from partwise.data.source import Source
from partwise.data.sources import is_table, own_path
from partwise.data.transforms import NamedTransform, TableTransform, TextTransform
from partwise.errors import ConfigError, DataError, short
from partwise.inference.run_models import RunModels
from partwise.records.manifest import TableInput
from partwise.trees import shape_text


def check_kind(saved: RunModels, name: str, table: bool) -> None:
    """Refuse a table where the run had none, and the other way round."""
    kind = saved.manifest.input.kind
    if table != (kind == "table"):
        learned = "a table" if kind == "table" else kind
        raise DataError(f"'{name}' is {'a' if table else 'no'} table, but the run learned from {learned}")


def check_kind_of(saved: RunModels, data: Any, root: str | None) -> None:
    """Refuse data of another kind than the run's before they are read, as far as it shows."""
    if hasattr(data, "columns"):
        check_kind(saved, "data", table=True)
    elif (path := path_of(data, root)) is not None:
        check_kind(saved, str(data), is_table(path))


def path_of(data: Any, root: str | None) -> Path | None:
    """Return where a user's own data lie; None: they were handed in, or are a data set that is known by its name."""
    if not isinstance(data, str | Path) or str(data).startswith("hf:"):
        return None
    return None if data in data_names() else own_path(str(data), root)


def beside(saved: RunModels, data: Any, root: str | None) -> str | None:
    """Return the columns of a table that were not features of the run, such as the clients' column."""
    others, path = no_features(saved), path_of(data, root)
    if path is not None and is_table(path):
        file = table_files(path)[0] if path.is_dir() else path
        data = opened_table(file, Reading(drop=others)).frame
    return ",".join(name for name in others if name in getattr(data, "columns", ())) or None


def no_features(saved: RunModels) -> tuple[str, ...]:
    """Return the columns of the run's table that were neither features nor labels, which come first among them."""
    manifest = saved.manifest
    labels = 1 if manifest.task.of_classes else manifest.task.outputs
    return tuple(manifest.input.beside[labels:]) if isinstance(manifest.input, TableInput) else ()


def named_newcomers(federation: Federation, saved: RunModels, name: str | None) -> Federation:
    """Return newcomers with names that no client of the run has."""
    if federation.clients == 1:
        federation = replace(federation, names=(name or "newcomer",))
    taken = [each for each in federation.names if each in saved.manifest.clients]
    if taken:
        raise ConfigError(f"the run already has a client '{taken[0]}'; give the new one another name with --name")
    return federation


def schema_of_run(saved: RunModels, federation: Federation) -> Schema:
    """Return the schema that newcomers and the run share, newcomers last; refuse data that do not fit the run's."""
    source, manifest = federation.source, saved.manifest
    check_kind(saved, source.name, table=source.is_table)
    transform = manifest.input.transform
    text = transform if isinstance(transform, TextTransform) else None
    table = manifest.input.row if isinstance(manifest.input, TableInput) and manifest.input.features else None
    if (table is not None and table.codes) or source.code_sizes:
        raise ConfigError("newcomers cannot join a run with categories = codes yet; run with categories = columns")
    theirs = transform.shapes if isinstance(transform, NamedTransform) else tuple(manifest.input.shape)
    if table is not None or text is not None:
        check_features(source, table or TableTransform((), ()))
    elif source.shape != theirs:
        raise DataError(
            f"'{source.name}' has samples of the shape {shape_text(source.shape)}, the run's are {shape_text(theirs)}"
        )
    if strange := manifest.task.strangeness(source.task):
        raise DataError(f"'{source.name}' has {strange}")
    return Schema(
        (*manifest.clients, *federation.names),
        manifest.task.bins,
        tuple(manifest.classes) if source.class_names else (),
        table,
        text,
        tuple(manifest.standardise.centre),
        tuple(manifest.standardise.scale),
        source.model,
        None if manifest.task.of_classes else manifest.task,
    )


def check_features(source: Source, table: TableTransform) -> None:
    """Refuse a table with other columns than the run's, or with a text that none of the run's clients has."""
    if wrong := other_columns(set(source.feature_columns), set(table.columns)):
        learned = ", ".join(map(repr, dict.fromkeys(table.columns)))
        raise DataError(f"'{source.name}': {wrong}; the run learned from {short(learned)}")
    known = set(table.features)
    if lost := [each for each in source.feature_names if each not in known]:
        raise DataError(f"'{source.name}' has a text that the run's data do not have: {lost[0]}")
