"""The setup of a run: clients and samples, shares of tensors, what leaves a client, and the environment.

`setup.json`, `leaves.json` and `environment.json` in a run's folder hold these.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from partwise.records.record import Json, JsonObject


@dataclass(frozen=True)
class StageSetup(JsonObject):
    """A stage of a method: its rounds, and the share of every tensor by its name."""

    rounds: int
    share: Mapping[str, str]


@dataclass(frozen=True)
class RunSetup(JsonObject):
    """The clients of a run, their training samples by class or bin, and the shares of tensors; empty where unknown."""

    data: str = ""
    partition: str = ""
    clients: Sequence[str] = ()  # their names
    held_out: Sequence[str] = ()  # the names of those that join at the end
    task: str = "classes"  # what a label is
    classes: Sequence[str] = ()  # of other tasks the bins of labels
    counts: Sequence[Sequence[int]] | None = None  # client x class; None where a server does not see them
    stages: Sequence[StageSetup] = ()

    @classmethod
    def from_json(cls, values: Json) -> Self:
        """Read a setup."""
        return super().from_json(values | {"stages": [*map(StageSetup.from_json, values.get("stages", ()))]})


@dataclass(frozen=True)
class RunSettings(JsonObject):
    """The settings that reports and tables look at, of the many that a run has; empty or 0 where none was written."""

    name: str = ""  # of the method
    seed: int = 0
    moment: str = "received"  # at which methods are compared
    metric: str = "accuracy"  # by which they are
    rounds: int = 0
    epochs: int = 0
    batch: int = 0
    data: str = ""
    partition: str = ""
    clients: int = 0
    model: str = ""
    weights: str = ""  # the file of initial ones

    @classmethod
    def from_tables(cls, tables: Mapping[str, Mapping[str, object]]) -> Self:
        """Read a config.toml, in which the method's options stand apart from those of the run and of the data."""
        return cls.from_json({name: value for table in tables.values() for name, value in table.items()})


@dataclass(frozen=True)
class Leaving(JsonObject):
    """One kind of numbers that leaves clients."""

    numbers: int  # of one client
    classes: str = ""  # how it says something of each class; empty: it does not
    rare: int = 0  # (client, class) pairs in it with few samples at the client


def read_leaves(text: str) -> dict[str, Leaving]:
    """Return what leaves a client by part and extra, from the text of leaves.json."""
    return {name: Leaving.from_json(entry) for name, entry in json.loads(text).items()}


@dataclass(frozen=True)
class RunEnvironment(JsonObject):
    """The machine, the versions and the command of a run."""

    partwise: str = ""
    python: str = ""
    torch: str = ""
    numpy: str = ""
    platform: str = ""
    device: str = ""
    threads: int | None = None
    notes: Sequence[str] = ()  # choices that the run took by itself
    started: str = ""
    command: str = ""
