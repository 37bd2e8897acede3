"""Finding the files of data sets and reading their bytes; nothing is changed."""

import gzip
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from partwise.data.room import check_plain_file, room
from partwise.errors import DataError

CACHE = "~/.cache/partwise"  # where downloads go
SYSTEM = "/usr/share/datasets"  # Debian's dataset-* packages
R_LIBRARIES = ("/usr/local/lib/R/site-library", "/usr/lib/R/site-library", "/usr/lib/R/library")  # R's packages

Root = str | Path | None


@dataclass(frozen=True)
class Layout:
    """One way in which a data set may be stored: a folder or an archive of this name, with these files in it."""

    name: str  # may hold a star: pacs*.zip
    files: tuple[str, ...] = ()
    known_by: tuple[str, ...] = ()  # what else lies in the folder, where it may have another name
    unlike: tuple[str, ...] = ()  # names of folders with another data set whose files are called the same

    def may_be(self, folder: Path) -> bool:
        """Return whether a folder of any name may be the place: it holds files that only this data set has."""
        named = any(folder.match(name) for name in (self.name, *self.unlike))
        held = all(os.path.exists(folder / name) for name in self.known_by)
        return bool(self.files or self.known_by) and held and not named


@dataclass(frozen=True)
class DataPlace:
    """The place of a data set: its folder, archive or file, and the paths of its layout's files."""

    path: Path
    files: tuple[Path, ...] = ()


def bases(root: Root, libraries: Sequence[str] = ()) -> Iterator[Path]:
    """Return the folders to search, in order: `root`, $PARTWISE_DATA, ./data, the user's cache, the system's."""
    given = (root, os.environ.get("PARTWISE_DATA"))
    for text in (*(place for place in given if place), "data", CACHE, *(libraries or [SYSTEM])):
        yield absolute(text)


def absolute(path: str | Path) -> Path:
    """Return the whole path of a file; `~` stands for the user's folder."""
    return Path(os.path.abspath(os.path.expanduser(path)))


def places_within(base: Path, name: str) -> list[Path]:
    """Return the places of a layout's name at a base: the base itself if it has that name, and those in it."""
    # A place counts by its name alone, because the files of MNIST and of Fashion-MNIST are called the same.
    itself = [base] if base.match(name) else []
    return itself + (sorted(base.glob(name)) if "*" in name else [base / name])


def find_place(
    layouts: Sequence[Layout], root: Root, libraries: Sequence[str] = ()
) -> tuple[DataPlace | None, list[str]]:
    """Return the first place with all files of a layout, plain or .gz, and the places searched in vain."""
    looked_in: list[str] = []
    itself = absolute(root) if root else None  # what a user points at may be called anything
    for base in bases(root, libraries):
        places = [
            (layout, place) for layout in layouts for place in places_within(base, layout.name) or [base / layout.name]
        ]
        places += [(layout, base) for layout in layouts if base == itself and layout.may_be(base)]
        for layout, place in places:
            # os.path, because pathlib raises where a folder may not be entered.
            paths = {file: (place / f"{file}.gz", place / file) for file in layout.files}
            found = {file: path for file, both in paths.items() for path in both if os.path.isfile(path)}
            lacking = [file for file in layout.files if file not in found]
            if not lacking and os.path.exists(place):
                return DataPlace(place, tuple(found[file] for file in layout.files)), looked_in
            looked_in.append(f"{place} (lacks {', '.join(lacking)})" if found else str(place))
    return None, list(dict.fromkeys(looked_in))


def contents(path: Path, announced: Callable[[bytearray], int]) -> bytearray:
    """Return the bytes of a plain or .gz file; refuse another number than `announced` reads from its beginning."""
    raw, cut, most = bytearray(), "", room()
    check_plain_file(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while piece := file.read1(1 << 20):
                raw += piece
                if len(raw) > most:
                    raise DataError(f"{path}: larger than {most:,} bytes, the memory that one data set may use")
    except EOFError:
        cut = "; its compressed data end too early"
    except (OSError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    expected = announced(raw)
    if cut or len(raw) != expected:
        raise DataError(f"{path}: expected {expected:,} bytes, got {len(raw):,}{cut}")
    return raw
