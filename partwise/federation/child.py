"""Flower's own processes, `python -m partwise.federation.child superlink|supernode ...`: they end with whoever asks.

Whoever starts one holds the other end of its standard input. However that process ends, this one then reads an end.
"""

import os
import signal
import sys
import threading
import time
from functools import partial

IDLE = 3  # seconds that Flower's SuperNode sleeps where no message waits for it
POLL = 0.2  # seconds that it sleeps here, ...
PAUSE = 0.1  # ... or this share of the time since the last message: a hundred idle silos do not keep a server busy
REPLY = 0.02  # seconds between two looks whether the answer is there, which asks nobody: Flower's are 0.5
PULL = {"initial_backoff": 0.05, "backoff_cap": 0.5}  # seconds until what is still being sent is asked for again
GRACE = 5  # seconds for a process to say goodbye


class Impatient:
    """`time`, with a shorter sleep.

    Flower's SuperNode waits 3 s between two questions to the server, a number in its source: a round would take as
    long, whatever its clients compute. For what is still on its way it waits 1 s and up to 10 (see `PULL`).
    """

    def __init__(self) -> None:
        self.busy = time.monotonic()

    def sleep(self, seconds: float) -> None:
        now = time.monotonic()
        if seconds < IDLE:  # an answer is waited for
            self.busy, seconds = now, REPLY
        time.sleep(min(seconds, max(POLL, PAUSE * (now - self.busy))))


def end_with_parent() -> None:
    os.read(0, 1)  # not sys.stdin, whose lock would abort an interpreter that ends meanwhile
    os.kill(os.getpid(), signal.SIGTERM)  # a SuperNode tells the server that it goes
    time.sleep(GRACE)
    os._exit(1)


def main(kind: str) -> None:
    threading.Thread(target=end_with_parent, daemon=True).start()
    if kind == "superlink":
        from flwr.superlink.cli import flower_superlink

        flower_superlink()
    else:
        from flwr.supernode import start_client_internal
        from flwr.supernode.cli import flower_supernode

        start_client_internal.time = Impatient()  # type: ignore[assignment]
        pull = partial(start_client_internal.pull_objects, **PULL)  # type: ignore[arg-type]
        start_client_internal.pull_objects = pull
        flower_supernode()


if __name__ == "__main__":
    main(sys.argv.pop(1))
