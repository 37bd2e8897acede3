"""Steps as lists of operations on tensors: the same ones, bit for bit, without the Python between them."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_structure, tree_unflatten

from partwise.errors import located
from partwise.rounds.client import BatchRows, Client, ClientProgram, Common
from partwise.rounds.plan import ResolvedPhase

TRACING_PAYS = 256  # steps: tracing one takes as long as some dozens untraced


def operations_of(function: Callable[..., list[Tensor]], tensors: list[Tensor]) -> Callable[..., list[Tensor]]:
    """The operations of a function of such tensors, one after another."""
    # Tensors without values: what would look at numbers, or make as many rows as they say, cannot be traced.
    module = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def state_changed(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether a method holds something else than before: steps that were made from it may have looked at that."""
    return before.keys() != now.keys() or any(now[name] is not value for name, value in before.items())


class Traced:
    """How a single client goes through a phase where many do: steps are traced once enough of a kind were taken."""

    def __init__(self) -> None:
        self.noted: dict[str, Any] = {}  # what the method held when steps were traced
        self.taken: dict[Any, int] = {}  # steps of each kind
        self.steps: dict[Any, Callable[[Client, BatchRows, Common], Client]] = {}  # those that are traced

    def __call__(
        self, program: ClientProgram, phase: ResolvedPhase, client: Client, table: Iterable[BatchRows], common: Common
    ) -> Client:
        if state_changed(self.noted, vars(program.method)):
            self.noted, self.taken, self.steps = dict(vars(program.method)), {}, {}
        step_keys: dict[Any, Any] = {}  # by the size of a mini-batch: nothing else of a kind changes within a phase
        for number, rows in enumerate(table, start=1):
            step_key = step_keys.get(size := rows["index"].shape)
            if step_key is None:
                leaves, structure = tree_flatten((client, rows, common))
                step_key = step_keys[size] = id(phase), structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
            with located(f"step {number}"):
                client = {**client, **self.step(step_key, program, phase, client, rows, common)}
        return client

    def step(
        self,
        step_key: Any,
        program: ClientProgram,
        phase: ResolvedPhase,
        client: Client,
        rows: BatchRows,
        common: Common,
    ) -> Client:
        self.taken[step_key] = self.taken.get(step_key, 0) + 1
        if self.taken[step_key] == TRACING_PAYS:
            with suppress(Exception):  # a loss that looks at numbers goes on as it is
                self.steps[step_key] = traced_step(program, phase, client, rows, common)
        if step_key in self.steps:
            return self.steps[step_key](client, rows, common)
        return program.step(phase, client, rows, common)


def traced_step(
    program: ClientProgram, phase: ResolvedPhase, client: Client, rows: BatchRows, common: Common
) -> Callable[[Client, BatchRows, Common], Client]:
    """A step of a kernel, traced with what one client has."""
    structure = tree_structure((client, rows, common))
    result: list[TreeSpec] = []  # how it is built

    def run(*leaves: Tensor) -> list[Tensor]:
        new, spec = tree_flatten(program.step(phase, *tree_unflatten(leaves, structure)))
        result.append(spec)
        return new

    operations = operations_of(run, tree_leaves((client, rows, common)))
    return lambda client, rows, common: tree_unflatten(operations(*tree_leaves((client, rows, common))), result[0])
