"""Call many clients at once: their functions under vmap, their steps in slots, their predictions in portions."""

import hashlib
import logging
from collections.abc import Callable, Hashable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from partwise.devices import free_memory, on_device
from partwise.engines.packing import Decisions, width_for
from partwise.engines.patches import vectorised, vectorised_step
from partwise.engines.portions import Portions
from partwise.engines.slots import Slots, laid_out
from partwise.errors import one_line, short
from partwise.rounds.client import BlockBatches, ClientProgram, Prediction, Walk
from partwise.rounds.plan import ResolvedPhase
from partwise.rounds.state import BatchRows, ClientState, Common

CACHED = 2**22  # bytes that the clients side by side on a CPU hold: with more, every operation waits for memory
MAX_CACHED_STEPS = 16  # steps that are held ready: phases, and sizes of what everybody gets
MEMORY_SHARE = 0.6  # of a GPU's free memory for the clients side by side; the rest for what they upload, and its mean
PREDICTED_ON_CPU = 1024  # rows that a CPU predicts at once

log = logging.getLogger(__name__)


class SideBySide:
    """The caller for a block of clients: functions under vmap, steps in slots, predictions in portions.

    Slots are made, compiled and captured when they are first needed, and kept for later rounds.
    """

    def __init__(self, device: torch.device, compiles: tuple[str, ...], block: int | None, portions: Portions):
        self.device, self.portions = device, portions
        self.compiles = compiles  # the names of phases of training
        self.captures = device.type == "cuda"  # steps become CUDA graphs
        self.block = block  # clients in a block at most
        self.widest = 0  # slots that there were at most
        self.widths: dict[str, tuple[int, int]] = {}  # by the name of steps: their slots, and for how many clients
        self.filler: int | None = None  # in padded rows; None: one of a client's own. No result depends on it.
        self.version: int | None = None  # of the method, when steps were made
        self.release()

    def release(self) -> None:
        """Discard all steps that were compiled or captured."""
        self.slots_of: dict[Hashable, Slots] = {}
        # The memory of all graphs. It goes with the last of them, and cannot be used again then.
        self.pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None

    def decisions(self) -> Decisions:
        """Return how steps are carried out."""
        return Decisions(self.compiles, self.block, dict(self.widths))

    def decide(self, decisions: Decisions) -> None:
        """Carry out steps as they were before."""
        self.compiles, self.block, self.widths = decisions.compiles, decisions.block, dict(decisions.widths)

    def narrow(self, block: int) -> None:
        """Use blocks of fewer clients from now on, because memory did not suffice."""
        self.block = block
        self.widths = {}

    # ---- as a caller

    def each(self, function: Callable) -> Callable:
        """Make a function of one client one of a block, under vmap."""
        return vectorised(function)

    def walker(
        self, program: ClientProgram, phase: ResolvedPhase, client: ClientState, batches: BlockBatches, common: Common
    ) -> Walk:
        """Return the function that takes clients through the slots of a phase."""
        if program.version != self.version:
            self.release()  # a step may have looked at what is another now
            self.version = program.version
        return partial(self.slots(program, phase, client, batches, common).through, filler=self.filler)

    def rows(self, batches: BlockBatches, device: torch.device) -> Iterator[BatchRows]:
        """Yield the mini-batches of a report, step by step, all clients' beside each other."""
        every = laid_out(
            batches, [[n] for n in range(len(batches))], max(own.steps for own in batches), self.filler, device
        )
        for step in range(len(every.real)):
            yield BatchRows(*(column[step] for column in every))

    def predict(self, predict: Prediction, client: ClientState, batches: BlockBatches, common: Common) -> list[Tensor]:
        """Return the output of each client's model, (samples, ...).

        Predictions do not depend on each other: mini-batches of all clients form one line, and as many as fit into
        memory are predicted at once, each with a copy of its client's model.
        """
        steps = [own.steps for own in batches]
        if not any(steps):
            return [torch.zeros(0, device=self.device) for _ in batches]
        line = laid_out(batches, [list(range(len(batches)))], sum(steps), self.filler, self.device)
        owner = on_device(torch.from_numpy(np.repeat(np.arange(len(steps)), steps)), self.device)
        models, logits = client.after(client.trained._replace(optimizer_state={})), []
        size = line.samples.shape[-1]
        few = max(1, PREDICTED_ON_CPU // size) if self.device.type == "cpu" else 1
        for span in self.portions.of(("clients", size), sum(steps), few):
            whose, rows = owner[span], BatchRows(*(column[span, 0] for column in line))
            alone = tree_map(lambda tensor, whose=whose: tensor.index_select(0, whose), models)
            logits.append(vectorised(predict)(alone, rows, common))
        real = np.concatenate([own.real for own in batches])
        kept = torch.from_numpy(np.flatnonzero(np.arange(size) < real[:, None]))  # all but padding
        every = torch.cat(logits).flatten(0, 1).index_select(0, on_device(kept, self.device))
        return list(every.split([int(own.real.sum()) for own in batches]))

    # ---- steps that are held ready

    def slots(
        self, program: ClientProgram, phase: ResolvedPhase, client: ClientState, batches: BlockBatches, common: Common
    ) -> Slots:
        """Return the slots for a phase of clients like these; made, compiled and captured when first needed."""
        of_all = tree_map(lambda tensor: tensor[None], common)  # `shapes` leaves out the first dimension, the clients'
        form = shapes(client, of_all)
        step_key = id(phase), form
        slots = self.slots_of.get(step_key)
        if slots is None or len(batches) > 2 * slots.clients:
            step = vectorised_step(partial(program.step, phase))
            slots = Slots(step, client, common, batches[0], 1, self.device, 1)
            width, clients = self.width(name_of(phase, form), slots, batches)
            if len(self.slots_of) == MAX_CACHED_STEPS:  # sizes that change all the time: the oldest goes
                self.slots_of.pop(next(iter(self.slots_of)))
            slots = self.slots_of[step_key] = Slots(step, client, common, batches[0], width, self.device, clients)
            self.widest = max(self.widest, width)
            self.make_fast(slots, phase, type(program.method).__name__)
        return slots

    def width(self, name: str, slots: Slots, batches: BlockBatches) -> tuple[int, int]:
        """Return how many slots clients pass through, and for how many clients that was decided."""
        width, clients = self.widths.get(name, (0, 0))
        if len(batches) > 2 * clients:
            most, clients = min(self.fitting(slots), self.block or len(batches)), len(batches)
            width = width_for([own.steps for own in batches], most)
            self.widths[name] = width, clients
        return width, clients

    def fitting(self, slots: Slots) -> int:
        """Return how many clients may step side by side, by a GPU's free memory or a CPU's cache."""
        if self.device.type == "cpu":
            return max(1, CACHED // slots.changing())
        taken = slots.peak() + 3 * slots.changing()  # they are copied in and out
        return max(1, int(MEMORY_SHARE * free_memory(self.device)) // taken)

    def make_fast(self, slots: Slots, phase: ResolvedPhase, method: str) -> None:
        """Compile steps where that pays (adapting takes too few), capture them on CUDA; else they are only slower."""
        if phase.name in self.compiles and not managed(slots.compile, f"a step of {method} cannot be compiled"):
            self.compiles = ()
        if self.captures:
            self.captures = managed(
                partial(slots.capture, self.pool), f"a step of {method} cannot be captured as a graph"
            )


def managed(improve: Callable[[], None], otherwise: str) -> bool:
    """Try to compile or capture a step; return whether it worked, after a line that says why not."""
    try:
        improve()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of a compiler, anything
        log.warning("%s, so the run is slower: %s", otherwise, short(one_line(error)))
        return False
    return True


def shapes(*trees: object) -> Hashable:
    """Return a key of trees: names, shapes and types without the clients' dimension. Equal keys share a step."""
    leaves, structure = tree_flatten(trees)
    return structure, tuple((tuple(leaf.shape[1:]), leaf.dtype) for leaf in leaves)


def name_of(phase: ResolvedPhase, form: Hashable) -> str:
    """Return the name of steps on tensors of a form, as `shapes` gives it; the same in every process."""
    return f"{phase.name}: {hashlib.blake2b(repr(form).encode(), digest_size=8).hexdigest()}"
