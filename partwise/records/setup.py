"""The setup of a run: clients and samples, shares of tensors, what leaves a client, and the environment.

`setup.json`, `leaves.json` and `environment.json` in a run's folder hold these.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Self

from partwise.records.record import Json


@dataclass(frozen=True)
class JsonObject:
    """A record that is a JSON object with a key for every field; files of other versions may lack or add some."""

    def as_json(self) -> Json:
        """Return the record as JSON has it."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Json) -> Self:
        """Read a record; a key that it does not know is passed over."""
        known = [entry.name for entry in fields(cls)]
        return cls(**{name: values[name] for name in known if name in values})


@dataclass(frozen=True)
class StageSetup(JsonObject):
    """A stage of a method: its rounds, and the share of every tensor by its name."""

    rounds: int
    share: Mapping[str, str]


@dataclass(frozen=True)
class RunSetup(JsonObject):
    """The clients of a run, their training samples by class, and the shares of tensors; empty where unknown."""

    data: str = ""
    partition: str = ""
    clients: Sequence[str] = ()  # their names
    held_out: Sequence[str] = ()  # the names of those that join at the end
    classes: Sequence[str] = ()
    counts: Sequence[Sequence[int]] | None = None  # client x class; None where a server does not see them
    stages: Sequence[StageSetup] = ()

    @classmethod
    def from_json(cls, values: Json) -> Self:
        """Read a setup."""
        return super().from_json(values | {"stages": [*map(StageSetup.from_json, values.get("stages", ()))]})


@dataclass(frozen=True)
class Leaving(JsonObject):
    """One kind of numbers that leaves clients."""

    numbers: int  # of one client
    classes: str = ""  # how it says something of each class; empty: it does not
    rare: int = 0  # (client, class) pairs that it tells of, of which the client has few samples


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
