"""Data sets of R's packages: a data frame each, in the package or in a file of its own."""

from pathlib import Path

from partwise.data.readers.entry import DataEntry
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
    return source_of(table, columns.over(reading), known.name)
