"""The arguments of a method's functions: one client's network, one mini-batch, and `me`, the client's own data."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call
from torch.utils._pytree import tree_map

from partwise.devices import on_device
from partwise.errors import ConfigError, first_line, unknown
from partwise.network.keyed import NO_DRAWS, Draws
from partwise.network.layers import LayerScope
from partwise.network.parts import Parts
from partwise.tasks import Task
from partwise.trees import Samples

Tensors = dict[str, Tensor]
Tree: TypeAlias = "Tensor | Mapping[str, Tree] | tuple[Tree, ...] | list[Tree]"
Extras: TypeAlias = dict[str, Tree]  # what a method sends beside parts, by name


class Batch(NamedTuple):
    """A mini-batch. Rows may be padding: take means with `loss` and `mean`, or use `mask` where rows meet in pairs."""

    x: Samples  # (rows, ...) samples, as the network takes them; a dict of tensors where samples have several
    y: Tensor  # (rows,) their classes, from 0; for other tasks (rows, ...), as the task says
    mask: Tensor  # (rows,) true for real samples
    task: Task  # what a label is
    draws: Draws = NO_DRAWS
    class_weights: Tensor | None = None  # (classes,) of `ce`; None: all count alike
    raw: Samples | None = None  # (rows, ...) samples as the data set holds them, not normalised: in `describe` alone

    @property
    def classes(self) -> int:
        """Return the number of classes; refused where labels are something else."""
        self.task.require_classes("b.classes")
        return self.task.outputs

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of one number per row over the real rows."""
        return self.sum(values) / self.mask.sum().clamp(min=1)

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of one number per row over the real rows."""
        if values.shape != self.mask.shape:
            raise ConfigError(
                f"b.mean and b.sum take one number per row, {tuple(self.mask.shape)}, not {tuple(values.shape)}"
            )
        return torch.where(self.mask, values, torch.zeros_like(values)).sum()

    def loss(self, output: Tensor) -> Tensor:
        """Return the task's loss of the network's output, the mean over all that is known in the mini-batch.

        For classes it is softmax cross-entropy, weighted with `class_weights` as in torch.
        """
        if not self.task.of_classes:
            return self.task.loss(output, self.y, self.mask)
        if output.dtype is torch.bfloat16:
            output = output.float()
        losses = F.cross_entropy(output, self.y, reduction="none")
        if self.class_weights is None:
            return self.mean(losses)
        weights = self.class_weights[self.y]
        return self.sum(weights * losses) / self.sum(weights).clamp(min=torch.finfo(weights.dtype).tiny)

    def bins(self) -> Tensor:
        """Return (rows, bins) 1 at the bin of each real row: its class, or what its label counts as; padding is 0."""
        self.task.require_bins("b.bins")
        bins = torch.arange(self.task.bins, device=self.y.device)
        return (self.task.binned(self.y)[:, None] == bins) & self.mask[:, None]

    def ce(self, logits: Tensor) -> Tensor:
        """Return the loss of one class a sample, softmax cross-entropy; refused where labels are something else."""
        self.task.require_classes("b.ce")
        return self.loss(logits)

    def one_hot(self) -> Tensor:
        """Return (rows, classes) 1 at each real row's class; padded rows are 0."""
        self.task.require_classes("b.one_hot")
        return self.bins()

    def random(self, shape: Iterable[int]) -> Tensor:
        """Return (shape) numbers between 0 and 1 from this client's own stream, new with every call, rows first."""
        return self.draws.random(shape)

    def normal(self, shape: Iterable[int]) -> Tensor:
        """Return (shape) standard normal numbers from the same stream: `z + 0.1 * b.normal(z.shape)`."""
        return self.draws.normal(shape)


class ClassCounts(NamedTuple):
    """How many samples of each class or bin there are: a label histogram, which filters know by this type."""

    counts: Tensor  # (bins,)


class ClassRows(NamedTuple):
    """A vector for each class, as sums and counts: dense here, only the rows with a count on the wire."""

    sums: Tensor  # (classes, size) the sum of the vectors of each class
    counts: Tensor  # (classes,) how many they are

    @classmethod
    def of(cls, rows: Tensor, b: Batch) -> "ClassRows":
        """Return sums and counts of the rows of each class in a mini-batch."""
        rows = rows.float() if rows.dtype is torch.bfloat16 else rows  # they are summed over many batches
        member = b.one_hot().to(rows.dtype)
        return cls(member.T @ rows, member.sum(0))

    @property
    def mean(self) -> Tensor:
        """Return (classes, size) the mean of each class; 0 where there is no sample."""
        return self.sums / self.counts.clamp(min=1)[..., None]

    @property
    def present(self) -> Tensor:
        """Return (classes,) 1 where there is a sample of the class, 0 elsewhere."""
        return (self.counts > 0).to(self.sums.dtype)


