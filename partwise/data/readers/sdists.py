"""Files inside the source archive of a Python package, as `pip download --no-binary :all:` fetches it."""

import fnmatch
import io
import tarfile
import zlib
from pathlib import Path

from partwise.data.room import check_plain_file, check_room
from partwise.errors import DataError, one_line


def archived_files(archive: Path | bytes, pattern: str, where: Path) -> dict[str, bytes]:
    """Return the content of the files in a .tar.gz whose paths match a pattern with stars; nothing is unpacked.

    `archive` is its path, or its content where it lies in another archive. `where` is what errors name.
    """
    result: dict[str, bytes] = {}
    if isinstance(archive, Path):
        check_plain_file(archive)
    try:
        source = archive.open("rb") if isinstance(archive, Path) else io.BytesIO(archive)
        with source, tarfile.open(fileobj=source, mode="r:gz") as files:
            for member in files:
                if member.isfile() and fnmatch.fnmatch(member.name, pattern):
                    check_room(f"{where}: {member.name}", member.size + sum(map(len, result.values())))
                    content = files.extractfile(member)
                    assert content is not None
                    result[member.name] = content.read()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"{where}: cannot be read: {one_line(error)}") from None
    if not result:
        raise DataError(f"{where}: holds no file {pattern}; download it again")
    return result
