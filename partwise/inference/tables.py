"""Rows of a table for a model, as the reader of tables made them for the run."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from partwise.data.checks import lacking
from partwise.data.readers.labels import encode
from partwise.data.readers.tables import ENDINGS, NUMBERS, DataTable, framed, kind_of, opened
from partwise.data.reading import Reading
from partwise.errors import DataError, needed, unknown
from partwise.inference.given import Given, numbered

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Table:
    """Rows of a table, whose columns are found by their names."""

    shape: tuple[int, ...]
    features: list[str]  # as they stand in a sample
    columns: list[str]  # of each feature: itself, or that of the text `column=text`
    beside: list[str]  # columns of the training table that are no features: they may be there
    missing: str
    nonfinite: bool
    means: list[float]
    other_texts: str = "refuse"  # "zeros": as a silo was trained on texts that no silo may name

    def __call__(self, samples: Any) -> Given:
        table = self.table(samples)
        self.check_columns(table)
        made = {
            feature: values for column in dict.fromkeys(self.columns) for feature, values in self.made(table, column)
        }
        x = torch.from_numpy(np.stack([made[feature] for feature in self.features], axis=1))
        return numbered(x)

    def table(self, samples: Any) -> DataTable:
        """What was handed in, as a table."""
        if isinstance(samples, str | Path):
            path = Path(os.path.expanduser(samples))
            if path.exists() and not path.name.lower().endswith(ENDINGS):
                raise DataError(f"'{path}' is not a table ({', '.join(ENDINGS)}); this model takes tables")
            return opened(path, Reading(drop=tuple(self.beside)))
        pandas = needed("pandas", "tables")
        if isinstance(samples, pandas.DataFrame | Mapping):
            return framed(pandas.DataFrame(samples), "the table")
        raise DataError(
            f"this model takes a table: a pandas DataFrame, a dict of columns, or the path of a file, not a "
            f"{type(samples).__name__}"
        )

    def check_columns(self, table: DataTable) -> None:
        """Every column of the training table, and no other; in any order."""
        given, wanted = list(table.frame.columns), list(dict.fromkeys(self.columns))
        missing = [column for column in wanted if column not in given]
        other = [column for column in given if column not in (*wanted, *self.beside)]
        twice = [column for column in given if given.count(column) > 1]
        if twice:
            raise DataError(f"{table.where}: {given.count(twice[0])} columns are called {twice[0]!r}")
        if missing:
            raise DataError(f"{table.where}: {lacking(missing, given)}")
        if other:
            raise DataError(f"{table.where}: {unknown('column', other[0], [*wanted, *self.beside])}")

    def made(self, table: DataTable, column: str) -> list[tuple[str, NDArray[np.float32]]]:
        """Return the features of one column."""
        own = [name for name, of in zip(self.features, self.columns, strict=True) if of == column]
        if own == [column]:
            return [(column, self.numbers(table, column))]
        return self.texts(table, column, [name.removeprefix(f"{column}=") for name in own])

    def numbers(self, table: DataTable, column: str) -> NDArray[np.float32]:
        kind = kind_of(table.frame[column])
        if kind not in NUMBERS:
            raise DataError(f"{table.column(column)}: {kind}, but the model learned from numbers")
        with np.errstate(over="ignore"):
            values = table.frame[column].to_numpy(np.float64, na_value=np.nan).astype(np.float32)
        if self.missing == "mean":
            mean = np.float32(self.means[self.features.index(column)])
            values = np.where(np.isnan(values), mean, values)
        odd = np.flatnonzero(~np.isfinite(values))
        if len(odd) and not self.nonfinite:
            raise DataError(f"{table.cell(int(odd[0]), column)}: empty or not finite; the model needs a number")
        return values

    def texts(self, table: DataTable, column: str, known: list[str]) -> list[tuple[str, NDArray[np.float32]]]:
        """Return a feature for each text of the training data; an empty cell matches no text."""
        values = table.frame[column]
        present = np.flatnonzero(values.notna().to_numpy())
        codes, names = encode(values.iloc[present].to_numpy(), table.column(column))
        rows = {name: present[(codes == number).numpy()] for number, name in enumerate(names)}
        others = [name for name in names if name not in known]
        if others and self.other_texts == "refuse":
            where = table.cell(int(rows[others[0]][0]), column)
            raise DataError(f"{where}: {unknown('text', others[0], known)}; an empty cell is not one of them")
        if others:
            counts = ", ".join(f"{name!r} ({len(rows[name])})" for name in others)
            log.warning("%s: texts without a feature (rows): %s; all features are 0", table.column(column), counts)
        marks = {name: np.zeros(len(values), np.float32) for name in known}
        for name in names:
            if name in marks:
                marks[name][rows[name]] = 1
        return [(f"{column}={name}", mark) for name, mark in marks.items()]
