"""Early stopping on validation data: when to stop, and the state to go back to."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partwise.engines.store import Rows, Store, known_of
from partwise.errors import DataError
from partwise.records.metrics import FIELDS
from partwise.records.record import Record
from partwise.rounds.server import Server
from partwise.rounds.server_state import ServerSnapshot


@dataclass(frozen=True)
class StoppingState(Record):
    """The state of early stopping; the rows of clients to go back to are written apart."""

    best: float  # the metric, negative where lower is better
    waited: int
    round: int
    known: NDArray[np.int64] | None = None  # the clients that took part; None: no round was evaluated yet
    steps: NDArray[np.int64] | None = None  # (clients,)
    server: ServerSnapshot | None = None


class Stopping:
    """Watches the evaluations of a run's last stage; earlier stages are never cut short."""

    def __init__(self, patience: int, metric: str, server: Server, store: Store):
        self.patience, self.metric, self.server, self.store = patience, metric, server, store
        self.best, self.waited, self.round = -math.inf, 0, 0
        self.state: Any = None  # what go_back restores, once a round was evaluated

    def over(self, value: float | None) -> bool:
        """Take in the value of an evaluated round; whether the run has waited long enough for a better one."""
        if self.server.plan is not self.server.plans[-1]:
            return False
        if value is None and self.round == 0:
            raise DataError("patience: the metric is undefined on all validation samples; choose another metric")
        server = self.server
        value = None if value is None else FIELDS[self.metric].sign * value
        if value is not None and value > self.best:
            self.best, self.waited, self.round = value, 0, server.round
            self.state = None  # the one before goes first: there may be no room for both
            self.state = self.store.snapshot(), server.held()
        else:
            self.waited += 1
        return self.waited >= self.patience

    def watched(self) -> StoppingState:
        """Return the state of early stopping, for a checkpoint; the clients' rows to go back to are written apart."""
        if self.state is None:
            return StoppingState(self.best, self.waited, self.round)
        (_, row, steps, _), server = self.state
        return StoppingState(self.best, self.waited, self.round, known_of(row), steps, server)

    def restore(self, watched: StoppingState, rows: Iterable[Rows]) -> None:
        """Take over what it had seen; the store holds what it goes back to meanwhile."""
        self.best, self.waited, self.round = watched.best, watched.waited, watched.round
        if watched.known is not None and watched.steps is not None:
            self.store.take(watched.known, watched.steps, rows)
            self.state = self.store.snapshot(), watched.server

    def go_back(self) -> None:
        """Restore server and clients as they were after the best round."""
        clients, server = self.state
        self.server.go_back(server)
        self.store.go_back(clients)
