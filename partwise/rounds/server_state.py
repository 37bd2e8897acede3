"""The state of a server between two rounds, for early stopping and for checkpoints."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from partwise.network.view import Tensors
from partwise.rounds.events import Event
from partwise.rounds.mixing import Copies


@dataclass(frozen=True)
class ServerSnapshot:
    """The state that rounds change and early stopping restores; `Server` documents its attributes."""

    copies: dict[str, Copies]
    memory: dict[str, Any]
    snapshots: dict[str, Tensors]
    round: int
    groups: Tensor | None
    times: NDArray[np.int64]


@dataclass
class ByteCounts:
    """Bytes by part and extra."""

    down: Counter[str] = field(default_factory=Counter)
    up: Counter[str] = field(default_factory=Counter)


@dataclass(kw_only=True)
class RoundByteCounts(ByteCounts):
    """Bytes of a round."""

    round: int  # from 1
    participants: int


@dataclass(frozen=True)
class LedgerState:
    """The counts of a ledger; `Ledger` documents its attributes."""

    rounds: list[RoundByteCounts]
    once: ByteCounts
    visited: dict[int, int]
    flops: float
    per_sample: dict[int, list[float]]
    changed: dict[int, list[str]]


@dataclass(frozen=True)
class ServerState(ServerSnapshot):
    """The whole state of a server between two rounds."""

    cohort: list[int]
    events: list[Event]
    told: set[str]
    begun: list[int]  # the first rounds of the stages that began
    stage_over: bool
    ledger: LedgerState
