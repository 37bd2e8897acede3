"""The other machines of a run as the server sees them: their clients, a way to ask them, and failures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

POLL_INTERVAL = 0.5  # seconds between two looks at other machines and processes
REFUSAL_LETTERS = 500  # letters of a refusal that are kept


@dataclass(frozen=True)
class Failure:
    """Why a node gave no answer."""

    why: str
    from_node: bool = False  # the node says so itself: it refuses, or something went wrong there


AT_WORK = Failure("it is still at work")


class Link(Protocol):
    """A way to reach nodes by their names.

    One that is known to be offline is a failure at once. As soon as one has forgotten the run the others may be
    `AT_WORK`, so that nobody waits for them before it joins again; the same message then goes on waiting for them.
    """

    def ask(self, messages: Mapping[str, bytes], timeout: float) -> Mapping[str, bytes | Failure]:
        """Return the nodes' answers, or why there is none, by node; wait `timeout` seconds at most."""


class Nodes(Protocol):
    """The other machines: who hosts whom, and a way to ask them all at once."""

    @property
    def run(self) -> str:
        """Return the run's name, the same wherever it continues."""

    @property
    def hosts(self) -> Sequence[str]:
        """Return the node of every client, (clients,)."""

    @property
    def timeout(self) -> float:
        """Return the seconds to wait for answers."""

    @property
    def clock(self) -> Callable[[], float]:
        """Return the clock, in seconds."""

    def ask(self, messages: Mapping[str, bytes], timeout: float) -> Mapping[str, bytes | Failure]:
        """Return the nodes' answers, or why there is none, by node; wait `timeout` seconds at most."""
