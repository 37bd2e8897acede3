"""Cells of a pandas frame as numbers and texts, and the names of its columns, rows and cells in messages."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partwise.data.readers.labels import encode_labels
from partwise.errors import DataError, needed

PLACES_NAMED = 8  # further cells with the same problem whose lines a refusal names

# What pandas calls the values of a column.
NUMBER_KINDS = ("integer", "floating", "mixed-integer-float", "decimal", "boolean", "empty")
TEXT_KINDS = ("string", "categorical")


@dataclass(frozen=True)
class DataTable:
    """A pandas frame, and the names of it and its rows in messages."""

    frame: Any
    where: str
    place: Callable[[int], str] = "row {}".format

    def kind(self, column: str) -> str:
        """Return the pandas type of a column's values."""
        return pandas_kind(self.frame[column])

    def numbers(self, column: str) -> NDArray[np.float64]:
        """Return (rows,) the numbers of a column, NaN where a cell is empty."""
        try:
            return self.frame[column].to_numpy(np.float64, na_value=np.nan)
        except OverflowError:  # whole numbers have no limit in Python
            raise DataError(f"{self.column(column)}: a number is too large; leave it out: --drop {column!r}") from None

    def filled(self, column: str) -> NDArray[Any]:
        """Return the values of a column; refuse empty cells."""
        values = self.frame[column]
        for row in np.flatnonzero(values.isna())[:1].tolist():
            raise DataError(f"{self.cell(row, column)}: empty; fill in the cell, or remove the row")
        return values.to_numpy()

    def different(self, column: str) -> int:
        """Return how many different values a column has; refuse lists and the like, which cannot be compared."""
        try:
            return int(self.frame[column].nunique())
        except TypeError:
            raise DataError(
                f"{self.column(column)}: {self.kind(column)}, neither numbers nor texts; leave the column out: "
                f"--drop {column!r}, and choose another --label if it is this one"
            ) from None

    def texts(self, column: str) -> dict[str, NDArray[np.int64]]:
        """Return the rows of each text of a column; an empty cell is none of them."""
        values = self.frame[column]
        present = np.flatnonzero(values.notna().to_numpy())
        codes, names = encode_labels(values.iloc[present].to_numpy(), self.column(column))
        return {name: present[(codes == number).numpy()] for number, name in enumerate(names)}

    def strings(self, column: str) -> list[str]:
        """Return the texts of all rows, '' for an empty cell; refuse a column of anything else."""
        values = self.frame[column]
        if (kind := self.kind(column)) not in (*TEXT_KINDS, "empty"):
            raise DataError(f"{self.column(column)}: {kind}, no texts; choose another column with --text")
        return ["" if empty else str(text) for text, empty in zip(values, values.isna(), strict=True)]

    def column(self, column: str) -> str:
        """Return the name of a column in messages."""
        return f"{self.where}: column {column!r}"

    def cell(self, row: int, column: str) -> str:
        """Return the name of a cell in messages."""
        return f"{self.where}, {self.place(row)}, column {column!r}"

    def such_cells(self, rows: NDArray[np.int64]) -> str:
        """Return a note that a cell is one of several, and where the others are."""
        return f"one of {len(rows):,} such cells in this column{self.also(rows)}"

    def also(self, rows: NDArray[np.int64]) -> str:
        """Name the places of further cells with the problem of the first."""
        others = [self.place(row) for row in rows[1 : 1 + PLACES_NAMED].tolist()]
        others += ["..."] if len(rows) > 1 + PLACES_NAMED else []
        return f" (also {', '.join(others)})" if others else ""


def framed(frame: Any, where: str) -> DataTable:
    """Return a pandas frame as a table, its columns called by texts."""
    return DataTable(frame.set_axis(frame.columns.map(str), axis=1), where)


def pandas_kind(values: Any) -> str:
    """Return the pandas type of a column's values."""
    return needed("pandas", "tables").api.types.infer_dtype(values, skipna=True)
