"""Blocks of clients in one kernel: every step of a block is one call under vmap."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_map

from partwise.engines.engine import Engine, JobBatches
from partwise.engines.packing import width_for
from partwise.engines.patches import Patches
from partwise.engines.slots import CHANGES, Slots, changing, laid_out
from partwise.engines.tracing import state_changed
from partwise.engines.trial import Trial
from partwise.errors import one_line, short
from partwise.rounds.batches import PhaseBatches
from partwise.rounds.client import BatchRows, Client, ClientProgram, Common, JobInputs, Outcome, client_job
from partwise.rounds.messages import Copies, Job, Request, Updates
from partwise.rounds.plan import ResolvedPhase

CACHED = 2**22  # bytes that the clients side by side on a CPU hold: with more, every operation waits for memory
MAX_CACHED_STEPS = 16  # of steps that are held ready: phases, and sizes of what everybody gets
MEMORY_SHARE = 0.6  # of a GPU's free memory for the clients side by side; the rest for what they upload, and its mean

log = logging.getLogger(__name__)


class Vector(Engine):
    """Blocks of at most `block` clients; in each, slots that step together and take one client after the other."""

    block: int | None = None  # None: all clients of a request in one block
    compile = False  # steps of training are compiled
    captures: bool  # steps become CUDA graphs
    widest = 0  # slots that there were at most
    filler: int | None = None  # the sample in padded rows; None: each client's own first. No result depends on it.
    hand_over: Callable[[Request], Updates] | None = None  # to whoever carries out several runs' requests

    def __init__(self, *arguments: Any, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self.trial = Trial(self, vectorised)
        self.captures = self.device.type == "cuda"
        self.noted = dict(vars(self.program.method))  # what the method held when slots were made
        self.release()

    def release(self) -> None:
        super().release()
        self.slots_of: dict[Any, Slots] = {}
        # The memory of all graphs. It goes with the last of them, and cannot be used again then.
        self.pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None

    def enter(self, handed: dict[str, Copies], fresh: Sequence[str], stage: int) -> None:
        super().enter(handed, fresh, stage)
        self.release()  # another stage has other steps

    def blocks(self, request: Request, tables: dict[int, JobBatches]) -> Iterable[list[int]]:
        clients, width = request.clients, self.block or len(request.clients)
        if width < len(clients):  # those of a block have about as many steps
            clients = sorted(clients, key=lambda client: (-tables[client].steps, client))
        return (clients[start : start + width] for start in range(0, len(clients), width))

    def halved(self, clients: list[int]) -> int:
        self.release()
        self.block = super().halved(clients)  # later blocks need not fail again
        log.warning("out of memory on %s: blocks of %d clients from now on", self.device, self.block)
        return self.block

    def carry_out(self, request: Request) -> Updates:
        return super().carry_out(request) if self.hand_over is None else self.hand_over(request)

    def execute(self, request: Request, client: Client, common: Common, tables: list[JobBatches]) -> Outcome:
        phases = self.phases(request)
        work = JobInputs(
            [(phase, [table.phases[number] for table in tables]) for number, phase in enumerate(phases)],
            request.job == "train",
            self.lockstep([table.report for table in tables if table.report]),
            self.lockstep([table.predict for table in tables if table.predict]),
            request.plan.predict,
        )
        return client_job(self.program, client, common, work, vectorised, partial(self.walk, request.job))

    def walk(
        self,
        job: Job,
        program: ClientProgram,
        phase: ResolvedPhase,
        client: Client,
        tables: Sequence[PhaseBatches],
        common: Common,
    ) -> Client:
        """A block of clients through a phase, in slots that are made when they are first needed."""
        if not any(table.steps for table in tables):
            return client
        if state_changed(self.noted, vars(program.method)):
            self.release()  # a step may have looked at what is another now
            self.noted = dict(vars(program.method))
        of_all = tree_map(lambda tensor: tensor[None], common)  # `shapes` leaves out the first dimension, the clients'
        steps, step_key = [table.steps for table in tables], (id(phase), shapes(client, of_all))
        slots = self.slots_of.get(step_key)
        if slots is None or len(tables) > 2 * slots.clients:
            step = vectorised(partial(program.step, phase), CHANGES)
            slots = Slots(step, client, common, tables[0], 1, self.device)
            width = width_for(steps, min(self.fitting(slots), self.block or len(tables)))
            if len(self.slots_of) == MAX_CACHED_STEPS:  # sizes that change all the time: the oldest goes
                self.slots_of.pop(next(iter(self.slots_of)))
            slots = self.slots_of[step_key] = Slots(step, client, common, tables[0], width, self.device)
            self.widest = max(self.widest, width)
            self.made_fast(slots, job)
        return slots.through(client, common, tables, self.filler)

    def fitting(self, slots: Slots) -> int:
        """How many clients may step side by side: as many as fit into a GPU's free memory, or into a CPU's cache."""
        held = sum(tensor.nbytes for tensor in changing(slots.client))
        if self.device.type == "cpu":
            return max(1, CACHED // held)
        taken = slots.peak() + 3 * held  # they are copied in and out
        return max(1, int(MEMORY_SHARE * free_memory(self.device)) // taken)

    def made_fast(self, slots: Slots, job: Job) -> None:
        """Compile steps where that pays (adapting takes too few), capture them on CUDA; else they are only slower."""
        if self.compile and job == "train":
            self.compile = self.managed(slots.compile, "compiled")
        if self.captures:
            self.captures = self.managed(partial(slots.capture, self.pool), "captured as a graph")

    def managed(self, improve: Callable[[], None], what: str) -> bool:
        """Whether steps could be made faster; a line says why not: no compiler, or a loss that copies from the host."""
        try:
            improve()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # of a compiler, anything
            name = type(self.program.method).__name__
            log.warning("a step of %s cannot be %s, so it is slower: %s", name, what, short(one_line(error)))
            return False
        return True

    def lockstep(self, tables: Sequence[PhaseBatches]) -> Iterator[BatchRows]:
        """The mini-batches of a report or prediction, step by step; a client that has finished has none (count 0)."""
        if tables:
            each = [[number] for number in range(len(tables))]
            rows = laid_out(tables, each, max(table.steps for table in tables), self.filler, self.device)
            for step in range(len(rows["count"])):
                yield {name: column[step] for name, column in rows.items()}


def shapes(*trees: Any) -> tuple[Any, ...]:
    """What a graph depends on, beside the values: how tensors are called, what they are like (but for the clients)."""
    leaves, structure = tree_flatten(trees)
    return structure, tuple((tuple(leaf.shape[1:]), leaf.dtype) for leaf in leaves)


def free_memory(device: torch.device) -> int:
    """Bytes of a GPU that nobody uses; torch holds some of them ready."""
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def vectorised(function: Callable, stays: tuple[str, ...] = ()) -> Callable:
    """A function of one client over a block; an idle client keeps what `stays`, or adds nothing."""

    def guarded(client: Client, rows: BatchRows, common: Common) -> Client:
        with Patches():
            new = function(client, rows, common)
        if "count" not in rows:
            return new
        active = rows["count"] > 0
        old = {name: client[name] for name in stays} if stays else tree_map(torch.zeros_like, new)
        return tree_map(lambda after, before: torch.where(active, after, before), new, old)

    return vmap(guarded, in_dims=(0, 0, None))
