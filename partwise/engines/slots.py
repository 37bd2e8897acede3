"""Many clients through few slots: a step moves every slot on, and a slot whose client is done takes the next one.

With a step for each slot there are `width` clients in one kernel. On CUDA the step is captured as a graph once and
replayed: the mini-batches of the next steps lie in a table on the device, and a counter on the device walks it, so
nothing but replays comes from the host. On a CPU it is traced instead: what is left are the operations on tensors.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_structure, tree_unflatten

from partwise.engines import tracing
from partwise.engines.packing import makespan, packed, segments
from partwise.errors import located
from partwise.rounds.batches import PhaseBatches
from partwise.rounds.client import BatchRows, Client, Common
from partwise.rounds.messages import on_device

STEPS_ON_DEVICE = 128  # steps whose mini-batches lie in the table at a time
WARM_UP = 2  # steps before a graph is captured: libraries choose their kernels then
CHANGES = ("own", "slots", "loss")  # what a step changes of a client
RENEWED = ("frozen", "got", "extras", "rate")  # what changes from round to round of what all clients have in common

Step = Callable[[Client, BatchRows, Common], Client]


class Slots:
    """The tensors of `width` clients that step together, at fixed places in memory."""

    def __init__(
        self, step: Step, client: Client, common: Common, table: PhaseBatches, width: int, device: torch.device
    ):
        def place(tensor: Tensor) -> Tensor:
            return torch.zeros(width, *tensor.shape[1:], dtype=tensor.dtype, device=device)

        self.clients, self.width, self.device = len(client["loss"]), width, device  # `clients`: that it was made for
        self.client: Client = tree_map(place, client)
        self.common = {**common, **{name: tree_map(torch.clone, common[name]) for name in RENEWED}}
        self.rows = {
            name: torch.zeros(
                STEPS_ON_DEVICE, width, *column.shape[1:], dtype=torch.from_numpy(column).dtype, device=device
            )
            for name, column in columns(table).items()
        }
        self.counter = torch.zeros(1, dtype=torch.long, device=device)
        self.tensors = (self.client, self.rows, self.common, self.counter)
        self.run = flattened(step, self.tensors)
        self.advance: Callable[[], None] = self.step
        self.taken = 0
        self.traced = False

    def peak(self) -> int:
        """Bytes of a GPU that a step needs for a while."""
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        self.step()
        return torch.cuda.max_memory_allocated(self.device) - before

    def trace(self) -> None:
        """From now on a step is a list of operations on tensors."""
        self.run = tracing.operations_of(self.run, tree_leaves(self.tensors))

    def compile(self) -> None:
        """From now on a step is a few kernels made for it; made at once, while the slots are empty."""
        self.trace()
        compiled = torch.compile(self.run, dynamic=False)
        compiled(*tree_leaves(self.tensors))
        self.run = compiled

    def step(self) -> None:
        """Every slot one mini-batch further."""
        self.run(*tree_leaves(self.tensors))
        self.counter.add_(1)

    def capture(self, pool: Any) -> None:
        """From now on a step is the replay of a graph. The slots are empty: no client is there whom it could change."""
        aside = torch.cuda.Stream(self.device)
        aside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                self.step()
        torch.cuda.current_stream(self.device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            self.step()
        self.advance = graph.replay

    def through(
        self, client: Client, common: Common, tables: Sequence[PhaseBatches], filler: int | None = None
    ) -> Client:
        """What clients hold after all steps of their tables; `filler` is the sample in padded rows."""
        steps = [table.steps for table in tables]
        queues = packed(steps, self.width)
        self.taken += makespan(steps, queues)
        if self.device.type == "cpu" and self.taken >= tracing.TRACING_PAYS and not self.traced:
            self.traced = True  # or tried, if a loss looks at numbers
            with suppress(Exception):
                self.trace()
        for name in RENEWED:
            copy(tree_leaves(self.common[name]), tree_leaves(common[name]))
        rows = laid_out(tables, queues, makespan(steps, queues), filler, self.device)
        done = tree_map(whole, {name: client[name] for name in CHANGES})
        here, there = tree_leaves(self.client), tree_leaves(client)
        left, changed = changing(self.client), tree_leaves(done)
        for segment in segments(steps, queues, STEPS_ON_DEVICE):
            for slot, number in segment.leaving:
                copy([tensor[number] for tensor in changed], [tensor[slot] for tensor in left])
            for slot, number in segment.entering:
                copy([tensor[slot] for tensor in here], [tensor[number] for tensor in there])
            if segment.first % STEPS_ON_DEVICE == 0:
                for name, column in rows.items():
                    piece = column[segment.first : segment.first + STEPS_ON_DEVICE]
                    self.rows[name][: len(piece)].copy_(piece)
                self.counter.zero_()
            for number in range(segment.first + 1, segment.last + 1):
                with located(f"step {number}"):
                    self.advance()
        return {**client, **done}


def flattened(step: Step, tensors: Any) -> Callable[..., list[Tensor]]:
    """A step as a function of plain tensors, which it changes in place."""
    structure = tree_structure(tensors)

    def run(*leaves: Tensor) -> list[Tensor]:
        client, table, common, counter = tree_unflatten(leaves, structure)
        rows = {name: column.index_select(0, counter)[0] for name, column in table.items()}
        new = tree_leaves(step(client, rows, common))
        return [old.copy_(value) for old, value in zip(changing(client), new, strict=True)]

    return run


def changing(client: Client) -> list[Tensor]:
    """The tensors of a client that a step changes."""
    return tree_leaves({name: client[name] for name in CHANGES})


def copy(into: list[Tensor], values: list[Tensor]) -> None:
    """Many small tensors in few kernels."""
    if into:
        torch._foreach_copy_(into, values)


def whole(tensor: Tensor) -> Tensor:
    """A copy whose rows lie in memory one by one, whatever it is a view of."""
    return tensor.clone(memory_format=torch.contiguous_format)


def columns(table: PhaseBatches) -> dict[str, np.ndarray]:
    """Those that a table has."""
    named = {"index": table.index, "count": table.count, "key": table.key, "change": table.change}
    return {name: column for name, column in named.items() if column is not None}


def laid_out(
    tables: Sequence[PhaseBatches], queues: list[list[int]], steps: int, filler: int | None, device: torch.device
) -> BatchRows:
    """(steps, slots, ...) the mini-batches of every slot's clients in turn; a slot that is free has none (count 0)."""
    result = {}
    for name, first in columns(tables[0]).items():
        column = np.zeros((steps, len(queues), *first.shape[1:]), dtype=first.dtype)
        for slot, queue in enumerate(queues):
            begin = 0
            for client in queue:
                own = columns(tables[client])[name]
                column[begin : begin + len(own), slot] = own
                begin += len(own)
        result[name] = column
    if filler is not None:
        padding = np.arange(result["index"].shape[-1]) >= result["count"][..., None, None]
        result["index"] = np.where(padding, filler, result["index"])
    return {name: on_device(torch.from_numpy(column), device) for name, column in result.items()}
