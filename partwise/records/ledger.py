"""What a run sent: ledger.json, bytes by part, down and up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from partwise.records.record import Json, JsonObject


@dataclass(frozen=True)
class PartBytes(JsonObject):
    """Bytes by part or extra, to clients and from them."""

    down: Mapping[str, int] = field(default_factory=dict)
    up: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RoundBytes(PartBytes):
    """The bytes of one round."""

    round: int = 0  # from 1
    participants: int = 0


@dataclass(frozen=True)
class LedgerRecord(JsonObject):
    """The bytes of a whole run, and what its training cost."""

    total: PartBytes  # in all rounds
    once: PartBytes  # beside the rounds: what clients keep from then on, samples that are pooled
    unit: str = "bytes"
    training_flops: float | None = None
    rounds: Sequence[RoundBytes] = ()

    @classmethod
    def from_json(cls, values: Json) -> Self:
        """Read a ledger."""
        inner = {name: PartBytes.from_json(values[name]) for name in ("total", "once")}
        rounds = [*map(RoundBytes.from_json, values.get("rounds", ()))]
        return super().from_json(values | inner | {"rounds": rounds})
