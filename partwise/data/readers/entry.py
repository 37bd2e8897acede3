"""What partwise knows about a data set that has a name, before any of it is read."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from partwise.data.readers.places import Layout, Place, Root, find
from partwise.data.reading import Reading
from partwise.data.source import Source, image_source
from partwise.errors import DataError


@dataclass(frozen=True)
class Download:
    """A file that a data set's makers offer."""

    url: str
    size: int  # in bytes
    md5: str
    members: tuple[str, ...] = ()  # what is taken out of an archive; empty: the file is kept as it is


@dataclass(frozen=True)
class Package:
    """An installed package that brings a data set along."""

    module: str
    name: str  # for pip
    file: str  # in the module's folder


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A named data set: what it is, where it may lie, how it is obtained, and the function that reads it."""

    name: str
    summary: str
    samples: str
    classes: int
    shape: tuple[int | None, ...]  # of a sample; None: as the files say
    model: str
    read: Callable[["Entry", Place, Reading], Source]
    partition: str = "dir:0.1"
    image_size: int | None = None  # the side to which images of many sizes are brought where nobody says one
    package: Package | None = None
    layouts: tuple[Layout, ...] = ()
    obtain: str = ""
    downloads: tuple[Download, ...] = ()
    folder: str = ""  # where downloads go, in the user's cache

    def find(self, root: Root) -> tuple[Place | None, list[str]]:
        """Where it lies, if it does, and where was looked in vain."""
        if self.package is None:
            return find(self.layouts, root)
        spec = find_spec(self.package.module)  # found without importing the package
        if spec is None or spec.origin is None:
            return None, [f"the package {self.package.name}, which is not installed"]
        return Place(Path(spec.origin).parent / self.package.file), []

    def where(self, place: Place) -> str:
        """A place in words."""
        return f"in the package {self.package.name}" if self.package else str(place.path)

    def missing(self, looked_in: list[str]) -> DataError:
        """The refusal that says what is needed, where it was looked for, and how it is obtained."""
        if self.package is not None:
            package = self.package.name
            return DataError(f"data set '{self.name}' lies in the package {package}, not installed: {self.obtain}")
        files = dict.fromkeys(file for layout in self.layouts for file in layout.files)
        needed = f" it needs {', '.join(files)} (plain or .gz);" if files else ""
        fetch = f"fetch it with `partwise data {self.name} --download`, or " if self.downloads else ""
        return DataError(
            f"data set '{self.name}' is missing:{needed} looked in {', '.join(looked_in)}; {fetch}{self.obtain}"
        )

    def images(self, x: NDArray[np.uint8], y: NDArray[np.integer], train: int, white: float = 255.0) -> Source:
        """Images whose values 0 .. white the network sees as -1 .. 1."""
        labels = torch.from_numpy(y.astype(np.int64))
        return image_source(self.name, torch.from_numpy(x), labels, self.classes, train, white, model=self.model)
