"""The files below a folder or in a zip archive, read in place: nothing is written, an archive is never unpacked."""

import os
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import NoReturn, TypeVar

from partwise.errors import DataError, one_line

MOST_DEPTH = 8  # folders in folders; where more are found, a link leads in a circle
LARGEST_FILE = 1 << 28  # bytes of one file, unpacked

Built = TypeVar("Built")


class Files(ABC):
    """Files and folders by their path inside `path`, with slashes, in order; hidden ones and desktops' own left out."""

    def __init__(self, path: Path, files: list[str], folders: list[str]) -> None:
        self.path = path
        self.names, self.folders = (sorted(filter(_visible, names), key=_parts) for names in (files, folders))

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return the bytes of one file."""

    @abstractmethod
    def stamp(self, name: str) -> Hashable:
        """Return a stamp that changes when a file does."""

    def check_size(self, name: str, size: int) -> None:
        """Refuse a file that is too large when decompressed."""
        if size > LARGEST_FILE:
            raise DataError(f"{self.where(name)}: {size:,} bytes when decompressed; at most {LARGEST_FILE:,} are read")

    def where(self, name: str) -> str:
        """Return the name of a file for messages."""
        return f"{self.path}/{name}"


class Folder(Files):
    """The files below a folder; links are followed."""

    def __init__(self, path: Path) -> None:
        files, folders = [], []
        for top, below, names in os.walk(path, onerror=_refuse, followlinks=True):
            below[:] = filter(_visible, below)  # the others are not walked through
            inside = os.path.relpath(top, path).replace(os.sep, "/")
            prefix = "" if inside == "." else f"{inside}/"
            if prefix.count("/") >= MOST_DEPTH:
                raise DataError(f"{path}: folders nested more than {MOST_DEPTH} deep: {inside}")
            files += [prefix + name for name in names]
            folders += [prefix + name for name in below]
        super().__init__(path, files, folders)

    def read(self, name: str) -> bytes:
        """Return the bytes of a regular file."""
        if not os.path.isfile(self.path / name):  # a pipe would be waited for
            raise DataError(f"{self.where(name)}: not a regular file")
        self.check_size(name, _attempt(self.where(name), (self.path / name).stat).st_size)
        return _attempt(self.where(name), (self.path / name).read_bytes)

    def stamp(self, name: str) -> Hashable:
        """Return when a file was changed, and its size."""
        status = _attempt(self.where(name), (self.path / name).stat)
        return status.st_mtime_ns, status.st_size


class Archive(Files):
    """The files in a zip archive."""

    def __init__(self, path: Path) -> None:
        problem = f"{os.path.getsize(path):,} bytes that cannot be read as a zip archive"
        self.archive = _attempt(str(path), lambda: zipfile.ZipFile(path), problem)
        self.members = {member.filename: member for member in self.archive.infolist()}
        files = [name for name in self.members if not name.endswith("/")]
        above = {"/".join(_parts(name)[:depth]) for name in self.members for depth in range(1, name.count("/") + 1)}
        super().__init__(path, files, list(above))

    def read(self, name: str) -> bytes:
        """Return the bytes of a file, decompressed."""
        member = self.members[name]
        self.check_size(name, member.file_size)
        return _attempt(self.where(name), lambda: self.archive.read(member))

    def stamp(self, name: str) -> Hashable:
        """Return the checksum that the archive has of a file, and its size."""
        return self.members[name].CRC, self.members[name].file_size


def open_files(path: Path) -> Files:
    """Return the files of a folder or of a zip archive."""
    return Folder(path) if path.is_dir() else Archive(path)


def _attempt(where: str, action: Callable[[], Built], problem: str = "cannot be read") -> Built:
    try:
        return action()
    except Exception as error:  # a broken archive goes wrong in every way
        raise DataError(f"{where}: {problem}: {one_line(error)}") from error


def _refuse(error: OSError) -> NoReturn:
    raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error


def _parts(name: str) -> list[str]:
    return name.split("/")


def _visible(name: str) -> bool:
    return not any(part.startswith(".") or part == "__MACOSX" for part in _parts(name))
