"""Flower's own processes, `python -m partwise.federation.transport.child superlink|...`: they end with their parent.

Whoever starts one holds the other end of its standard input. However that process ends, this one then reads an end. A
SuperNode writes a byte there for every message that it has received, so that nobody has to ask it again and again.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from partwise.federation.transport.flower_internals import Pull, Push, StoreMessage

IDLE = 3  # seconds that Flower's SuperNode sleeps where no message waits for it
POLL = (0.2, 0.8)  # seconds that it sleeps here, at least and at most, ...
PAUSE = 0.1  # ... and this share of the time since the last message: idle silos do not keep a server busy
REPLY = 0.02  # seconds between two looks whether the answer is there, which asks nobody: Flower's are 0.5
PULL_BACKOFF = {
    "initial_backoff": 0.05,
    "backoff_cap": 0.5,
}  # seconds until Flower asks again for what is being sent
GRACE = 2  # seconds for a process to say goodbye
STANDARD_INPUT = 0  # the descriptor of the standard input


class Impatient:
    """`time`, with a shorter sleep.

    Flower's SuperNode waits 3 s between two questions to the server, a number in its source: a round would take as
    long, whatever its clients compute. For what is still on its way it waits 1 s and up to 10 (see `PULL_BACKOFF`).
    """

    def __init__(self) -> None:
        self.busy = time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait, but only briefly while an answer is expected."""
        now = time.monotonic()
        if seconds < IDLE:  # an answer is waited for
            self.busy = now
            time.sleep(REPLY)
        else:
            time.sleep(min(max(POLL[0], PAUSE * (now - self.busy)), POLL[1]))


class FlowerExchange:
    """Functions that replace Flower's, with which a SuperNode fetches messages and sends answers.

    A message is never longer than its silo takes, and the SuperNode says so when one has come. Flower's own would send
    any answer for that to the message which came last: one to a message that was given up, since its run ended while it
    was on its way, would keep every later answer back until the next message comes.
    """

    def __init__(self, most: int, internal: Any):
        """Take over the functions of Flower's module `internal`."""
        self.most, self.newest = most, ""
        self.pull_objects: Pull = internal.pull_objects
        self.pull_and_store, self.push_messages = internal._pull_and_store_message, internal._push_messages

    @property
    def functions(self) -> "tuple[Pull, StoreMessage, Push]":
        """Return what takes the place of Flower's functions."""
        return self.pull, self.store, self.push

    def pull(self, numbers: list[str], pull_object_fn: Callable[[str], bytes]) -> dict[str, bytes]:
        """Fetch the objects of a message."""
        from partwise.federation.transport.flower import limited

        return self.pull_objects(numbers, limited(pull_object_fn, self.most), **PULL_BACKOFF)

    def store(self, *, state: Any, object_store: Any, receive: Callable[[], Any], **rest: Any) -> int | None:
        """Fetch a message, and ring; returns the number of its run, or None where there is none to be answered."""
        from partwise.federation.transport.flower import check_tree

        self.newest = ""

        def received() -> Any:
            found = receive()
            if found is not None:
                check_tree(found[1], self.most)
                self.newest = found[0].metadata.message_id
            return found

        run: int | None = self.pull_and_store(state=state, object_store=object_store, receive=received, **rest)
        if run is not None:
            with suppress(OSError):  # the process that asked has ended
                os.write(STANDARD_INPUT, b".")
        elif self.newest:  # its run has ended: the worker need not wait for the rest of it
            state.delete_messages(message_ids=[self.newest])
            object_store.delete(self.newest)
        return run

    def push(self, *, send: Callable[..., Any], **rest: Any) -> None:
        """Send what the worker answers, until the answer to the newest message is among it."""
        answered = set()

        def noted(message: Any, *more: Any) -> Any:
            answered.add(message.metadata.reply_to_message_id)
            return send(message, *more)

        while self.newest not in answered:
            self.push_messages(send=noted, **rest)


def end_with_input() -> None:
    """End this process when its standard input closes."""
    with suppress(OSError):
        os.read(STANDARD_INPUT, 1)  # not sys.stdin, whose lock would abort an interpreter that ends meanwhile
    os.kill(os.getpid(), signal.SIGTERM)  # a SuperNode tells the server that it goes
    time.sleep(GRACE)
    os._exit(1)


def main(kind: str) -> None:
    """Run as one of Flower's processes: `superlink` or a SuperNode."""
    threading.Thread(target=end_with_input, daemon=True).start()
    from partwise.federation.transport.flower_internals import become_superlink, become_supernode

    if kind == "superlink":
        become_superlink()
    else:
        most = int(sys.argv.pop(1))
        become_supernode(Impatient(), lambda internal: FlowerExchange(most, internal).functions)


if __name__ == "__main__":
    main(sys.argv.pop(1))
