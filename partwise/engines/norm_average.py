"""Average batch-norm values over clients, for those that are tested without having trained."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from partwise.engines.averages import average_own
from partwise.engines.store import Store
from partwise.network.parts import Parts
from partwise.network.view import Tensors
from partwise.rounds.plan import Plan


class NormAverage:
    """Averages the batch-norm values that clients keep over those that took a step, by their training samples."""

    def __init__(self, parts: Parts, store: Store, train: Sequence[NDArray[np.int64]]):
        self.parts, self.store, self.train = parts, store, train
        self.averaged: tuple[tuple[int, int], Tensors] | None = None  # by the store's version and the stage

    def __call__(self, plan: Plan) -> Tensors:
        """Return the averages by tensor; none if no client ever took a step."""
        state = self.store.version, plan.number
        if self.averaged is None or self.averaged[0] != state:
            names = borrowed(plan, self.parts)
            stepped = np.flatnonzero(self.store.steps)
            weights = np.array([float(len(self.train[client])) for client in stepped.tolist()])
            self.averaged = state, average_own(self.store, names, stepped, weights) if names and len(stepped) else {}
        return self.averaged[1]

    def forget(self) -> None:
        """Discard the averages; they are computed again when needed."""
        self.averaged = None


def borrowed(plan: Plan, parts: Parts) -> list[str]:
    """Return the batch-norm tensors that a client without any step borrows from the others when it is tested.

    These are running values, and scales and shifts that stay local while the rest of their part is shared.
    """
    rest = {name: share for name, share in plan.share.items() if name not in parts.norms | parts.buffers}
    shared = {name.split(".")[0] for name, share in rest.items() if share.adopt}
    kept = {name.split(".")[0] for name, share in rest.items() if not share.adopt}
    return [
        name
        for name in plan.own
        if name in parts.buffers or (name in parts.norms and name.split(".")[0] in shared - kept)
    ]
