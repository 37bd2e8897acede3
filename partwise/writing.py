"""Files that are either absent or whole. Symbolic links are replaced, never followed."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from partwise.errors import ConfigError, DiskFull

PART = ".part"  # ends the name of a file that is still being written
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk, a quota, the largest file that is allowed


def write(path: str | Path, content: bytes, durable: bool = False) -> None:
    """Write a file under another name, then rename it; refuse a place that cannot be written to.

    `durable`: the file survives a loss of power right after the call.
    """
    path = Path(os.path.expanduser(path))
    part = path.with_name(f"{path.name}{PART}")
    with refusing(path, len(content)):
        try:
            part.unlink(missing_ok=True)
            with open(part, "xb") as file:  # never through a link
                file.write(content)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            part.replace(path)
        except OSError:
            with suppress(OSError):
                part.unlink()
            raise
        if durable and hasattr(os, "O_DIRECTORY"):  # elsewhere a folder cannot be opened
            folder = os.open(path.parent, os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def append(path: str | Path, content: bytes) -> None:
    """Add to the end of a file, all or nothing."""
    with refusing(path, len(content)), open(path, "ab", buffering=0, opener=not_followed) as file:
        before, rest = file.tell(), content
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            file.truncate(before)
            raise


def make_folder(path: str | Path) -> None:
    """Make a folder and those above it, where they are missing."""
    with refusing(path):
        Path(path).mkdir(parents=True, exist_ok=True)


def not_followed(path: str, flags: int) -> int:
    """Open a file, but not through a symbolic link."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


@contextmanager
def refusing(path: str | Path, needed: int = 0) -> Iterator[None]:
    """Turn an error of writing a file into one line; for a full disk, add the bytes needed and free."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise ConfigError(f"cannot write '{path}': {error.strerror}") from None
        free = "an unknown number of"
        with suppress(OSError):
            free = f"{shutil.disk_usage(Path(path).parent).free:,}"
        raise DiskFull(
            f"disk full: cannot write '{path}' ({error.strerror}): {needed:,} bytes needed, {free} free"
        ) from None
