"""The memory that a data set may use: refuse files whose decompressed size exceeds it, before decompressing."""

import os
from contextlib import suppress
from pathlib import Path

from partwise.errors import DataError

SHARE_OF_FREE = 0.5  # of the memory that is free
ASSUMED_FREE = 1 << 33  # bytes, where the system does not say what is free


def room() -> int:
    """Return the bytes of memory that one data set may use."""
    return int(SHARE_OF_FREE * min(free_here(), free_in_group()))


def free_here() -> int:
    """Return the bytes of memory that are free without swapping."""
    with suppress(OSError, ValueError, IndexError), open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    if hasattr(os, "sysconf"):
        with suppress(OSError, ValueError):
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return ASSUMED_FREE


def free_in_group(group: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that the container's limit leaves; without a limit, more than any machine has."""
    with suppress(OSError, ValueError):
        return int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
    return 1 << 62


def check_room(where: object, needed: int, hint: str = "") -> None:
    """Refuse content that needs more bytes than the memory has."""
    if needed > (most := room()):
        raise DataError(f"{where}: needs {needed:,} bytes of memory, but only {most:,} may be used{hint}")


def check_plain_file(path: str | Path) -> None:
    """Refuse devices, which never end, and pipes, which block."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise DataError(f"{path}: not a regular file")