@dataclass(frozen=True)
class PerClient:
    """An extra that differs from client to client: a row for each of `server.receivers`, in order."""

    rows: Any  # a tree of tensors, (receivers, ...)

    def of(self, receivers: Sequence[int], clients: Sequence[int], device: torch.device) -> Any:
        """Return the rows of some of the receivers."""
        place = {client: row for row, client in enumerate(receivers)}
        index = torch.tensor([place[client] for client in clients])

        def pick(tensor: Tensor) -> Tensor:
            if len(tensor) != len(receivers):
                raise ConfigError(f"an extra has {len(tensor)} rows for {len(receivers)} receivers")
            return on_device(tensor[on_device(index, tensor.device)], device)

        return tree_map(pick, self.rows)


class Net:
    """One client's network, bound to its tensors: `net(x)`, `net.body(x)`, `net["head"]`.

    Calling a part never changes a parameter. New running values of batch-norm are written into `tensors`, unless the
    network is a received one.
    """

    def __init__(
        self,
        parts: Parts,
        scope: LayerScope,
        tensors: Mapping[str, Tensor],
        *,
        trainable: tuple[str, ...] = (),
        training: bool = False,
        mask: Tensor | None = None,
        key: Tensor | None = None,
        record: bool = True,
        compute: torch.dtype | None = None,
    ):
        self.parts, self.scope, self.tensors = parts, scope, dict(tensors)
        self.trainable, self.training, self.mask, self.key = trainable, training, mask, key
        self.record, self.compute = record, compute  # compute: the precision of the forward pass, where it differs

    def __call__(self, x: Samples) -> Tensor:
        """Run the chain of parts."""
        first, *others = self.parts.chain
        output = self._run(first, x)
        for part in others:
            output = self._run(part, output)
        return output

    def __getattr__(self, name: str) -> Callable[[Samples], Tensor]:
        """Run one part."""
        if name.startswith("_") or "parts" not in self.__dict__:
            raise AttributeError(name)
        self.parts.module(name)
        return partial(self._run, name)

    def __getitem__(self, selector: str) -> Tensors:
        """Return the parameters of a selector; those of a single part without its name, so that copies line up."""
        names = self.parts.parameters(selector)
        return {short: self.tensors[name] for short, name in names.items() if name in self.tensors}

    def grad(self, loss: Callable, b: Any, me: "Me") -> Tensors:
        """Return the gradient of a loss (net, b, me) by full name, with respect to what trains in this move."""
        gradients, (_, running) = self.grad_and_value(loss, b, me)
        self.tensors.update(running)
        return gradients

    def grad_and_value(self, loss: Callable, b: Any, me: "Me") -> tuple[Tensors, tuple[Tensor, Tensors]]:
        """Return the gradient, the loss and the new running values, as outputs without side effects."""

        def value(weights: Tensors) -> tuple[Tensor, tuple[Tensor, Tensors]]:
            net = self.on(b).with_tensors(weights)
            result = loss(net, b, me)
            if not isinstance(result, Tensor) or result.dim():
                given = f"a tensor {tuple(result.shape)}" if isinstance(result, Tensor) else type(result).__name__
                raise ConfigError(f"{first_line(loss)}a loss must be one number, as from b.mean or b.ce, not {given}")
            return result, (result.detach(), net.running)

        weights = {name: self.tensors[name] for name in self.trainable}
        gradients, auxiliary = torch.func.grad(value, has_aux=True)(weights)
        return gradients, auxiliary

    @property
    def running(self) -> Tensors:
        """Return the running values of batch-norm as they are now."""
        return {name: self.tensors[name] for name in self.parts.buffers}

    def step(self, grads: Tensors, lr: Tensor | float) -> "Net":
        """Return the network one plain gradient step further."""
        return self.with_tensors({name: self.tensors[name] - lr * grad for name, grad in grads.items()})

    def on(self, b: Any) -> "Net":
        """Return the same network, told which rows of this mini-batch are real."""
        first = b if isinstance(b, Batch) else b[0]
        return self._but(mask=first.mask)

    def fixed(self, selectors: str) -> "Net":
        """Return the same network, in which some parts get no gradient."""
        return self.with_tensors({name: self.tensors[name].detach() for name in self.parts.select(selectors)})

    def with_key(self, key: Tensor) -> "Net":
        """Return the same network, whose dropout draws from another key."""
        return self._but(key=key)

    def with_tensors(self, tensors: Mapping[str, Tensor]) -> "Net":
        """Return the same network with other values of some tensors, by full name."""
        return self._but(tensors={**self.tensors, **tensors})

    def _received(self, tensors: Mapping[str, Tensor]) -> "Net":
        """Return the network as the server sent it: with these values of some tensors, and no running values noted."""
        return self._but(tensors={**self.tensors, **tensors}, trainable=(), record=False)

    def _but(self, **changes: Any) -> "Net":
        names = ("tensors", "trainable", "training", "mask", "key", "record", "compute")
        return Net(self.parts, self.scope, **{name: changes.get(name, getattr(self, name)) for name in names})

    def _run(self, part: str, x: Samples) -> Tensor:
        """Run one part on this client's tensors."""
        tensors = {short: self.tensors[name] for short, name in self.parts.members[part].items()}
        if self.compute is not None:
            # Running values keep their precision: they are sums over many batches.
            members, buffers = self.parts.members[part], self.parts.buffers
            tensors = {k: v if members[k] in buffers else v.to(self.compute) for k, v in tensors.items()}
            x = tree_map(lambda value: value.to(self.compute) if value.is_floating_point() else value, x)
        scope, module = self.scope, self.parts.modules[part]
        if module.training != self.training:  # for layers of a user's own; the exchanged ones ask the scope
            module.train(self.training)
        scope.begin(self.training, self.mask, self.key, notes_running=self.record and self.training)
        result = functional_call(module, tensors, (x,))
        self.tensors.update(scope.running or {})
        scope.clear()
        return result


