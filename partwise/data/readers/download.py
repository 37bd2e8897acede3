"""Official downloads: checked under another name, then moved to the data set's place."""

import hashlib
import os
import shutil
import sys
import tarfile
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from partwise.data.readers.catalogue import catalogued
from partwise.data.readers.entry import Download
from partwise.data.readers.places import CACHE, Root, absolute, places_within
from partwise.errors import DataError, one_line

TIMEOUT = 30.0  # seconds without a byte after which a server is given up


def download(name: str, root: Root = None) -> Path:
    """Fetch the data set of this name into `root` or the user's cache, unless it is there; return its place."""
    known = catalogued(name)
    place, looked_in = known.find(root)
    if place is not None:
        return place.path
    if not known.downloads:
        raise known.missing(looked_in)
    base = absolute(root or CACHE)
    folder = places_within(base, known.folder)[0] if known.folder else base
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot be made: {error.strerror}") from error
    for file in known.downloads:
        fetch(file, folder)
    return folder


def fetch(file: Download, folder: Path) -> None:
    """Download one file, or what is needed of an archive, into a folder; keep files that exist."""
    name = file.url.rpartition("/")[2]
    every = {member: folder / Path(member).name for member in file.members or (name,)}
    wanted = {member: path for member, path in every.items() if not path.exists()}
    if not wanted:
        return
    part = folder / f"{name}.{os.getpid()}.part"  # another process may fetch the same
    try:
        _receive(file, part)
        if file.members:
            _unpack(part, wanted)
            part.unlink()
        else:
            part.replace(folder / name)
    except (OSError, HTTPException, EOFError, tarfile.TarError, zlib.error, ValueError) as error:
        if isinstance(error, HTTPError):
            error.close()  # it holds the connection
        kept = f"; the incomplete file is {part}" if part.exists() else ""
        raise DataError(f"{file.url}: cannot be downloaded: {one_line(error)}{kept}") from error


def _receive(file: Download, part: Path) -> None:
    digest, got = hashlib.md5(usedforsecurity=False), 0
    with (
        urllib.request.urlopen(file.url, timeout=TIMEOUT) as response,
        part.open("wb") as target,
        _progress(file) as advance,
    ):
        while got <= file.size and (piece := response.read1(1 << 16)):
            target.write(piece)
            digest.update(piece)
            got += len(piece)
            advance(len(piece))
    if got != file.size:
        raise ValueError(f"expected {file.size:,} bytes, got {f'{got:,}' if got < file.size else 'more'}")
    if digest.hexdigest() != file.md5:
        raise ValueError(f"expected md5 {file.md5}, got {digest.hexdigest()}")


def _unpack(archive: Path, wanted: dict[str, Path]) -> None:
    """Unpack members to these paths; no path comes from the archive, and no link is followed."""
    missing = dict(wanted)
    with tarfile.open(archive, "r:gz") as content:
        for member in content:
            source = content.extractfile(member) if member.name in missing and member.isfile() else None
            if source is not None:
                path = missing.pop(member.name)
                part = path.with_name(f"{path.name}.{os.getpid()}.part")
                with part.open("wb") as target:
                    shutil.copyfileobj(source, target)
                part.replace(path)
    if missing:
        raise ValueError(f"the archive lacks {', '.join(missing)}")


@contextmanager
def _progress(file: Download) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal, otherwise a line; both on the standard error."""
    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        print(f"downloading {file.url}, {file.size:,} bytes", file=sys.stderr, flush=True)
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=None), DownloadColumn())
    with Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console, expand=True) as progress:
        task = progress.add_task(file.url.rpartition("/")[2], total=file.size)
        yield lambda size: progress.advance(task, size)
