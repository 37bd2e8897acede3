"""The table of the files that a run writes: settings, machine, clients, rounds, events and results."""

import json
import platform
import shlex
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from partwise.network.view import ClassCounts, ClassRows
from partwise.privacy.filters import class_indexed
from partwise.records.files import (
    CLIENTS,
    ENVIRONMENT,
    EVENTS,
    LEAVES,
    LEDGER,
    METRICS,
    SETUP,
    SUMMARY,
)
from partwise.records.formats import as_csv, as_json
from partwise.records.record import Json
from partwise.records.setup import Leaving, RunEnvironment, RunSetup, StageSetup, read_leaves
from partwise.rounds.messages import Updates
from partwise.runs.observers import Observer, Seen
from partwise.runs.result import Result
from partwise.runs.simulation import Simulation
from partwise.version import __version__
from partwise.writing import append, write

if TYPE_CHECKING:
    from partwise.rounds.events import Event

MOST_COUNTED = 1000  # clients whose classes are written down: more cannot be looked at


def setup(simulation: Simulation) -> RunSetup:
    """Return names, held-out clients, each client's training samples by class, and the shares in stages."""
    federation, source = simulation.federation, simulation.federation.source
    counted = federation.holds == "all" and federation.clients <= MOST_COUNTED
    return RunSetup(
        data=source.name,
        partition=federation.rule,
        clients=list(federation.names),
        held_out=simulation.names_held_out,
        task=source.task.kind,
        classes=list(source.labels),
        counts=federation.class_counts().tolist() if counted else None,
        stages=[
            StageSetup(plan.rounds, {name: share.name for name, share in plan.share.items()})
            for plan in simulation.server.plans
        ],
    )


def environment(simulation: Simulation) -> RunEnvironment:
    """Return the machine and the versions of a run."""
    device = simulation.engine.device
    return RunEnvironment(
        partwise=__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        numpy=np.__version__,
        platform=platform.platform(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or device.type,
        threads=simulation.threads,
        notes=simulation.notes,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command_line(),
    )


def command_line() -> str:
    """Return the command line that started this process."""
    program = Path(sys.argv[0]).name
    return shlex.join(["partwise" if program == "__main__.py" else program, *sys.argv[1:]])


# ---- files that grow as the run goes


class LinesFile(Observer, ABC):
    """Writes lines of JSON as rounds end. A run that goes on from a checkpoint drops the lines of later rounds."""

    def __init__(self, path: Path):
        self.path = path

    @abstractmethod
    def lines(self, seen: Seen) -> list[Json]:
        """Return the lines of a round, each with the round's number as `round`."""

    def begin(self, simulation: Simulation) -> None:
        """Keep the lines of the rounds that are done; a new run has none."""
        written = self.path.read_text(encoding="utf-8") if simulation.server.round and self.path.exists() else ""
        whole = written[: written.rfind("\n") + 1].splitlines(keepends=True)
        kept = [line for line in whole if json.loads(line)["round"] <= simulation.server.round]
        write(self.path, "".join(kept).encode())

    def round(self, seen: Seen) -> None:
        """Append the lines of a round."""
        append(self.path, "".join(json.dumps(line) + "\n" for line in self.lines(seen)).encode())


class MetricsFile(LinesFile):
    """Writes a line for every round."""

    def lines(self, seen: Seen) -> list[Json]:
        """Return the line of a round."""
        return [seen.record.as_json()]


class EventsFile(Observer):
    """Writes a line for every event as its round ends; the last round's also where an error ended the run."""

    def __init__(self, path: Path):
        self.path, self.written = path, 0
        self.events: list[Event] = []

    def begin(self, simulation: "Simulation") -> None:
        """Prepare the file for a run that begins or continues."""
        self.events = simulation.server.events
        write(self.path, b"")

    def round(self, seen: Seen) -> None:
        """Write what a round adds."""
        self.write()

    def end(self, last: Seen | None) -> None:
        """Write the events of the last round."""
        self.write()

    def write(self) -> None:
        """Append the events that are not in the file yet."""
        new = self.events[self.written :]
        if new:
            lines = (json.dumps(asdict(event) | {"round": event.round + 1}) + "\n" for event in new)
            append(self.path, "".join(lines).encode())
        self.written += len(new)


class LeavesFile(Observer):
    """Writes down each part and extra that leaves a client, when it is first seen."""

    def __init__(self, path: Path):
        self.path = path
        self.known: dict[str, Leaving] = {}

    def begin(self, simulation: Simulation) -> None:
        """Prepare the file for a run that begins or continues."""
        self.classes = simulation.federation.source.classes
        if simulation.server.round and self.path.exists():  # the run goes on
            self.known = read_leaves(self.path.read_text(encoding="utf-8"))
        self.write()

    def round(self, seen: Seen) -> None:
        """Write what a round adds."""
        before = len(self.known)
        for _, updates in seen.asked:
            self.known = leaving(updates, self.classes, known=self.known)
        if len(self.known) > before:
            self.write()

    def write(self) -> None:
        """Write the whole file."""
        write(self.path, json.dumps({name: entry.as_json() for name, entry in self.known.items()}).encode())


def leaving(updates: Updates, classes: int, known: dict[str, Leaving]) -> dict[str, Leaving]:
    """Return what leaves the clients of an answer, by part and extra, beside what is known already."""
    found = dict(known)
    for part in dict.fromkeys(name.split(".")[0] for name in updates.parts):
        if part not in found:
            own = [value for name, value in updates.parts.items() if name.split(".")[0] == part]
            wide = "by its shape" if any(value.shape[1] == classes for value in own if value.dim() > 1) else ""
            found[part] = Leaving(sum(value[0].numel() for value in own), wide)
    for name, extra in updates.extras.items():
        if name not in found:
            leaves = tree_leaves(extra, is_leaf=class_indexed)
            found[name] = Leaving(sum(map(size, leaves)), indexed(leaves, classes))
    return found


def indexed(leaves: list[Any], classes: int) -> str:
    """Return how an extra says something of each class."""
    if any(isinstance(leaf, ClassRows) for leaf in leaves):
        return "a row for each"
    if any(isinstance(leaf, ClassCounts) for leaf in leaves):
        return "a count for each"
    return "by its shape" if any(classes in leaf.shape[1:] for leaf in leaves) else ""


def size(leaf: object) -> int:
    """Return how many numbers one client sends of an extra."""
    return sum(value[0].numel() for value in tree_leaves(leaf))


# ---- the table: what is written when

# Beside them a folder has config.toml, method-copy.py and what `ModelFiles` writes. A file is written whole, or an
# observer lets it grow; the last of all says that the run is finished.
AT_FIRST: dict[str, Callable[[Simulation], bytes]] = {
    ENVIRONMENT: lambda simulation: as_json(environment(simulation).as_json()),
    SETUP: lambda simulation: json.dumps(setup(simulation).as_json()).encode(),
}
EVERY_ROUND: dict[str, Callable[[Path], Observer]] = {METRICS: MetricsFile, EVENTS: EventsFile, LEAVES: LeavesFile}
AT_LAST: dict[str, Callable[[Result], bytes]] = {
    CLIENTS: lambda result: as_csv(result.clients),
    LEDGER: lambda result: as_json(result.ledger),
    SUMMARY: lambda result: as_json(result.summary.as_json()),
}
