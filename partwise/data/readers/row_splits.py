"""Which rows of a table stay together in every split, and which are for testing because of their date."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partwise.data.readers.frames import NUMBER_KINDS, DataTable
from partwise.data.readers.labels import encode_labels
from partwise.data.reading import Reading
from partwise.data.rules import parse_test_after
from partwise.data.source import Source
from partwise.errors import DataError, needed


def with_row_splits(source: Source, table: DataTable, reading: Reading) -> Source:
    """Return the source of a table, with the groups and the test rows that columns of the table name."""
    if reading.split_by is not None:
        groups, _ = encode_labels(table.filled(reading.split_by), table.column(reading.split_by))
        source = replace(source, groups=groups)
    if reading.test_after is not None:
        source = replace(source, late=late_rows(table, reading.test_after))
    return source


def late_rows(table: DataTable, test_after: str) -> Tensor:
    """Return (rows,) bool: which rows are for testing; times without a zone are in UTC."""
    column, first = parse_test_after(test_after)
    numbers, where = table.kind(column) in NUMBER_KINDS, table.column(column)
    if numbers != isinstance(first, float):
        kind = "numbers" if numbers else "no numbers"
        raise DataError(f"{where}: {kind}, which test_after = '{test_after}' does not fit; write a date or a number")
    values: Any = table.filled(column).astype(np.float64) if numbers else _moments(table, column)
    late = values >= (first if numbers else needed("pandas", "tables").to_datetime(first, utc=True))
    if late.all() or not late.any():
        which, ends = "every row is" if late.all() else "no row is", f"{min(values)} to {max(values)}"
        raise DataError(f"{where}: with test_after = '{test_after}' {which} for testing; its values are {ends}")
    return torch.from_numpy(np.array(late))


def _moments(table: DataTable, column: str) -> Any:
    """Return the values of a column as moments in UTC; refuse what is no date."""
    cells = table.filled(column)
    values = needed("pandas", "tables").to_datetime(cells, utc=True, format="ISO8601", errors="coerce")
    for row in np.flatnonzero(values.isna())[:1].tolist():
        raise DataError(f"{table.cell(row, column)}: {str(cells[row])!r} is not a date; write 2020-01-31")
    return values
