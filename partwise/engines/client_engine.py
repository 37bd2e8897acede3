"""The interface of engines, which carry out clients' jobs on this machine or on others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partwise.data.source import Federation
from partwise.engines.laying_out import ClientLayout
from partwise.engines.norm_average import NormAverage
from partwise.engines.packing import Decisions
from partwise.engines.store import Store
from partwise.rounds.batches import Drawing
from partwise.rounds.client import ClientProgram
from partwise.rounds.messages import Entered, Request, Updates
from partwise.rounds.mixing import Copies
from partwise.trees import Samples

if TYPE_CHECKING:
    from partwise.engines.check import Check


@dataclass(frozen=True)
class EngineState:
    """The state of an engine between rounds, beside the store."""

    entered: list[Entered] = field(default_factory=list)  # what every stage handed to clients on other machines


class ClientEngine(Protocol):
    """Requests in, updates out: what the server and the simulation use of an engine."""

    clock: Callable[[], float]  # by which the seconds of a run are counted
    program: ClientProgram
    federation: Federation
    store: Store  # what clients keep
    device: torch.device
    drawing: Drawing  # of mini-batches
    layout: ClientLayout  # of what clients hold as a job begins
    x: Samples  # (samples, ...) on the device; stand-ins where the server has none
    y: Tensor  # (samples, ...) their labels
    counts: Tensor  # (clients, bins) training samples of each class or bin of labels, on the host
    train: list[NDArray[np.int64]]  # of each client the numbers of its training samples
    norm_average: NormAverage
    check: "Check | None"  # compares a client of every round with the loop

    def run(self, request: Request) -> Updates:
        """Return the updates of a request's clients, in the order of their numbers."""

    def enter(self, handed: dict[str, Copies], fresh: Sequence[str], stage: int) -> None:
        """Begin a stage: clients take over what the server hands to them, and draw `fresh` parts anew."""

    def release(self) -> None:
        """Release memory that only training needs."""

    def decisions(self) -> list[Decisions]:
        """Return the decisions that a run resumed in another process must keep."""

    def decide(self, decisions: list[Decisions]) -> None:
        """Use such decisions from now on."""

    def state(self) -> EngineState:
        """Return the state of the engine between rounds, for a checkpoint; the state of clients is in the store."""

    def restore(self, state: EngineState) -> None:
        """Restore the state of a checkpoint."""
