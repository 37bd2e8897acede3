"""Early stopping on validation data: when a run has waited long enough, and the state that it goes back to."""

import copy
import math
from typing import Any

from partwise.errors import DataError
from partwise.runs.store import Store
from partwise.server import Server


class Stopping:
    """Watches the evaluations of a run's last stage; earlier stages are never cut short.

    What clients and server hold is never changed in place within a stage, so keeping a round costs references, not
    copies; only what a method remembers on the server may be.
    """

    def __init__(self, patience: int, server: Server, store: Store):
        self.patience, self.server, self.store = patience, server, store
        self.best, self.waited, self.round = -math.inf, 0, 0
        self.state: Any = None  # what go_back restores, once a round was evaluated

    def over(self, value: float | None) -> bool:
        """Take in the value of an evaluated round; whether the run has waited long enough for a better one."""
        if self.server.plan is not self.server.plans[-1]:
            return False
        if value is None and self.round == 0:
            raise DataError("patience: the validation samples of the evaluated clients have no value of the metric")
        server = self.server
        if value is not None and value > self.best:
            self.best, self.waited, self.round = value, 0, server.round
            memory, entries = copy.deepcopy(server.memory), dict(self.store.entries)
            self.state = dict(server.copies), memory, dict(server.snapshots), server.round, server.groups, entries
        else:
            self.waited += 1
        return self.waited >= self.patience

    def go_back(self) -> None:
        """Server and clients as they were after the best round."""
        server = self.server
        server.copies, server.memory, server.snapshots, server.round, server.groups, self.store.entries = self.state
