"""Simulate failures: clients that drop out of a round, answer too late, or come back."""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from partwise.errors import DataError, short
from partwise.streams import stream

DROPPED, LATE, BACK = "dropped", "late", "back"  # what happens to a client, as events name it
TRACE_WORDS = {"drop": DROPPED, "late": LATE, "back": BACK}  # and how a trace does
TRACE_COLUMNS = ["round", "client", "what"]

FailureTrace = Mapping[int, Mapping[int, str]]  # by client and round, from 0


@dataclass(frozen=True)
class PlayedFailures:
    """Failures by client and round: drawn independently for every participant and round, or read from a trace."""

    dropout: float = 0.0  # the probability that a participant drops out
    stragglers: float = 0.0  # the probability that its answer comes too late
    trace: FailureTrace = field(default_factory=dict)

    def of(self, seed: int, round: int, clients: Iterable[int]) -> dict[int, str]:
        """Return `dropped` or `late` for each of some clients that fails; a client that drops out is never late."""
        if self.trace:
            found = {client: self.traced(client, round) for client in clients}
            return {client: what for client, what in found.items() if what}
        result = {}
        for share, name, what in ((self.stragglers, "stragglers", LATE), (self.dropout, "dropout", DROPPED)):
            for client in clients if share else ():
                if stream(seed, name, round, client).random() < share:
                    result[client] = what
        return dict(sorted(result.items()))

    def traced(self, client: int, round: int) -> str:
        """Return the trace's entry for a client in a round; it is away from `drop` until `back`."""
        own = self.trace.get(client, {})
        moves = [at for at, what in own.items() if at <= round and what != LATE]
        if moves and own[max(moves)] == DROPPED:
            return DROPPED
        return LATE if own.get(round) == LATE else ""

    def returning(self, round: int) -> list[int]:
        """Return the clients that come back in this round by the trace."""
        return sorted(client for client, own in self.trace.items() if own.get(round) == BACK)


def read_trace(path: str, clients: int) -> FailureTrace:
    """Read a CSV file with the columns round (from 1), client (from 0) and what (drop, late or back)."""
    file = Path(path).expanduser()
    try:
        with open(file, encoding="utf-8-sig", newline="") as lines:
            rows = list(csv.reader(lines))
    except (OSError, UnicodeError, csv.Error) as error:
        raise DataError(
            f"cannot read the trace of failures '{file}': {getattr(error, 'strerror', None) or error}"
        ) from None
    if not rows or [cell.strip() for cell in rows[0]] != TRACE_COLUMNS:
        raise DataError(f"'{file}' line 1: a trace of failures must begin with the line {','.join(TRACE_COLUMNS)}")
    trace: dict[int, dict[int, str]] = {}
    for line, row in enumerate(rows[1:], start=2):
        if not row:
            continue
        cells = [cell.strip() for cell in row]
        whole = len(cells) == len(TRACE_COLUMNS) and cells[0].isdecimal() and cells[1].isdecimal()
        if not whole or cells[2] not in TRACE_WORDS or int(cells[0]) < 1 or int(cells[1]) >= clients:
            allowed = f"a round from 1, a client from 0 to {clients - 1}, and drop, late or back"
            raise DataError(f"'{file}' line {line}: {short(','.join(row))} is not {allowed}")
        round, client = int(cells[0]) - 1, int(cells[1])
        if round in trace.setdefault(client, {}):
            raise DataError(f"'{file}' line {line}: client {client} occurs twice in round {round + 1}")
        trace[client][round] = TRACE_WORDS[cells[2]]
    return trace
