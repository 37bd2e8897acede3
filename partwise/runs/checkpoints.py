"""Checkpoints: the files from which a run continues as if it had never stopped.

RUN/checkpoints holds for each of them a `round-N.json`, with the SHA-256 of every file of it. `server-N.state` is all
that lives from round to round but the clients' rows; `clients-N-K.safetensors` are the rows of clients that
changed since the checkpoint before: what did not change is in the files of earlier ones, which stay as long as they
are needed. Files are written under another name, synchronised and renamed, `round-N.json` last: a process may end at
any moment, and leaves the checkpoint before or this one. Nothing is pickled, so nothing that is read can be code.
"""

import hashlib
import json
import logging
import math
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partwise.data.source import fingerprinted
from partwise.engines.client_engine import EngineState
from partwise.engines.packing import Decisions
from partwise.engines.store import Key, Rows, Sheet, Store, StoreState, rows_of
from partwise.errors import ConfigError, Interrupted
from partwise.network.view import ClassRows, PerClient
from partwise.records.codec import Codec, Decoder, Unreadable, Unstorable, checksum
from partwise.records.metrics import FIELDS, Score
from partwise.records.record import Record, WrongForm, fields_of, read_record
from partwise.rounds.events import Event
from partwise.rounds.messages import Entered
from partwise.rounds.mixing import Copies
from partwise.rounds.server_state import ByteCounts, LedgerState, RoundByteCounts, ServerSnapshot, ServerState
from partwise.runs.choose import MadeWith
from partwise.runs.metrics import validation_value
from partwise.runs.observers import Observer, Seen
from partwise.runs.pace import CHECKPOINTS_KEPT, Pace
from partwise.runs.simulation import RunState, Simulation
from partwise.runs.stopping import Stopping
from partwise.writing import PART, make_folder, write

STATE_TYPES = (ServerState, ServerSnapshot, LedgerState, RoundByteCounts, ByteCounts, StoreState, EngineState)
CHECKPOINT_TYPES = (
    Copies,
    ClassRows,
    PerClient,
    Event,
    Score,
    Decisions,
    Entered,
    *STATE_TYPES,
)  # what states hold beside plain values
STATE_CODEC = Codec(CHECKPOINT_TYPES)
ROWS_FILE_BYTES = 2**28  # bytes of rows in a file
FORMAT = 4
BEFORE = 3  # the state stood in `round-N.json`, its tensors in `server-N.safetensors`
NAMES_BEFORE = {"state": "tree", "tensors": "state", "made with": "made_with"}
OURS = re.compile(r"round-\d{6,}\.json|server-\d{6,}\.(state|safetensors)|(clients|best)-\d{6,}-\d+\.safetensors")
OWNERS_OF, ROWS_OF = "clients of ", "rows of "  # begin the names of tensors: who has something of its own, and what

Use = Literal["clients", "best"]  # rows as they are, and as early stopping may go back to them

log = logging.getLogger(__name__)


class Damaged(Exception):
    """Why a checkpoint cannot be used."""


@dataclass(frozen=True)
class Manifest(Record):
    """A checkpoint: what it is of, and its files."""

    format: int
    round: int
    over: bool  # all rounds were done, and the method's `end` too
    validation: float | None  # the value by which rounds are chosen
    made_with: MadeWith
    files: dict[str, str]  # by name: the SHA-256
    state: str  # the file of the state
    clients: list[str]  # files of rows
    best: list[str]  # of the round that early stopping may go back to


