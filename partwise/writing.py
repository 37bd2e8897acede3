"""Files that are either absent or whole."""

from contextlib import suppress
from pathlib import Path

from partwise.errors import ConfigError

PART = ".part"  # ends the name of a file that is still being written


def write(path: str | Path, content: bytes) -> None:
    """Write a file under another name, then rename it; a place that cannot be written to is refused."""
    path = Path(path)
    part = path.with_name(f"{path.name}{PART}")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise ConfigError(f"cannot write '{path}': {error.strerror}") from None
