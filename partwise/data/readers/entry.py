"""A named data set, described before any of it is read."""

from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from partwise.data.readers.places import DataPlace, Layout, Root, find_place
from partwise.data.reading import Reading
from partwise.errors import DataError

if TYPE_CHECKING:  # facts are told without torch and numpy
    import numpy as np
    from numpy.typing import NDArray

    from partwise.data.source import Source


@dataclass(frozen=True)
class Download:
    """A file that a data set's makers offer."""

    url: str
    size: int  # in bytes
    md5: str
    members: tuple[str, ...] = ()  # what is taken out of an archive; empty: the file is kept as it is


@dataclass(frozen=True)
class Package:
    """An installed package that contains a data set, or makes it."""

    module: str
    name: str  # for pip
    file: str = ""  # in the module's folder; empty: the data are made on the spot


@dataclass(frozen=True, kw_only=True)
class TableColumns:
    """What the columns of a named table are, unless settings say otherwise."""

    frame: str  # the name of the data frame
    label: str
    client: str
    drop: tuple[str, ...] = ()  # numbers of people, and what follows from other columns
    split_by: str | None = None  # who occurs in several rows
    note: str = ""  # what a run says of what is left out
    text: str | None = None  # which holds texts

    @property
    def no_features(self) -> tuple[str, ...]:
        """Return the columns that are no features beside the label, whatever divides the rows."""
        return (*self.drop, self.client, *([self.split_by] if self.split_by else []))

    def over(self, reading: Reading) -> Reading:
        """Return settings of tables, which come before what is said here."""
        client = reading.column or self.client
        return replace(
            reading,
            label=self.label if reading.label == Reading.label else reading.label,
            column=client,
            drop=tuple(column for column in (*self.no_features, *reading.drop) if column != client),
            split_by=reading.split_by or self.split_by,
            text=reading.text or self.text,
        )


@dataclass(frozen=True, kw_only=True)
class DataEntry:
    """A named data set: its description, its possible places, how to obtain it, and its reader."""

    name: str
    summary: str
    samples: str
    classes: int  # 0: labels are numbers
    shape: tuple[int | None, ...]  # of a sample; None: as the files say
    model: str
    reader: str  # the function that reads it, by the name of its file in this folder: idx.load
    partition: str = "dir:0.1"
    image_size: int | None = None  # the side to which images of many sizes are brought where nobody says one
    package: Package | None = None
    columns: TableColumns | None = None  # of a table
    layouts: tuple[Layout, ...] = ()
    libraries: tuple[str, ...] = ()  # folders to search in place of the system's data sets
    obtain: str = ""
    downloads: tuple[Download, ...] = ()
    folder: str = ""  # where downloads go, in the user's cache

    def find(self, root: Root) -> tuple[DataPlace | None, list[str]]:
        """Return the place of the data set, if found, and the places searched in vain."""
        if self.package is None:
            return find_place(self.layouts, root, self.libraries)
        spec = find_spec(self.package.module)  # found without importing the package
        if spec is None or spec.origin is None:
            return None, [f"the package {self.package.name}, which is not installed"]
        return DataPlace(Path(spec.origin).parent / self.package.file), []

    def where(self, place: DataPlace) -> str:
        """Return a place in words."""
        return f"in the package {self.package.name}" if self.package else str(place.path)

    def missing(self, looked_in: list[str]) -> DataError:
        """Return the error for a missing data set: what is needed, where it was searched for, and how to get it."""
        if self.package is not None:
            package = self.package.name
            return DataError(f"data set '{self.name}' lies in the package {package}, not installed: {self.obtain}")
        files = dict.fromkeys(file for layout in self.layouts for file in layout.files)
        needed = f" it needs {', '.join(files)} (plain or .gz);" if files else ""
        fetch = f"fetch it with `partwise data {self.name} --download`, or " if self.downloads else ""
        return DataError(
            f"data set '{self.name}' is missing:{needed} looked in {', '.join(looked_in)}; {fetch}{self.obtain}"
        )

    def read(self, place: DataPlace, reading: Reading) -> "Source":
        """Read the data set from its place."""
        file, function = self.reader.split(".")
        return getattr(import_module(f"partwise.data.readers.{file}"), function)(self, place, reading)

    def images(self, x: "NDArray[np.uint8]", y: "NDArray[np.integer]", train: int, white: float = 255.0) -> "Source":
        """Return images whose values 0 .. white the network sees as -1 .. 1."""
        import torch

        from partwise.data.source import image_source

        labels = torch.from_numpy(y.astype("int64"))
        return image_source(self.name, torch.from_numpy(x), labels, self.classes, train, white, model=self.model)
