"""Steps as lists of operations on tensors: the same ones, bit for bit, without the Python between them."""

from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_structure, tree_unflatten

from partwise.errors import located
from partwise.rounds.client import BlockBatches, ClientProgram, OneClient, as_only_row, only_client
from partwise.rounds.plan import ResolvedPhase
from partwise.rounds.state import BatchRows, ClientState, Common, Trained

TRACING_PAYS = 256  # steps: tracing one takes as long as some dozens untraced

Step = Callable[[ClientState, BatchRows, Common], Trained]


def operations_of(function: Callable[..., list[Tensor]], tensors: list[Tensor]) -> Callable[..., list[Tensor]]:
    """Return the operations of a function of such tensors, in order."""
    # One tensor in two places would be traced as one; what a client holds may be what it received, in its first step.
    first = {id(tensor): place for place, tensor in reversed(list(enumerate(tensors)))}
    tensors = [tensor if first[id(tensor)] == place else tensor.clone() for place, tensor in enumerate(tensors)]
    # Tensors without values: what would look at numbers, or make as many rows as they say, cannot be traced.
    module = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


class Traced(OneClient):
    """Calls a single client's functions, and traces a step once enough steps of its form were taken."""

    def __init__(self) -> None:
        self.version: int | None = None  # of the method, when steps were traced
        self.taken: dict[Hashable, int] = {}  # steps of each key
        self.traced: dict[Hashable, Step] = {}

    def walk(
        self, program: ClientProgram, phase: ResolvedPhase, client: ClientState, common: Common, batches: BlockBatches
    ) -> ClientState:
        """Return the client after every step of a phase; steps are traced once enough of their form were taken."""
        one = only_client(client)
        if program.version != self.version:
            self.version, self.taken, self.traced = program.version, {}, {}
        step_keys: dict[torch.Size, Hashable] = {}  # by the size of a mini-batch: nothing else changes within a phase
        for number, rows in enumerate(self.rows(batches, common.y.device), start=1):
            step_key = step_keys.get(size := rows.samples.shape)
            if step_key is None:
                leaves, structure = tree_flatten((one, rows, common))
                step_key = step_keys[size] = id(phase), structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
            with located(f"step {number}"):
                one = one.after(self.step_for(step_key, program, phase, one, rows, common)(one, rows, common))
        return as_only_row(one)

    def step_for(
        self,
        step_key: Hashable,
        program: ClientProgram,
        phase: ResolvedPhase,
        client: ClientState,
        rows: BatchRows,
        common: Common,
    ) -> Step:
        """Return the step of a key, traced once enough were taken."""
        self.taken[step_key] = self.taken.get(step_key, 0) + 1
        if self.taken[step_key] == TRACING_PAYS:
            with suppress(Exception):  # a loss that looks at numbers goes on as it is
                self.traced[step_key] = traced_step(program, phase, client, rows, common)
        return self.traced.get(step_key, partial(program.step, phase))


def traced_step(
    program: ClientProgram, phase: ResolvedPhase, client: ClientState, rows: BatchRows, common: Common
) -> Step:
    """Return a step of a program, traced with what one client has."""
    structure = tree_structure((client, rows, common))
    result: list[TreeSpec] = []  # how it is built

    def run(*leaves: Tensor) -> list[Tensor]:
        new, spec = tree_flatten(program.step(phase, *tree_unflatten(leaves, structure)))
        result.append(spec)
        return new

    operations = operations_of(run, tree_leaves((client, rows, common)))
    return lambda client, rows, common: tree_unflatten(operations(*tree_leaves((client, rows, common))), result[0])
