"""A table for each client: a folder of files, called as their clients are, or pandas frames by the clients' names."""

import os
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from partwise.data.checks import other_columns
from partwise.data.readers.frames import NUMBER_KINDS, DataTable, framed
from partwise.data.readers.tables import CLIENT_COLUMN, TABLE_ENDINGS, opened_table, source_of
from partwise.data.reading import Reading
from partwise.data.source import Source
from partwise.errors import DataError, needed


def table_files(path: Path) -> list[Path]:
    """Return the tables of a folder without subfolders; with subfolders, none, because they hold images."""
    inside = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    tables = [entry for entry in inside if entry.name.lower().endswith(TABLE_ENDINGS)]
    return [] if any(map(os.path.isdir, inside)) else tables


def read(path: Path, reading: Reading) -> Source:
    """Read the tables of a folder, one per client."""
    wanted = one_table_a_client(reading, str(path))
    return source_of(joined_folder(path, wanted), wanted, path.resolve().name)


def joined_folder(path: Path, reading: Reading) -> DataTable:
    """Return the tables of a folder as one."""
    each: dict[str, DataTable] = {}
    for file in table_files(path):
        longest_first = sorted(TABLE_ENDINGS, key=len, reverse=True)
        ending = next(ending for ending in longest_first if file.name.lower().endswith(ending))
        client = file.name[: -len(ending)]
        if client in each:
            raise DataError(f"{path}: two files belong to client {client!r}; rename one")
        each[client] = opened_table(file, reading)
    return joined_tables(each, str(path))


def from_frames(frames: Mapping[Any, Any], reading: Reading, name: str = "clients") -> Source:
    """Read pandas frames by the names of their clients."""
    where = "the clients' tables"
    each = {str(client): framed(frame, f"client {str(client)!r}") for client, frame in frames.items()}
    return source_of(joined_tables(each, where), one_table_a_client(reading, where), name)


def one_table_a_client(reading: Reading, where: str) -> Reading:
    """Return how to read tables that are already divided."""
    if reading.column not in (None, CLIENT_COLUMN):
        raise DataError(
            f"{where}: the folder has one table per client, so it is already divided; leave out column:{reading.column}"
        )
    return replace(reading, column=CLIENT_COLUMN)


def joined_tables(each: Mapping[str, DataTable], where: str) -> DataTable:
    """Join tables with the same columns, and add the column that names each row's client."""
    pandas, tables = needed("pandas", "tables"), list(each.values())
    columns = usual_columns(tables)
    for column in columns:
        check_kinds(tables, column)
    sizes = [len(table.frame) for table in tables]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of columns that are empty in one of them
        frame = pandas.concat([table.frame[columns] for table in tables], ignore_index=True)
    frame[CLIENT_COLUMN] = np.repeat(np.array(list(each), dtype=object), sizes)
    ends = np.cumsum(sizes)

    def place(row: int) -> str:
        number = int(np.searchsorted(ends, row, side="right"))
        table = tables[number]
        return f"{os.path.basename(table.where)}, {table.place(row - int(ends[number]) + sizes[number])}"

    return DataTable(frame, where, place)


def usual_columns(tables: list[DataTable]) -> list[str]:
    """Return the columns that most tables have; refuse a table with others, by name."""
    most = Counter(frozenset(table.frame.columns) for table in tables).most_common(1)[0][0]
    for table in tables:
        columns = list(table.frame.columns)
        if CLIENT_COLUMN in columns:
            raise DataError(
                f"{table.where}: the table of one client must not have a column {CLIENT_COLUMN!r}; rename it, or put "
                "the rows of all clients into one table, which this column then divides"
            )
        if wrong := other_columns(set(columns), most):
            raise DataError(f"{table.where}: {wrong}; all clients need the columns that most have")
        if not len(table.frame):
            raise DataError(f"{table.where}: no rows")
    return [column for column in tables[0].frame.columns if column in most]


def check_kinds(tables: list[DataTable], column: str) -> None:
    """Refuse numbers in one table where others have texts."""
    filled = [table for table in tables if table.frame[column].notna().any()]
    kinds = ["numbers" if table.kind(column) in NUMBER_KINDS else "texts" for table in filled]
    for table, kind in zip(filled, kinds, strict=True):
        usual = Counter(kinds).most_common(1)[0][0]
        if kind != usual:
            raise DataError(f"{table.column(column)}: {kind}, but {usual} in the tables of most clients")