# No part may have the name of a method of Net, or of an argument that it is made with.
RESERVED_NAMES = {name for name in dir(Net) if not name.startswith("_")} | set(signature(Net).parameters)


class Received:
    """What came from the server: parts that can be called (`me.got.head(z)`), and extras (`me.got.c`)."""

    def __init__(self, net: Net, names: set[str], extras: Extras):
        vars(self).update(_net=net, _names=names, _extras=extras)

    def __setattr__(self, name: str, value: Any) -> None:
        raise ConfigError(f"me.got.{name} is read-only: return what clients receive from down()")

    def __getattr__(self, name: str) -> Any:
        """Return a received part to call, or an extra by its name; the client's own part stays as it is."""
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._extras:
            return self._extras[name]
        if name not in self._known:
            raise AttributeError(self._unknown(name))
        return getattr(self._net, name)

    def __call__(self, x: Samples) -> Tensor:
        """Run the chain: received parts where there are some, the client's own elsewhere."""
        return self._net(x)

    def __getitem__(self, name: str) -> Any:
        """Return an extra by name, or the received parameters of a selector, named as in `net`."""
        if name in self._extras:
            return self._extras[name]
        if not {word.split(".")[0] for word in name.split()} <= {*self._known, "*", "@norm"}:
            raise ConfigError(self._unknown(name))
        names = self._net.parts.parameters(name)
        return {short: self._net.tensors[full] for short, full in names.items() if full in self._names}

    def __contains__(self, name: str) -> bool:
        """Return whether an extra or a part of this name was received."""
        return name in self._known

    @property
    def _known(self) -> list[str]:
        """Return the names of the received parts, whole or in pieces, and extras."""
        return list(dict.fromkeys([*(name.split(".")[0] for name in self._names), *self._extras]))

    def _unknown(self, name: str) -> str:
        return unknown("received part or extra", name, sorted(self._known))


class Remembered(dict[str, Tensor]):
    """What a client remembers between rounds, read-only: under vmap, writes inside a loss would be lost."""

    def refuse(self, *arguments: Any, **keywords: Any) -> Any:
        """Refuse to change what a client remembers."""
        raise ConfigError("me.keep is read-only: return its new contents from finish()")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = refuse


class Me(NamedTuple):
    """All that one client may read beside its network and its batches."""

    got: Received  # what came from the server in this round
    keep: Remembered  # a dict of the tensors that are remembered between rounds, to be read
    bin_counts: Tensor  # (bins,) training samples of each class, or of each bin of other labels
    task: Task  # what a label is
    samples: Tensor  # how many training samples
    steps: Tensor  # how many local steps this round has
    lr: Tensor  # the learning rate of this round
    draws: Draws = NO_DRAWS

    @property
    def bins(self) -> Tensor:
        """Return (bins,) training samples of each class, or of each bin of other labels."""
        self.task.require_bins("me.bins")
        return self.bin_counts

    @property
    def counts(self) -> Tensor:
        """Return (classes,) training samples of each class; refused where labels are something else."""
        self.task.require_classes("me.counts")
        return self.bin_counts

    def random(self, shape: Iterable[int] = ()) -> Tensor:
        """Return (shape) numbers between 0 and 1 from this client's own stream, where there is no mini-batch."""
        return self.draws.random(shape)

    def normal(self, shape: Iterable[int] = ()) -> Tensor:
        """Return (shape) standard normal numbers from the same stream."""
        return self.draws.normal(shape)
