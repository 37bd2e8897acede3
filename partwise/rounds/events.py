"""Events of a run, and how the log names them: refused updates, outliers, failing clients, skipped rounds."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from partwise.rounds.failures import BACK, DROPPED, LATE

log = logging.getLogger(__name__)

MOST_IN_EVENT_LINE = 3  # clients of a kind that a line names


@dataclass(frozen=True)
class Event:
    """Something unusual in a round, and the client concerned."""

    round: int  # from 0
    client: int | None  # None: the whole round
    what: str  # refused, outlier, dropped, late, back or skipped
    detail: str = ""


def events_in_words(events: Sequence[Event]) -> str:
    """Return one line about a round's events: how many of each kind, and the first few clients."""
    kinds: dict[str, list[Event]] = {}
    for event in events:
        kinds.setdefault(event.what, []).append(event)
    parts = []
    for what, own in kinds.items():
        detail = f": {own[0].detail}" if own[0].detail else ""
        if own[0].client is None:
            parts.append(f"round {what}{detail}")
            continue
        many = "s" if len(own) > 1 else ""
        kind = f"outlier{many}" if what == "outlier" else what  # the other kinds have no plural
        named = ", ".join(str(event.client) for event in own[:MOST_IN_EVENT_LINE])
        more = ", ..." if len(own) > MOST_IN_EVENT_LINE else ""
        first = f", client {own[0].client} first" if len({event.detail for event in own}) > 1 else ""
        parts.append(f"{len(own)} {kind} (client{many} {named}{more}){first}{detail}")
    return "; ".join(parts)


def of_round(events: Sequence[Event], round: int) -> list[Event]:
    """Return the events of the newest round, `round`; the first round includes those before it."""
    return list(takewhile(lambda event: event.round == round, reversed(events)))[::-1]


def log_events(events: Sequence[Event], new: Sequence[Event], round: int) -> None:
    """Log a round's `new` events in one line; `events` are those of the whole run, the new ones included.

    The level is INFO if all are simulated failures, or outliers of clients named before; otherwise WARNING.
    """
    named = {event.client for event in events if event.what == "outlier" and event.round < round}
    usual = all(
        event.what in (DROPPED, LATE, BACK) or (event.what == "outlier" and event.client in named) for event in new
    )
    if new:
        log.log(logging.INFO if usual else logging.WARNING, "round %d: %s", round + 1, events_in_words(new))
