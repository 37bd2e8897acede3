"""Schedule clients of different sizes on slots, the rows of a block, so that no slot is idle for long."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

STEP_OVERHEAD = 4  # what a step costs beside its slots, in slots


def pack_clients(steps: Sequence[int], width: int) -> list[list[int]]:
    """Return the clients of each slot, in order: the longest first, each to the slot that is free first."""
    queues: list[list[int]] = [[] for _ in range(width)]
    free = [(0, slot) for slot in range(width)]
    for client in sorted(range(len(steps)), key=lambda client: (-steps[client], client)):
        if steps[client]:
            load, slot = heapq.heappop(free)
            queues[slot].append(client)
            heapq.heappush(free, (load + steps[client], slot))
    return queues


def makespan(steps: Sequence[int], queues: list[list[int]]) -> int:
    """Return the number of steps of the fullest slot."""
    return max((sum(steps[client] for client in queue) for queue in queues), default=0)


def width_for(steps: Sequence[int], most: int | None = None) -> int:
    """Return the width (at most `most`) that minimises makespan x (overhead + width)."""
    clients = max(1, sum(map(bool, steps)))
    most = min(clients, most or clients)
    even = {-(-clients // turns) for turns in range(1, clients + 1)}  # no other width leaves fewer turns to fewer slots

    def cost(width: int) -> int:
        return makespan(steps, pack_clients(steps, width)) * (STEP_OVERHEAD + width)

    return min({width for width in even if width < most} | {most}, key=lambda width: (cost(width), width))


@dataclass(frozen=True)
class Decisions:
    """Decisions about the execution of steps. They change a result's last bits, so a resumed run keeps them."""

    compiles: tuple[str, ...]  # the names of phases
    block: int | None  # clients in a block at most
    widths: dict[str, tuple[int, int]]  # by the name of steps: their slots, and for how many clients that was decided


@dataclass
class Segment:
    """Consecutive steps in which no slot changes its client."""

    first: int
    last: int
    leaving: list[tuple[int, int]]  # slots and their clients that are done before it
    entering: list[tuple[int, int]]  # those that begin with it


def segments(steps: Sequence[int], queues: list[list[int]], longest: int) -> Iterator[Segment]:
    """Yield all segments, an empty one last; none crosses a multiple of `longest`."""
    leaving: dict[int, list[tuple[int, int]]] = {}
    entering: dict[int, list[tuple[int, int]]] = {}
    for slot, queue in enumerate(queues):
        begin = 0
        for client in queue:
            entering.setdefault(begin, []).append((slot, client))
            begin += steps[client]
            leaving.setdefault(begin, []).append((slot, client))
    end = max(leaving, default=0)
    marks = sorted({*leaving, *entering, *range(0, end + 1, longest)})
    for first, last in zip(marks, [*marks[1:], end], strict=True):
        yield Segment(first, last, leaving.get(first, []), entering.get(first, []))
