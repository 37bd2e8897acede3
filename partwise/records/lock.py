"""Allow one run at a time in a folder, by a lock that ends with its process and a file that names the holder."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from partwise.errors import ConfigError
from partwise.records.record import Record, WrongForm, fields_of, read_record
from partwise.writing import write

LOCK, HOLDER = ".lock", ".lock.json"


@dataclass(frozen=True)
class Holder(Record):
    """The process that holds a lock."""

    pid: int
    host: str
    started: str


class Lock:
    """A lock for one process at a time; `note` names a dead process whose lock was taken over."""

    def __init__(self, folder: Path):
        self.folder, self.holder = folder, folder / HOLDER
        self.file = FileLock(folder / LOCK, timeout=0)
        self.note = ""

    def check(self) -> None:
        """Refuse a folder in which a run goes on; nothing is written."""
        if os.path.lexists(self.folder / LOCK):
            self.acquire()
            self.file.release()

    @property
    def in_use(self) -> bool:
        """Return whether a run is active in this folder; a file that a dead one left does not count."""
        if not os.path.exists(self.holder):
            return False
        try:
            self.check()
        except ConfigError:
            return True
        return False

    @property
    def died(self) -> str:
        """Return the process that died here without ending its run, or ''."""
        return self.who() if os.path.exists(self.holder) and not self.in_use else ""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other runs out of the folder while entered."""
        self.acquire()
        try:
            started = datetime.now(UTC).isoformat(timespec="seconds")
            holder = Holder(os.getpid(), socket.gethostname(), started)
            write(self.holder, json.dumps(fields_of(holder)).encode())
            yield
        finally:
            for path in (self.holder, self.folder / LOCK):
                with suppress(OSError):  # where an open file cannot be removed, its release removes it
                    path.unlink()
            self.file.release()

    def acquire(self) -> None:
        """Take the lock, or refuse the folder; `note` then says what a dead run left."""
        if os.path.islink(self.folder / LOCK):  # it would be emptied, whatever it leads to
            raise ConfigError(f"'{self.folder / LOCK}' is a symbolic link, which partwise does not follow: remove it")
        try:
            self.file.acquire()
        except Timeout:
            raise ConfigError(f"'{self.folder}' is in use: {self.who()}; choose another folder") from None
        except OSError as error:
            raise ConfigError(f"cannot lock '{self.folder}': {error.strerror}") from None
        if os.path.exists(self.holder):
            self.note = f"took over '{self.folder}' from a run that died: {self.who()}"

    def who(self) -> str:
        """Return the process named in the file beside the lock."""
        try:
            holder = read_record(Holder, json.loads(self.holder.read_text(encoding="utf-8")), HOLDER)
        except (OSError, ValueError, WrongForm):  # it has not written the file yet
            return "another process"
        return f"process {holder.pid} on {holder.host}, since {holder.started}"
