"""The state of a node's clients on its own disk: a file for every answered request and for every stage.

A file holds the rows of clients that changed, and the answer that was sent. It is written whole, before the answer
leaves: a process may end at any moment, and a request that comes again is answered again from the file. A server that
goes on from an earlier round finds the clients as they were then.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partwise.engines.store import Store, StoreState, rows_of
from partwise.errors import DataError, PartwiseError
from partwise.records.record import AnyRecord, Record, fields_of, read_record
from partwise.records.wire import pack_tree, unpack_tree
from partwise.rounds.messages import Entered
from partwise.writing import make_folder, write

ROUNDS_KEPT = 3  # rounds to which a server may go back
COMMIT_NAME = re.compile(r"(\d{6,})-([01])-(\d{4,})(?:\.stage-(\d+)|\.commit)")


class Turn(NamedTuple):
    """The position of a request in a run; requests before the first round come first."""

    round: int
    begun: bool
    number: int

    @property
    def name(self) -> str:
        """Return the turn as the names of files begin."""
        return f"{self.round:06}-{int(self.begun)}-{self.number:04}"


@dataclass(frozen=True)
class Commit:
    """A file that lies in the folder."""

    turn: Turn
    stage: int | None  # that begins there; None: a request was answered
    path: Path

    @property
    def order(self) -> tuple[Turn, int, int]:
        """Return what files are sorted by: the stages of a turn come before its requests."""
        return (self.turn, 0, self.stage) if self.stage is not None else (self.turn, 1, 0)


@dataclass(frozen=True)
class Kept(Record):
    """The stored state of clients that have trained."""

    clients: NDArray[np.int64]
    steps: NDArray[np.int64]  # (clients,) that each took
    rows: list[list[Any]]  # of each tensor: its key, (those,) who has it, and (those, ...) what


@dataclass(frozen=True)
class AnswerFile(Kept):
    """The file of an answered request: the clients that it changed."""

    question: str
    answer: Tensor  # its bytes


@dataclass(frozen=True)
class StageFile(Record):
    """The file of a stage."""

    entered: Entered


class Commits:
    """The state of a node's clients in one run."""

    def __init__(self, folder: Path, store: Store):
        self.folder, self.store = folder, store
        self.first = StoreState(dict(store.initial), {}, np.zeros(0, np.int64), np.zeros_like(store.steps))
        self.stages = 0  # that have begun
        self.held: list[Commit] = []  # the files whose clients the store holds: all, but where a server has gone back
        self.whose: dict[Path, NDArray[np.int64]] = {}  # the clients whose rows lie in a file
        make_folder(folder)
        self.rebuild(self.files())

    def files(self) -> list[Commit]:
        """Return all that lies there, in the order in which it happened."""
        found = []
        for path in self.folder.iterdir():
            if match := COMMIT_NAME.fullmatch(path.name):
                round, begun, number, stage = match.groups()
                turn = Turn(int(round), begun == "1", int(number))
                found.append(Commit(turn, None if stage is None else int(stage), path))
        return sorted(found, key=lambda commit: commit.order)

    def stand(self, turn: Turn) -> None:
        """Bring the store to where clients were after a turn. Later files stay: they may be asked for again."""
        until = [commit for commit in self.files() if commit.turn <= turn]
        if until != self.held:
            self.rebuild(until)

    def rebuild(self, commits: list[Commit]) -> None:
        """Bring the store to where files say that clients are."""
        self.store.restore(self.first, [])
        self.stages, self.whose, self.held = 0, {}, commits
        for commit in commits:
            if commit.stage is not None:
                self.apply(read_commit(StageFile, commit.path).entered)
            else:
                self.put_back(commit.path, read_commit(AnswerFile, commit.path))

    def put_back(self, path: Path, kept: Kept) -> None:
        """Let clients hold what a file says."""
        self.whose[path] = kept.clients
        take(self.store, kept)
        self.store.saved()

    def apply(self, entered: Entered) -> None:
        """Let a stage begin."""
        self.store.enter(entered.handed, entered.fresh, entered.stage)
        self.stages += 1
        self.store.saved()

    # ---- as requests come

    def answered(self, turn: Turn, question: str) -> bytes | None:
        """Return the answer that was given to this very question at this turn; None: there is none yet."""
        path = self.folder / f"{turn.name}.commit"
        if not path.is_file():
            return None
        known = read_commit(AnswerFile, path)
        if known.question != question:
            return None
        self.stand(turn)
        return known.answer.numpy().tobytes()

    def go_back(self, turn: Turn) -> None:
        """Forget what happened at a turn and after it: the server goes on from before."""
        commits = self.files()
        for commit in reversed(commits):
            if commit.turn >= turn:
                commit.path.unlink()
        before = [commit for commit in commits if commit.turn < turn]
        if before != self.held:
            self.rebuild(before)

    def enter(self, turn: Turn, stages: list[Entered]) -> None:
        """Let stages begin at a turn; what lies there of later ones began otherwise."""
        for commit in reversed(self.files() if stages else []):
            if commit.turn > turn:
                commit.path.unlink()
        for entered in stages:
            commit = Commit(turn, entered.stage, self.folder / f"{turn.name}.stage-{entered.stage}")
            write(commit.path, pack_tree(StageFile(entered)), durable=True)
            self.apply(entered)
            self.held.append(commit)

    def put(self, turn: Turn, question: str, answer: bytes) -> None:
        """Keep what changed since the last time, and the answer that is about to be sent."""
        changed = kept_of(self.store, np.flatnonzero(self.store.changed))
        sent = torch.frombuffer(bytearray(answer), dtype=torch.uint8)
        commit = Commit(turn, None, self.folder / f"{turn.name}.commit")
        write(commit.path, pack_tree(AnswerFile(**fields_of(changed), question=question, answer=sent)), durable=True)
        self.store.saved()
        self.held.append(commit)
        self.whose[commit.path] = changed.clients
        for old in list(self.needless(turn.round)):
            old.path.unlink()
            self.held.remove(old)
            del self.whose[old.path]

    def needless(self, round: int) -> Iterator[Commit]:
        """Yield the files of rounds long past whose clients all have newer rows in later files."""
        newer = np.zeros(len(self.store.row), np.bool_)
        for commit in reversed(self.held):
            if commit.stage is None and commit.turn.round < round - ROUNDS_KEPT:
                own = self.whose[commit.path]
                if newer[own].all():
                    yield commit
                newer[own] = True


def kept_of(store: Store, clients: NDArray[np.int64]) -> Kept:
    """Return what those of some clients keep that ever trained."""
    clients = clients[store.row[clients] >= 0]
    found = sorted(rows_of(store.sheets, store.row, clients).items())
    return Kept(clients, store.steps[clients], [[list(key), *each] for key, each in found])


def take(store: Store, kept: Kept) -> None:
    """Put the stored state of clients into a store."""
    if len(kept.clients):
        store.save(kept.clients, {}, (kept.steps - store.steps[kept.clients]).tolist())
    for key, owners, values in kept.rows:
        store.save(owners, {tuple(key): values.to(store.device)}, [0] * len(owners))


def read_commit(kind: type[AnyRecord], path: Path) -> AnyRecord:
    """Return what a file holds; one that is damaged is named, for nobody but the silo can do something about it."""
    try:
        return read_record(kind, unpack_tree(path.read_bytes()), path.name)
    except (OSError, PartwiseError):
        whole = path.parent.parent
        raise DataError(f"'{path}' is damaged: put it back, or remove '{whole}' and its clients begin again") from None
