"""The description of a run in its folder: the clients' samples, the shares of tensors, and what left the clients."""

import json
from pathlib import Path
from typing import Any

from torch.utils._pytree import tree_leaves

from partwise.network.view import ClassCounts, ClassRows
from partwise.privacy.filters import class_indexed
from partwise.records.setup import Leaving, RunSetup, StageSetup
from partwise.rounds.messages import Updates
from partwise.runs.observers import Observer, Seen
from partwise.runs.simulation import Simulation
from partwise.writing import write

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
        classes=list(source.class_names) or list(map(str, range(source.classes))),
        counts=federation.class_counts().tolist() if counted else None,
        stages=[
            StageSetup(plan.rounds, {name: share.name for name, share in plan.share.items()})
            for plan in simulation.server.plans
        ],
    )


class LeavesFile(Observer):
    """Writes down what leaves a client: whatever it is, when it is first seen."""

    def __init__(self, path: Path):
        self.path = path
        self.known: dict[str, Leaving] = {}

    def begin(self, simulation: Simulation) -> None:
        self.classes = simulation.federation.source.classes
        if simulation.server.round and self.path.exists():  # the run goes on
            self.known = {name: Leaving.from_json(entry) for name, entry in json.loads(self.path.read_bytes()).items()}
        self.write()

    def round(self, seen: Seen) -> None:
        before = len(self.known)
        for _, updates in seen.asked:
            self.known = leaving(updates, self.classes, known=self.known)
        if len(self.known) > before:
            self.write()

    def write(self) -> None:
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
