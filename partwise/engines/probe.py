"""Probe a network before a run: its fit to data and parts, unseeded randomness, rows that mix, and clients in blocks.

An error names the layer that is to blame.
"""

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_leaves, tree_map

from partwise.data import Source
from partwise.errors import ConfigError, one_line, short
from partwise.network.layers import HashedDropout, LayerScope
from partwise.network.parts import Parts
from partwise.network.view import Net, Tensors
from partwise.tasks import Task
from partwise.trees import Samples, beyond_end, chosen, is_whole, joined, sample_shape, tensors_of

PROBE_REAL_ROWS, PROBE_ROWS = 4, 6
SINGLE = torch.Size()  # the shape of a label that is one class
FURTHEST = 1e6  # a sample that is further off says nothing about the network: its square may be infinite


def samples_of(source: Source) -> Samples:
    """Return samples from all over a data set: PROBE_ROWS of them, then others as padding; normalised, or as stored.

    Whole numbers stay as they are: a network may look them up.
    """
    index = torch.linspace(0, len(source.y) - 1, 2 * PROBE_ROWS - PROBE_REAL_ROWS).long()

    def normalised(tensor: Tensor, centre: Tensor, scale: Tensor) -> Tensor:
        rows = tensor[index]
        if is_whole(rows):
            return rows
        return ((rows.float() - centre) / scale).nan_to_num().clamp(-FURTHEST, FURTHEST)

    return tree_map(normalised, source.x, *source.normalisation)


def as_seen(parts: Parts, x: Samples, dtype: torch.dtype) -> Samples:
    """Return samples in the type in which a network takes them: whole numbers only where it looks them up."""
    looks_up = embeds(parts)
    return tree_map(lambda t: t if looks_up and is_whole(t) else t.to(dtype), x)


def embeds(parts: Parts) -> bool:
    """Return whether a network looks whole numbers up."""
    layers = (layer for module in parts.modules.values() for layer in module.modules())
    return any(isinstance(layer, nn.Embedding | nn.EmbeddingBag) for layer in layers)


def check_and_measure(parts: Parts, x: Samples, task: Task, label: torch.Size = SINGLE) -> int:
    """Return the size of the last part's input; check that data, network and parts fit each other.

    `label` is the shape of a sample's label.
    """
    modules, size = parts.duplicate().modules, 0  # it is run, and what was handed in stays as it is
    sample = as_seen(parts, chosen(x, slice(2)), next(iter(parts.tensors().values())).dtype)
    output: Any = sample
    try:
        with torch.no_grad():
            for part in parts.chain:
                size = output.flatten(1).shape[1] if isinstance(output, Tensor) else 0
                output = modules[part].eval()(output)
            whole = output if parts.origin is None else copy.deepcopy(parts.origin).eval()(sample)
    except Exception as error:  # a network may fail in any way on what is not made for it
        raise ConfigError(
            f"the network does not take samples of shape {sample_shape(x)}: {short(one_line(error))}"
        ) from None
    if not isinstance(whole, Tensor) or whole.shape != output.shape or not torch.allclose(whole, output, atol=1e-5):
        raise ConfigError(
            f"the parts {' > '.join(parts.chain)} in sequence differ from the network, whose forward does more than "
            "call them; define a part's forward with Parts(net, ..., forward={'body': function})"
        )
    if output.shape[1:] != task.output_shape(label):
        raise ConfigError(task.misfit(output.shape[1:], label, inputs_of(modules[parts.chain[-1]])))
    return size


def check_short_series(parts: Parts, source: Source) -> None:
    """Refuse a network that computes with the NaN with which shorter series end."""
    if isinstance(source.x, dict) or source.x.ndim != 3 or not source.x.is_floating_point():
        return
    short_ones = beyond_end(source.x)[:, -1].nonzero().flatten()[:1]
    if not len(short_ones):
        return
    modules = parts.duplicate().modules
    output: Any = source.x[short_ones].to(next(iter(parts.tensors().values())).dtype)
    with torch.no_grad():
        for part in parts.chain:
            output = modules[part].eval()(output)
    if output.isnan().any():
        raise ConfigError(
            "series of unequal length end with NaN, and so does what the network makes of one; choose model gru or "
            "transformer, or leave out the steps where x.isnan() in your own network"
        )


def inputs_of(head: nn.Module) -> str:
    """Return how many inputs the last linear layer has, as in code."""
    inputs = [str(layer.in_features) for layer in head.modules() if isinstance(layer, nn.Linear)]
    return inputs[-1] if inputs else "..."


def check_repeatable(parts: Parts, scope: LayerScope, x: Samples) -> None:
    """Refuse a network that differs when run twice: unseeded randomness would make clients depend on each other."""
    for name, value in parts.tensors().items():
        if not torch.isfinite(value).all():
            raise ConfigError(f"the network's '{name}' holds numbers that are not finite")
    with watched(parts) as first:
        once = probe_outputs(parts, scope, chosen(x, slice(PROBE_ROWS)))
    with watched(parts) as second:
        again = probe_outputs(parts, scope, chosen(x, slice(PROBE_ROWS)))
    if differ(once, again):
        raise ConfigError(
            f"the network returns something else when run again in training: {guilty(first, second)} draws unseeded "
            "random numbers (use nn.Dropout layers instead) or changes its buffers"
        )