class Checkpoint:
    """A complete checkpoint in a folder: every file matches its SHA-256."""

    def __init__(self, path: Path):
        self.folder = path.parent
        digest, _, text = read_bytes(path).partition(b"\n")
        if digest != checksum(text).hex().encode():
            raise Damaged(f"'{path}' is not what was written")
        content, self.tree = json.loads(text), None
        version = content["format"]
        if version == BEFORE:
            content = {NAMES_BEFORE.get(name, name): value for name, value in content.items()}
            self.tree = content.pop("tree")
        elif version != FORMAT:
            raise Damaged(f"'{path}' was written by another version of partwise")
        self.manifest = read_record(Manifest, content, path.name)
        for name, expected in self.manifest.files.items():
            if checksum(read_bytes(self.folder / name)).hex() != expected:
                raise Damaged(f"'{self.folder / name}' is not what was written")
        self.round, self.over = self.manifest.round, self.manifest.over
        self.made_with = self.manifest.made_with

    def state(self, device: torch.device) -> RunState:
        """Return the state, with tensors that lay on a device on this one."""
        path = self.folder / self.manifest.state
        if self.tree is not None:
            return read_record(
                RunState, Decoder(tensors_in(path), CHECKPOINT_TYPES, device).decode(self.tree), path.name
            )
        try:
            return read_record(RunState, STATE_CODEC.unpacked(read_bytes(path), device=device), path.name)
        except Unreadable as error:  # though its sum is right
            raise ConfigError(f"'{path}' contains no state ({error}); --overwrite begins again") from None

    def rows(self, use: Use) -> Iterator[Rows]:
        """Yield the rows of clients, file after file."""
        for name in self.manifest.clients if use == "clients" else self.manifest.best:
            tensors = tensors_in(self.folder / name)
            keys = [name.removeprefix(ROWS_OF) for name in tensors if name.startswith(ROWS_OF)]
            yield {tuple(json.loads(key)): (tensors[OWNERS_OF + key].numpy(), tensors[ROWS_OF + key]) for key in keys}


def read_bytes(path: Path) -> bytes:
    """Return the content of a checkpoint's file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise Damaged(f"'{path}' cannot be read: {error.strerror}") from None


def tensors_in(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file by name."""
    from safetensors import SafetensorError  # a run without a folder does without
    from safetensors.torch import load

    try:
        return load(read_bytes(path))
    except SafetensorError as error:  # though its sum is right
        raise ConfigError(f"'{path}' contains no tensors ({error}); --overwrite begins again") from None


def checkpoints_in(folder: Path) -> Iterator[Checkpoint]:
    """Yield the complete checkpoints, the newest first; log what is wrong with the others."""
    for path in manifests_in(folder):
        try:
            yield Checkpoint(path)
        except (Damaged, WrongForm, ValueError, KeyError, TypeError) as error:
            log.warning("skipping a damaged checkpoint: %s", error)


