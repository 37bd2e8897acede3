"""What a run needs to go on as if nothing had happened: all that lives from round to round but the rows of clients."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partwise.engines.client_engine import EngineState
from partwise.engines.packing import Decisions
from partwise.engines.store import StoreState
from partwise.records.metrics import Score
from partwise.records.record import Record
from partwise.rounds.server_state import ServerSnapshot, ServerState


@dataclass(frozen=True)
class HistoryState(Record):
    """What was measured; `History` says what its attributes are."""

    rows: list[dict[str, Any]]  # the rounds, as in metrics.jsonl
    last: dict[str, dict[int, Score]]
    best: dict[str, dict[int, float]]


@dataclass(frozen=True)
class StoppingState(Record):
    """What early stopping has seen, and the server to which it may go back; its clients' rows are written apart."""

    best: float
    waited: int
    round: int
    known: NDArray[np.int64] | None = None  # the clients that took part; None: no round was evaluated yet
    steps: NDArray[np.int64] | None = None  # (clients,)
    server: ServerSnapshot | None = None


@dataclass(frozen=True)
class RunState(Record):
    """The state of a run between two rounds."""

    over: bool  # the last evaluation has begun
    server: ServerState
    store: StoreState
    history: HistoryState
    method: dict[str, Any]  # what the method holds otherwise than before the run
    gone: list[str]  # what it holds no more
    decisions: list[Decisions]
    engine: EngineState
    stopping: StoppingState | None
