"""Files that are either absent or whole."""

import os
from contextlib import suppress
from pathlib import Path

from partwise.errors import ConfigError

PART = ".part"  # ends the name of a file that is still being written


def write(path: str | Path, content: bytes, durable: bool = False) -> None:
    """Write a file under another name, then rename it; a place that cannot be written to is refused.

    `durable`: it is there when the machine loses its power in the next moment.
    """
    path = Path(path)
    part = path.with_name(f"{path.name}{PART}")
    try:
        with open(part, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
        if durable and hasattr(os, "O_DIRECTORY"):  # elsewhere a folder cannot be opened
            folder = os.open(path.parent, os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise ConfigError(f"cannot write '{path}': {error.strerror}") from None