def check_rows_first(parts: Parts, scope: LayerScope, x: Samples) -> None:
    """Refuse dropout on tensors whose first dimension is not the samples; run the network on fewer rows to see."""
    with watched(parts) as many:
        probe_outputs(parts, scope, chosen(x, slice(PROBE_ROWS)))
    with watched(parts) as few:
        probe_outputs(parts, scope, chosen(x, slice(PROBE_REAL_ROWS)))
    for one, other in zip(many.ended, few.ended, strict=False):
        if (
            isinstance(one.layer, HashedDropout)
            and one.layer.p
            and len(one.given[0]) * PROBE_REAL_ROWS != len(other.given[0]) * PROBE_ROWS
        ):
            raise ConfigError(
                f"the network's dropout '{one.name}' receives a tensor whose first dimension is not the samples; "
                "set batch_first=True in the layers around it, or permute after it"
            )


def mixes_rows(parts: Parts, scope: LayerScope, x: Samples) -> str:
    """Return why a row's result depends on other rows, which padded blocks lack; '' if it does not.

    In training padded rows are changed; in evaluation, where not even batch-norm looks at them, the first row is.
    """
    others = joined([chosen(x, slice(PROBE_REAL_ROWS)), chosen(x, slice(PROBE_ROWS, None))])
    first_changed = joined([chosen(x, slice(PROBE_ROWS, PROBE_ROWS + 1)), chosen(x, slice(1, PROBE_ROWS))])
    for training, changed, looked_at in (
        (True, others, slice(PROBE_REAL_ROWS)),
        (False, first_changed, slice(1, PROBE_REAL_ROWS)),
    ):
        with watched(parts) as first:
            before = probe_outputs(parts, scope, chosen(x, slice(PROBE_ROWS)), training=training)
        with watched(parts) as second:
            after = probe_outputs(parts, scope, changed, training=training)
        if differ([before[0][looked_at], *before[1:]], [after[0][looked_at], *after[1:]]):
            return f"a row of a mini-batch changes the others in {guilty(first, second, looked_at)}"
    return ""


def not_in_blocks(parts: Parts, scope: LayerScope, x: Samples) -> str:
    """Return why two clients cannot run at once (torch cannot do that with every layer); '' if they can."""
    both = {name: value.detach().expand(2, *value.shape) for name, value in parts.tensors().items()}
    with warnings.catch_warnings(), watched(parts) as calls:
        warnings.simplefilter("ignore")  # of slow ways
        try:
            vmap(lambda tensors: probe_outputs(parts, scope, chosen(x, slice(PROBE_ROWS)), tensors))(both)
        except RuntimeError:
            scope.clear()
            return f"torch cannot run {next(reversed(calls.open), 'this network')} for several clients at once"
    return ""


def probe_outputs(
    parts: Parts, scope: LayerScope, x: Samples, tensors: Tensors | None = None, training: bool = True
) -> list[Tensor]:
    """Return the network's outputs for the real rows, and its running values."""
    one = tensors_of(x)[0]
    mask, key = torch.arange(len(one), device=one.device) < PROBE_REAL_ROWS, torch.tensor(0, device=one.device)
    net = Net(parts, scope, parts.tensors() if tensors is None else tensors, training=training, mask=mask, key=key)
    with torch.no_grad():
        return [net(x)[:PROBE_REAL_ROWS], *(net.tensors[name] for name in sorted(parts.buffers))]


def differ(one: list[Tensor], two: list[Tensor]) -> bool:
    """Return whether two outputs differ; NaN in both is equal."""
    return any(not torch.equal(first.nan_to_num(), second.nan_to_num()) for first, second in zip(one, two, strict=True))


# ---------------------------------------------------------------------------------------------- which layer it is


class LayerCall(NamedTuple):
    """A call of a layer that has ended."""

    name: str
    layer: nn.Module
    given: list[Tensor]
    result: list[Tensor]

    def __str__(self) -> str:
        hint = "" if getattr(self.layer, "batch_first", True) else ", which needs batch_first=True here"
        return title(self.name, self.layer) + hint


@dataclass
class Calls:
    """The calls of a network's layers: the names of those that have not ended, and the others, inner ones first."""

    open: list[str] = field(default_factory=list)
    ended: list[LayerCall] = field(default_factory=list)


@contextmanager
def watched(parts: Parts) -> Iterator[Calls]:
    """Note every call of a layer."""
    calls, handles = Calls(), []

    def note(name: str, layer: nn.Module, given: Any, named: Any, result: Any) -> None:
        calls.open.pop()
        tensors = [
            [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)] for tree in ((given, named), result)
        ]
        calls.ended.append(LayerCall(name, layer, *tensors))

    for part, module in parts.modules.items():
        for path, layer in module.named_modules(prefix=part):
            handles.append(
                layer.register_forward_pre_hook(lambda layer, _, path=path: calls.open.append(title(path, layer)))
            )
            handles.append(layer.register_forward_hook(partial(note, path), with_kwargs=True))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def guilty(one: Calls, two: Calls, rows: slice | None = None) -> str:
    """Return the innermost layer whose output differs for equal input, optionally in some rows only."""

    def part(tensors: list[Tensor]) -> list[Tensor]:
        return (
            tensors if rows is None else [value[rows] for value in tensors if value.dim() and len(value) == PROBE_ROWS]
        )

    for first, second in zip(one.ended, two.ended, strict=False):
        if not differ(part(first.given), part(second.given)) and differ(part(first.result), part(second.result)):
            return str(first)
    return "its forward"


def title(name: str, layer: nn.Module) -> str:
    """Return the name and type of a layer for an error."""
    return f"'{name}' ({getattr(layer, 'kind', type(layer).__name__)})"
