"""Where the files of data sets lie, and how their bytes are read: found or refused in one line, never changed."""

import gzip
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from partwise.errors import DataError

SYSTEM = "/usr/share/datasets"  # Debian's dataset-* packages


def places(folders: Sequence[str], root: str | Path | None) -> Iterator[Path]:
    """Where to look, in order: `root`, $PARTWISE_DATA, ./data, the user's cache, the system; each or `folders` in it.

    A place counts by its name alone, because the files of MNIST and of Fashion-MNIST are called the same.
    """
    given = (root, os.environ.get("PARTWISE_DATA"))
    for text in (*(place for place in given if place), "data", "~/.cache/partwise", SYSTEM):
        base = Path(os.path.abspath(os.path.expanduser(text)))
        for folder in folders:
            if base.match(folder):
                yield base
            yield base / folder


def find(name: str, folders: Sequence[str], files: Sequence[str], root: str | Path | None, obtain: str) -> list[Path]:
    """The paths of `files`, plain or as .gz, in the first place that holds all of them."""
    looked_in = []
    for place in places(folders, root):
        # os.path, because pathlib raises where a folder may not be entered.
        found = {file: path for file in files for path in (place / f"{file}.gz", place / file) if os.path.isfile(path)}
        lacking = [file for file in files if file not in found]
        if not lacking:
            return [found[file] for file in files]
        looked_in.append(f"{place} (lacks {', '.join(lacking)})" if found else str(place))
    raise DataError(
        f"data set '{name}' is missing: it needs {', '.join(files)} (plain or .gz); looked in {', '.join(looked_in)}; "
        f"nothing is downloaded: {obtain}"
    )


def contents(path: Path, announced: Callable[[bytearray], int]) -> bytearray:
    """All bytes of a plain or .gz file; refused unless there are as many as `announced` reads from their beginning."""
    raw, cut = bytearray(), ""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while piece := file.read1(1 << 20):
                raw += piece
    except EOFError:
        cut = "; its compressed data end too early"
    except (OSError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error
    expected = announced(raw)
    if cut or len(raw) != expected:
        raise DataError(f"{path}: expected {expected:,} bytes, got {len(raw):,}{cut}")
    return raw
