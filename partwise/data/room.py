"""How much of a file's content memory has room for: what a few packed bytes become is seen before it is there."""

import os
from contextlib import suppress
from pathlib import Path

from partwise.errors import DataError

SHARE = 0.5  # of the memory that is free
UNKNOWN = 1 << 33  # bytes, where the system does not say what is free


def room() -> int:
    """Bytes that one data set may take."""
    return int(SHARE * min(free_here(), free_in_group()))


def free_here() -> int:
    """What programs can still get without swapping."""
    with suppress(OSError, ValueError, IndexError), open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    if hasattr(os, "sysconf"):
        with suppress(OSError, ValueError):
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return UNKNOWN


def free_in_group(group: Path = Path("/sys/fs/cgroup")) -> int:
    """What the limit of a container leaves; where there is none, more than any machine has."""
    with suppress(OSError, ValueError):
        return int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
    return 1 << 62


def check_room(where: object, needed: int, hint: str = "") -> None:
    """Refuse what would need so many bytes."""
    if needed > (most := room()):
        raise DataError(f"{where}: would need {needed:,} bytes of memory, and {most:,} are the most to be used{hint}")


def check_plain(path: str | Path) -> None:
    """Refuse devices, which never end, and pipes, which are waited for."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise DataError(f"{path}: is no plain file")
