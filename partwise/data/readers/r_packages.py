"""Data sets of R's packages: a data frame each, in the package or in a file of its own."""

from dataclasses import replace
from pathlib import Path

from partwise.data.readers.entry import DataEntry
from partwise.data.readers.frames import DataTable
from partwise.data.readers.places import DataPlace
from partwise.data.readers.r_files import read_package_frame
from partwise.data.readers.tables import opened_table, source_of
from partwise.data.reading import Reading
from partwise.data.source import Source


def load(known: DataEntry, place: DataPlace, reading: Reading) -> Source:
    """Return the data frame of a named data set; settings of tables come before what the catalogue says of columns."""
    assert known.columns is not None
    columns = known.columns
    if place.path.suffix == ".rdx":
        table = read_package_frame(place.path, columns.frame)
    else:
        table = opened_table(Path(f"{place.path}#{columns.frame}"), reading)
    wanted = columns.over(reading)
    table, lacking = with_client(table, wanted.column or columns.client)
    source = source_of(table, wanted, known.name)
    said = columns.note if reading.label == Reading.label else ""
    return replace(source, notes=(*source.notes, *filter(None, (said, lacking))))


def with_client(table: DataTable, column: str) -> tuple[DataTable, str]:
    """Return the rows of a table that name their client, and a note of how many others there are."""
    if column not in table.frame:  # refused where columns are looked at
        return table, ""
    kept = table.frame[column].notna()
    without = int((~kept).sum())
    if not without:
        return table, ""
    note = f"{without:,} of {len(kept):,} rows name no client ('{column}' is empty) and are left out"
    return replace(table, frame=table.frame[kept].reset_index(drop=True)), note
