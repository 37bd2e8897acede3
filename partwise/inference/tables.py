"""Rows of a table for a model: columns by their names, and what becomes of empty cells and unknown texts."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from partwise.data.checks import lacking
from partwise.data.readers.frames import NUMBER_KINDS, DataTable, framed
from partwise.data.readers.tables import TABLE_ENDINGS, opened_table
from partwise.data.reading import Reading
from partwise.data.transforms import BESIDE
from partwise.errors import DataError, needed, unknown
from partwise.inference.given import GivenSamples, without_names
from partwise.records.manifest import TableInput

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tables:
    """Reads rows of tables, whose columns are found by their names."""

    input: TableInput
    means: list[float]  # of each feature, for empty numbers

    def __call__(self, samples: Any) -> GivenSamples:
        """Return the rows of a pandas DataFrame, of a dict of columns, or of a file."""
        table = self.table(samples)
        self.check_columns(table)
        for column in self.input.different_columns:
            self.check_kind(table, column)
        x = self.input.transform.apply(table)
        if isinstance(x, dict):
            return without_names({**x, BESIDE: self.checked(x[BESIDE], table)} if BESIDE in x else x)
        return without_names(x if self.input.text is not None else self.checked(x, table))

    def table(self, samples: Any) -> DataTable:
        """Return the given samples as a table."""
        if isinstance(samples, str | Path):
            path = Path(os.path.expanduser(samples))
            if path.exists() and not path.name.lower().endswith(TABLE_ENDINGS):
                raise DataError(f"'{path}' is not a table ({', '.join(TABLE_ENDINGS)}); this model takes tables")
            return opened_table(path, Reading(drop=tuple(self.input.beside)))
        pandas = needed("pandas", "tables")
        if isinstance(samples, pandas.DataFrame | Mapping):
            return framed(pandas.DataFrame(samples), "the table")
        raise DataError(
            f"this model takes a table: a pandas DataFrame, a dict of columns, or the path of a file, not a "
            f"{type(samples).__name__}"
        )

    def check_columns(self, table: DataTable) -> None:
        """Refuse a table without every column of the training table, or with others; their order is free."""
        given, wanted = list(table.frame.columns), self.input.different_columns
        missing = [column for column in wanted if column not in given]
        other = [column for column in given if column not in (*wanted, *self.input.beside)]
        twice = [column for column in given if given.count(column) > 1]
        if twice:
            raise DataError(f"{table.where}: {given.count(twice[0])} columns are called {twice[0]!r}")
        if missing:
            raise DataError(f"{table.where}: {lacking(missing, given)}")
        if other:
            raise DataError(f"{table.where}: {unknown('column', other[0], [*wanted, *self.input.beside])}")

    def check_kind(self, table: DataTable, column: str) -> None:
        """Refuse texts where the model learned from numbers, and texts that it does not know; or log these."""
        transform = self.input.row
        if self.input.text is not None and column == self.input.text.column:
            return  # it refuses by itself what is no text
        if transform.is_number(column):
            if (kind := table.kind(column)) not in NUMBER_KINDS:
                raise DataError(f"{table.column(column)}: {kind}, but the model learned from numbers")
            return
        known, rows = transform.texts(column), table.texts(column)
        others = [text for text in rows if text not in known]
        if others and self.input.other_texts == "refuse":
            where = table.cell(int(rows[others[0]][0]), column)
            raise DataError(f"{where}: {unknown('text', others[0], known)}; an empty cell is not one of them")
        if others:
            counts = ", ".join(f"{text!r} ({len(rows[text])})" for text in others)
            log.warning("%s: texts without a feature (rows): %s; all features are 0", table.column(column), counts)

    def checked(self, x: Tensor, table: DataTable) -> Tensor:
        """Return (rows, features) with the means of training in place of empty numbers; refuse numbers not finite."""
        if self.input.missing == "mean":
            x = torch.where(x.isnan(), torch.tensor(self.means, dtype=x.dtype), x)
        odd = (~x.isfinite()).T.nonzero()  # column by column
        if len(odd) and not self.input.nonfinite:
            feature, row = odd[0].tolist()
            columns = self.input.row.numbers if self.input.codes else self.input.columns
            where = table.cell(row, columns[feature])
            raise DataError(f"{where}: empty or not finite; the model needs a number")
        return x
