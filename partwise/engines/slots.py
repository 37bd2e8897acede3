"""Many clients through few slots: a step moves every slot on, and a slot whose client is done takes the next one.

One call advances `width` clients by one mini-batch each. On CUDA it is captured as a graph once and replayed: the
mini-batches of the next steps lie on the device, and a counter on the device walks through them, so nothing but
replays comes from the host. On a CPU it is traced instead: what is left are the operations on tensors.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_structure, tree_unflatten

from partwise.devices import on_device
from partwise.engines import tracing
from partwise.engines.packing import makespan, pack_clients, segments
from partwise.engines.tracing import Step
from partwise.errors import located
from partwise.rounds.batches import PhaseBatches
from partwise.rounds.state import BatchRows, ClientState, Common, RoundInputs, Trained

STEPS_ON_DEVICE = 128  # steps whose mini-batches lie on the device at a time
WARM_UP = 2  # steps before a graph is captured: libraries choose their kernels then


class Slots:
    """The tensors of `width` clients that step together, at fixed places in memory.

    It is made for clients, common tensors and mini-batches like those that are handed in.
    """

    def __init__(
        self,
        step: Step,
        client: ClientState,
        common: Common,
        batches: PhaseBatches,
        width: int,
        device: torch.device,
        clients: int,
    ):
        def place(tensor: Tensor) -> Tensor:
            return torch.zeros(width, *tensor.shape[1:], dtype=tensor.dtype, device=device)

        def column(name: str) -> Tensor:
            like = torch.from_numpy(getattr(batches, name))
            return torch.zeros(STEPS_ON_DEVICE, width, *like.shape[1:], dtype=like.dtype, device=device)

        self.clients, self.width, self.device = clients, width, device  # `clients`: for how many it was made
        self.client: ClientState = tree_map(place, client)
        self.common = common._replace(round=tree_map(torch.clone, common.round))
        self.rows = BatchRows(*map(column, BatchRows._fields))  # (steps, slots, ...)
        self.counter = torch.zeros(1, dtype=torch.long, device=device)
        self.tensors = (self.client, self.rows, self.common, self.counter)
        self.run = flattened(step, self.tensors)
        self.graph: torch.cuda.CUDAGraph | None = None  # of a step, once it is captured
        self.taken = 0
        self.traced = False

    def changing(self) -> int:
        """Return the bytes of the tensors that a step changes, in all slots."""
        return sum(tensor.nbytes for tensor in tree_leaves(self.client.trained))

    def peak(self) -> int:
        """Take a step, and return the bytes of a GPU that it needed for a while."""
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        self.step()
        return torch.cuda.max_memory_allocated(self.device) - before

    def trace(self) -> None:
        """Trace a step into a list of operations on tensors, to use from now on."""
        self.run = tracing.operations_of(self.run, tree_leaves(self.tensors))

    def compile(self) -> None:
        """Compile a step into a few kernels, at once, while the slots are empty."""
        self.trace()
        compiled = torch.compile(self.run, dynamic=False)
        compiled(*tree_leaves(self.tensors))
        self.run = compiled

    def step(self) -> None:
        """Advance every slot by one mini-batch."""
        self.run(*tree_leaves(self.tensors))
        self.counter.add_(1)

    def capture(self, pool: "torch.cuda._POOL_HANDLE | None") -> None:
        """Record the step as a CUDA graph and replay it from now on; the slots must be empty, for it is taken."""
        aside = torch.cuda.Stream(self.device)
        aside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                self.step()
        torch.cuda.current_stream(self.device).wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with no_collection(), torch.cuda.graph(graph, pool=pool):
            self.step()
        self.graph = graph

    def through(
        self, client: ClientState, common: Common, batches: Sequence[PhaseBatches], filler: int | None = None
    ) -> ClientState:
        """Return clients after all steps of their mini-batches; `filler` is the sample in padded rows."""
        steps = [own.steps for own in batches]
        queues = pack_clients(steps, self.width)
        self.taken += makespan(steps, queues)
        if self.device.type == "cpu" and self.taken >= tracing.TRACING_PAYS and not self.traced:
            self.traced = True  # or tried, if a loss looks at numbers
            with suppress(Exception):
                self.trace()
        self.renew(common.round)
        rows = laid_out(batches, queues, makespan(steps, queues), filler, self.device)
        done: Trained = tree_map(contiguous_rows, client.trained)
        here, there = tree_leaves(self.client), tree_leaves(client)
        left, changed = tree_leaves(self.client.trained), tree_leaves(done)
        for segment in segments(steps, queues, STEPS_ON_DEVICE):
            for slot, number in segment.leaving:
                copy([tensor[number] for tensor in changed], [tensor[slot] for tensor in left])
            for slot, number in segment.entering:
                copy([tensor[slot] for tensor in here], [tensor[number] for tensor in there])
            if segment.first % STEPS_ON_DEVICE == 0:
                for place, column in zip(self.rows, rows, strict=True):
                    piece = column[segment.first : segment.first + STEPS_ON_DEVICE]
                    place[: len(piece)].copy_(piece)
                self.counter.zero_()
            for number in range(segment.first + 1, segment.last + 1):
                with located(f"step {number}"):
                    self.graph.replay() if self.graph else self.step()
        return client.after(done)

    def renew(self, now: RoundInputs) -> None:
        """Take over what all clients have in common in this round."""
        copy(tree_leaves(self.common.round), tree_leaves(now))


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep Python's garbage collector off: a graph of an earlier run that it destroys would invalidate a capture."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def flattened(step: Step, tensors: tuple[ClientState, BatchRows, Common, Tensor]) -> Callable[..., list[Tensor]]:
    """Return a step as a function of plain tensors, which it changes in place."""
    structure = tree_structure(tensors)

    def run(*leaves: Tensor) -> list[Tensor]:
        client, every, common, counter = tree_unflatten(leaves, structure)
        rows = BatchRows(*(column.index_select(0, counter)[0] for column in every))
        new = tree_leaves(step(client, rows, common))
        return [old.copy_(value) for old, value in zip(tree_leaves(client.trained), new, strict=True)]

    return run


def copy(into: list[Tensor], values: list[Tensor]) -> None:
    """Copy many small tensors in few kernels."""
    if into:
        torch._foreach_copy_(into, values)


def contiguous_rows(tensor: Tensor) -> Tensor:
    """Return a copy whose rows lie in memory one by one, whatever it is a view of."""
    return tensor.clone(memory_format=torch.contiguous_format)


def laid_out(
    batches: Sequence[PhaseBatches], queues: list[list[int]], steps: int, filler: int | None, device: torch.device
) -> BatchRows:
    """Return (steps, slots, ...) the mini-batches of every slot's clients in turn; a free slot has no real row."""
    columns = {}
    for name in BatchRows._fields:
        first = getattr(batches[0], name)
        column = np.zeros((steps, len(queues), *first.shape[1:]), dtype=first.dtype)
        for slot, queue in enumerate(queues):
            begin = 0
            for client in queue:
                own = getattr(batches[client], name)
                column[begin : begin + len(own), slot] = own
                begin += len(own)
        columns[name] = column
    if filler is not None:
        padding = np.arange(columns["samples"].shape[-1]) >= columns["real"][..., None, None]
        columns["samples"] = np.where(padding, filler, columns["samples"])
    return BatchRows(**{name: on_device(torch.from_numpy(column), device) for name, column in columns.items()})
