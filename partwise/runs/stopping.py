"""Early stopping on validation data: when a run has waited long enough, and the state that it goes back to."""

import copy
import math
from typing import Any

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
        self.state: tuple[dict[str, Any], dict[str, Any]] = {}, {}

    def over(self, value: float | None) -> bool:
        """Take in the value of an evaluated round; whether the run has waited long enough for a better one."""
        if self.server.plan is not self.server.plans[-1]:
            return False
        if self.round == 0 or (value is not None and value > self.best):
            self.best, self.waited, self.round = -math.inf if value is None else value, 0, self.server.round
            memory = copy.deepcopy(self.server.memory)
            server = {"copies": dict(self.server.copies), "memory": memory, "round": self.server.round}
            self.state = {**server, "groups": self.server.groups}, {"entries": dict(self.store.entries)}
        else:
            self.waited += 1
        return self.waited >= self.patience

    def go_back(self) -> None:
        """Server and clients as they were after the best round."""
        for holder, state in zip((self.server, self.store), self.state, strict=True):
            for name, value in state.items():
                setattr(holder, name, value)
