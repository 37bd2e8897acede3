"""When checkpoints are due, and signals that ask a run to end with one."""

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from partwise.errors import Interrupted

log = logging.getLogger(__name__)

CHECKPOINTS_KEPT = 2  # checkpoints, the newest ones, beside the best on validation data
SHARE = 0.02  # of the time that checkpoints may take, where seconds lie between them


class Interrupts:
    """The signal that asked for an end, if one did."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def check(self, title: str) -> None:
        """Begin no other run once an end was asked for."""
        if self.signal is not None:
            raise Interrupted(f"before {title}", self.signal)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note a first Ctrl-C or SIGTERM while entered; a second one interrupts at once."""
        if threading.current_thread() is not threading.main_thread():  # others get no signals
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        # In the background a shell lets Ctrl-C be ignored; None is a handler that Python did not set nor can restore.
        before = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}

        def note(number: int, frame: FrameType | None) -> None:
            self.signal = number
            for each in before:
                signal.signal(each, at_once)
            log.warning("ending after this round, with a checkpoint; interrupt again to end at once")

        def at_once(number: int, frame: FrameType | None) -> None:
            self.signal = number
            as_before()  # a third one is not for the run
            if callable(interrupt := before[signal.SIGINT]):
                interrupt(number, frame)
            raise KeyboardInterrupt

        def as_before() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        for number in before:
            signal.signal(number, note)
        try:
            yield
        finally:
            as_before()


class Pace:
    """Says after which rounds checkpoints are due: of runs side by side the first to ask decides for all of them."""

    def __init__(self, seconds: float, interrupts: Interrupts | None = None):
        self.seconds, self.interrupts = seconds, interrupts or Interrupts()
        self.last, self.cost = time.monotonic(), 0.0  # when one was due, and how long it took
        self.asked, self.rounds = 0, set[int]()

    def due(self, round: int, total: int) -> bool:
        """Return whether a checkpoint is due after this round; one precedes the last, so that a run can be longer."""
        if round > self.asked:
            self.asked = round
            rest = max(self.seconds, self.cost / SHARE) if self.seconds else 0.0
            waited = time.monotonic() - self.last
            if round >= total - 1 or self.interrupts.signal is not None or waited >= rest:
                self.rounds.add(round)
        return round in self.rounds

    def took(self, seconds: float) -> None:
        """Record the seconds that a checkpoint took."""
        self.last, self.cost = time.monotonic(), seconds
