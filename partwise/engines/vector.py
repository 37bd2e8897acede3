"""Blocks of clients side by side: one call advances as many clients as there are slots."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from partwise.engines.engine import Engine
from partwise.engines.patches import vectorised
from partwise.engines.side_by_side import SideBySide
from partwise.rounds.batches import JobBatches
from partwise.rounds.messages import Request, Updates
from partwise.rounds.mixing import Copies

log = logging.getLogger(__name__)


class Vector(Engine):
    """Runs clients in blocks under vmap: they pass through a number of slots, and all slots step in one call."""

    caller: SideBySide

    def __init__(self, *arguments: Any, compiles: tuple[str, ...] = (), block: int | None = None, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self.caller = SideBySide(self.device, compiles, block, self.portions)
        self.joint: SideBySide | None = None  # the caller of requests that are handed over

    def many_clients(self) -> Callable[[Callable], Callable]:
        """Return vmap, with what a block adds to it."""
        return vectorised

    @contextmanager
    def joined(
        self, hand_over: Callable[[Request], Updates], clock: Callable[[], float], joint: SideBySide
    ) -> Iterator[None]:
        """Send requests to `hand_over` while entered, so that seeds share blocks; `clock` counts seconds."""
        before = self.clock
        self.hand_over, self.clock, self.joint = hand_over, clock, joint
        try:
            yield
        finally:
            self.hand_over, self.clock, self.joint = None, before, None

    def release(self) -> None:
        """Discard steps that were compiled or captured, and other memory that only training needs."""
        super().release()
        self.caller.release()

    def enter(self, handed: dict[str, Copies], fresh: Sequence[str], stage: int) -> None:
        """Begin a stage, whose steps differ from those before."""
        super().enter(handed, fresh, stage)
        self.release()

    def deciding(self) -> list[SideBySide]:
        """Return the caller of this run and, if runs share blocks, theirs."""
        return [self.caller, *([self.joint] if self.joint else [])]

    def blocks(self, request: Request, batches: dict[int, JobBatches]) -> Iterable[list[int]]:
        """Return blocks of at most `caller.block` clients; those of a block have about as many steps."""
        clients, width = request.clients, self.caller.block or len(request.clients)
        if width < len(clients):
            clients = sorted(clients, key=lambda client: (-batches[client].steps, client))
        return (clients[start : start + width] for start in range(0, len(clients), width))

    def halved(self, clients: list[int]) -> int:
        """Return the size of the next blocks, which later requests keep to."""
        self.release()
        half = super().halved(clients)
        self.caller.narrow(half)  # later blocks need not fail again
        log.warning("out of memory on %s: continuing with blocks of %d clients", self.device, half)
        return half