class Checkpoints(Observer):
    """Write checkpoints of a run as they are due, and end the run after a signal."""

    def __init__(self, folder: Path, pace: Pace):
        self.folder, self.pace = folder, pace
        self.made: MadeWith | None = None  # once the run has begun
        self.sums: dict[str, str] = {}  # SHA-256 of files
        self.sizes: dict[str, int] = {}  # clients whose rows are in a file
        self.where: NDArray[np.object_] = np.empty(0, object)  # (clients,) the file with the newest row of each
        self.best: tuple[int, list[str]] = 0, []  # the round that early stopping goes back to, and the files of it
        self.kept: dict[
            int, tuple[float, set[str]]
        ] = {}  # by round: what it is worth on validation data, and its files
        self.off = False  # the run holds what cannot be written down

    def keep_to(self, pace: Pace) -> None:
        """Let another say when checkpoints are due."""
        self.pace = pace

    def begin(self, simulation: Simulation) -> None:
        """Find out how the run is made, before its first round."""
        self.made_with(simulation)
        if not len(self.where):
            self.where = np.full(simulation.server.clients, "", object)

    def made_with(self, simulation: Simulation) -> MadeWith:
        """Return how the run is made; find it out once, for it reads all samples."""
        if self.made is None:
            self.made = made_with(simulation)
        return self.made

    def round(self, seen: Seen) -> None:
        """Write a checkpoint if one is due; end the run if a signal asked for it."""
        simulation, number = seen.simulation, seen.record.round
        due = self.pace.due(number, simulation.total)
        if (due or simulation.over) and not self.off:
            begun = time.monotonic()
            try:
                self.write(simulation)
            except Unstorable as error:
                self.off = True
                log.warning("no checkpoints: %s; they hold tensors, arrays, numbers, texts, lists and dicts", error)
            self.pace.took(time.monotonic() - begun)
        asked = self.pace.interrupts.signal
        if asked is not None and due and not simulation.over:
            raise Interrupted(f"after round {number}", asked, *(["it has no checkpoints"] if self.off else []))

    # ---- writing

    def write(self, simulation: Simulation) -> None:
        """Write a checkpoint of a run between two rounds, and clear away what no kept one needs."""
        store, history = simulation.engine.store, simulation.history
        number = history.rounds[-1].round  # early stopping may have gone back
        state = STATE_CODEC.packed(simulation.state(), "run")
        make_folder(self.folder)
        clients = self.write_clients(store, number)
        best = self.write_best(simulation.stopping)
        name = f"server-{number:06}.state"
        self.put(name, state)
        needed = [name, *clients, *best]
        value = validation_value(history.rounds[-1], "received", history.metric)
        content = Manifest(
            format=FORMAT,
            round=number,
            over=simulation.over,
            validation=value,
            made_with=self.made_with(simulation),
            files={file: self.sums[file] for file in needed},
            state=name,
            clients=clients,
            best=best,
        )
        text = json.dumps(fields_of(content), default=fields_of).encode()
        write(self.folder / manifest(number), checksum(text).hex().encode() + b"\n" + text, durable=True)
        store.saved()
        self.kept[number] = worth(value, history.metric), set(needed)
        self.clear()

    def write_clients(self, store: Store, round: int) -> list[str]:
        """Write the rows that changed, or all where most of what lies in files is old; return the files of all."""
        known = store.row >= 0
        still = known & ~store.changed
        files = sorted(set(self.where[still]) - {""})  # a client may keep nothing
        if sum(self.sizes[name] for name in files) > 2 * still.sum():
            still, files = np.zeros_like(still), []
        return files + self.write_rows("clients", store.sheets, store.row, np.flatnonzero(known & ~still), round)

    def write_best(self, stopping: Stopping | None) -> list[str]:
        """Write what clients had in the round that early stopping may go back to, once; return the files of it."""
        if stopping is not None and stopping.state is not None and stopping.round != self.best[0]:
            sheets, row, _, _ = stopping.state[0]
            self.best = (
                stopping.round,
                self.write_rows("best", sheets, row, np.flatnonzero(row >= 0), stopping.round),
            )
        return self.best[1]

    def write_rows(
        self,
        use: Use,
        sheets: dict[Key, Sheet],
        row: NDArray[np.int64],
        clients: NDArray[np.int64],
        round: int,
    ) -> list[str]:
        """Write some clients' rows into files of a bearable size, and return their names."""
        from safetensors.torch import save

        each = sum(sheet.values[:1].nbytes for sheet in sheets.values())
        step, names = max(1, ROWS_FILE_BYTES // max(1, each)), list[str]()
        for start in range(0, len(clients) if sheets else 0, step):
            some, name = clients[start : start + step], f"{use}-{round:06}-{len(names)}.safetensors"
            tensors = {}
            for key, (owners, values) in rows_of(sheets, row, some).items():
                tensors[OWNERS_OF + json.dumps(key)] = torch.from_numpy(owners)
                tensors[ROWS_OF + json.dumps(key)] = values.contiguous()
            self.put(name, save(tensors))
            self.sizes[name] = len(some)
            if use == "clients":
                self.where[some] = name
            names.append(name)
        return names

    def put(self, name: str, content: bytes) -> None:
        """Write a file, and note its SHA-256."""
        write(self.folder / name, content, durable=True)
        self.sums[name] = checksum(content).hex()

    def clear(self) -> None:
        """Remove checkpoints that are neither new nor the best, and files that belong to none."""
        best = max(self.kept, key=lambda number: (self.kept[number][0], number))
        left = {*sorted(self.kept)[-CHECKPOINTS_KEPT:], best}
        self.kept = {number: entry for number, entry in self.kept.items() if number in left}
        needed = {manifest(number) for number in left}.union(*(files for _, files in self.kept.values()))
        for path in self.folder.iterdir():
            if is_ours(path) and path.name not in needed:
                path.unlink()

    # ---- going on

    def restore(self, simulation: Simulation, checkpoint: Checkpoint) -> None:
        """Let a run that is ready for round 0 go on from a checkpoint."""
        state = checkpoint.state(simulation.engine.device)
        if simulation.stopping is not None and state.stopping is not None:
            simulation.stopping.restore(state.stopping, checkpoint.rows("best"))
        simulation.engine.store.restore(state.store, self.noted(checkpoint, simulation.server.clients))
        simulation.restore(state)
        self.remember(checkpoint, state, simulation.history.metric)

    def noted(self, checkpoint: Checkpoint, clients: int) -> Iterator[Rows]:
        """Yield the rows of a checkpoint, and note which file holds whose."""
        self.where = np.full(clients, "", object)
        for name, rows in zip(checkpoint.manifest.clients, checkpoint.rows("clients"), strict=True):
            owners = np.unique(np.concatenate([np.empty(0, np.int64), *(own for own, _ in rows.values())]))
            self.sizes[name], self.where[owners] = len(owners), name
            yield rows

    def remember(self, checkpoint: Checkpoint, state: RunState, metric: str) -> None:
        """Note which files are there; other checkpoints that are whole may still be kept."""
        if checkpoint.manifest.best and state.stopping is not None:
            self.best = state.stopping.round, checkpoint.manifest.best
        self.sums |= checkpoint.manifest.files
        for other in checkpoints_in(self.folder):
            if other.round <= checkpoint.round:
                self.kept[other.round] = worth(other.manifest.validation, metric), set(other.manifest.files)
        self.clear()


def worth(value: float | None, metric: str) -> float:
    """Return a metric's value as a number of which more is better; what was not measured is worst."""
    return -math.inf if value is None else FIELDS[metric].sign * value


def manifest(round: int) -> str:
    """Return the name of a checkpoint's manifest."""
    return f"round-{round:06}.json"


def manifests_in(folder: Path) -> list[Path]:
    """Return the manifests of checkpoints, the newest first."""
    found = [path for path in folder.iterdir() if is_ours(path)] if os.path.isdir(folder) else []
    found = [path for path in found if path.name.startswith("round-") and path.name.endswith(".json")]
    return sorted(found, key=lambda path: (len(path.name), path.name), reverse=True)


def is_ours(path: Path) -> bool:
    """Return whether a file belongs to checkpoints, complete or not; users may keep others beside them."""
    return OURS.fullmatch(path.name.removesuffix(PART)) is not None and path.is_file()


def device_name(device: torch.device) -> str:
    """Return the name of a GPU, or the type of another device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def made_with(simulation: Simulation) -> MadeWith:
    """Return the circumstances under which a run continues bit for bit."""
    federation, device = simulation.federation, simulation.engine.device
    samples = hashlib.sha256()
    every = [*federation.train, *federation.test, *federation.validation, federation.global_test]
    if federation.holds == "none":
        every = [torch.tensor([len(own) for own in every])]
    for tensor in (*fingerprinted(federation.source.x), federation.source.y, torch.cat(every)):
        samples.update(tensor.contiguous().cpu().view(-1).view(torch.uint8).numpy().data)
    parts = " ".join(f"{name} {copies.values[0].shape}" for name, copies in simulation.server.copies.items())
    return MadeWith(
        method=type(simulation.config.method).__name__,
        clients=federation.clients,
        network=f"{simulation.program.dtype} {checksum(parts.encode()).hex()[:8]}",
        torch=str(torch.__version__),
        device=device_name(device),
        data=samples.hexdigest(),
        engine=type(simulation.engine).__name__.lower(),
        threads=simulation.threads,
        compiles=sorted({name for decided in simulation.engine.decisions() for name in decided.compiles}),
    )
