"""One client's round, written once: start > phases > finish > report > predict.

The functions of `ClientProgram` are pure functions of one client's tensors. An engine calls them as they are, or under
vmap for a block of clients.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from partwise.errors import ConfigError, called, first_line, located, unknown
from partwise.method import Method
from partwise.network.keyed import Draws
from partwise.network.layers import LayerScope
from partwise.network.parts import Parts
from partwise.network.view import RESERVED_NAMES, Batch, Extras, Me, Net, Received, Remembered, Tensors
from partwise.privacy.gradients import PrivateGradients
from partwise.rounds import optim
from partwise.rounds.augment import Augmentation, augmented
from partwise.rounds.batches import JobBatches, PhaseBatches, Recipe
from partwise.rounds.plan import MANY_TIMES, JobPlan, ResolvedMove, ResolvedPhase
from partwise.rounds.state import BatchRows, ClientState, Common, OptimizerState, Outcome, Trained
from partwise.tasks import Task
from partwise.trees import Samples, chosen, is_whole

# Large odd numbers: what is drawn for one purpose does not meet what is drawn for another.
MOVE, SECOND, MINE = 0x1000193, 0x2545F491, 0x61C88647  # a step's moves; its other mini-batches; `me` beside them
START, FINISH, REPORT, PREDICT, OVERWRITE = (0x3C6EF372 * number + 1 for number in range(1, 6))
REMEMBERED_VERSIONS = 4  # of what a method holds: one as it trains, one as it is tested


@dataclass
class ClientProgram:
    """A method on a network, as pure functions of one client."""

    method: Method
    parts: Parts
    scope: LayerScope
    task: Task  # what a label is
    centre: Samples  # samples are normalised as (x - centre) / scale, each tensor by its own
    scale: Samples
    dtype: torch.dtype
    compute: torch.dtype | None = None  # the precision of the forward pass, where it differs
    embeds: bool = False  # the network looks whole numbers up: they stay as they are
    channels_last: bool = False  # images lie in memory pixel by pixel: on a CPU convolutions are faster then
    private: PrivateGradients | None = None  # how gradients are taken in training, where they have noise
    versions: "deque[tuple[int, dict[str, object]]]" = field(init=False, repr=False)  # what the method held of late

    def __post_init__(self) -> None:
        self.versions = deque([(0, dict(vars(self.method)))], maxlen=REMEMBERED_VERSIONS)
        for part in RESERVED_NAMES & set(self.parts.modules):
            raise ConfigError(f"a part cannot be called '{part}', because `net.{part}` exists already; rename it")

    def has(self, hook: str) -> bool:
        """Return whether the method overrides a hook."""
        return getattr(type(self.method), hook) is not getattr(Method, hook)

    @property
    def version(self) -> int:
        """Return a number for the method's present attributes; it changes when one is replaced, and back with it.

        Steps that were made from one may have looked at it, and must be made again for another.
        """
        now = vars(self.method)
        for number, held in self.versions:
            if held.keys() == now.keys() and all(now[name] is value for name, value in held.items()):
                return number
        self.versions.append((self.versions[-1][0] + 1, dict(now)))
        return self.versions[-1][0]

    def recipe(
        self,
        phase: ResolvedPhase,
        batch: int,
        augmentation: Augmentation | None = None,
        times: int = MANY_TIMES,
        epochs: int | None = None,
    ) -> Recipe:
        """Return how the epochs of a phase are cut into mini-batches.

        `times` are the rounds that the client has behind it, `epochs` its own, in place of the run's.
        """
        smallest = 2 if self.parts.batch_norm and phase.training else 1
        passes, drop_last = phase.epochs_after(times, epochs), self.method.drop_last
        return Recipe(batch, passes, phase.steps, phase.batches, smallest, drop_last, augmentation=augmentation)

    # ---- a client's functions

    def start(self, client: ClientState, common: Common) -> Tensors:
        """Return the tensors that the method overwrites right after download."""
        return overwriting(self.method.start(*self.view(client, common, purpose=START)), client.trained.own)

    def step(self, phase: ResolvedPhase, client: ClientState, rows: BatchRows, common: Common) -> Trained:
        """Take one mini-batch through every move of a phase."""
        batches = self.batches(rows, common.x, common.y)
        own, optimizer_state, loss = dict(client.trained.own), dict(client.trained.optimizer_state), client.trained.loss
        for number, move in enumerate(phase.moves):
            for turn in range(move.move.repeat):
                key = rows.key + MOVE * (number * 4096 + turn)
                now = client.overwritten(own)
                net, me = self.view(now, common, batches[0].mask, key, phase.training, move.names)
                drawing = self.drawing(batches, key, client)
                if move.update:
                    own.update(self.updated(move, net, drawing, me))
                    continue
                grads, value, running = self.gradients(move, net, drawing, me, phase.every_round)
                loss = loss if value is None else loss + value.to(loss.dtype)
                if phase.every_round:  # adaptation before a test follows the loss alone
                    grads = self.method.correct(grads, net, me)
                    check_gradients(self.method.correct, grads, move)
                own.update(running)
                own.update(self.descend(move, own, grads, optimizer_state, common.round.rate))
                if move.after:
                    own.update(overwriting(move.after(net.with_tensors(own), me), own))
        return Trained(own, optimizer_state, loss)

    def updated(self, move: ResolvedMove, net: Net, batches: tuple[Batch, ...], me: Me) -> Tensors:
        """Return the tensors that a move with an `update` overwrites, and the new running values."""
        assert move.update is not None
        changes = move.update(net, batches[0] if move.move.batches == 1 else batches[: move.move.batches], me)
        return {**net.running, **overwriting(changes, dict.fromkeys(move.names))}

    def overwrite(self, function: Callable, client: ClientState, common: Common) -> Tensors:
        """Return the tensors that a phase overwrites as it begins or ends."""
        return overwriting(function(*self.view(client, common, purpose=OVERWRITE)), client.trained.own)

    def gradients(
        self, move: ResolvedMove, net: Net, batches: tuple[Batch, ...], me: Me, every_round: bool = False
    ) -> tuple[Tensors, Tensor | None, Tensors]:
        """Return the gradients of a move, its loss where it has one, and the new running values.

        Gradients are private only in phases of `every_round`: adaptation before a test stays with the client.
        """
        b = batches[0] if move.move.batches == 1 else batches[: move.move.batches]
        if move.gradient:
            grads = move.gradient(net, b, me)
            check_gradients(move.gradient, grads, move)
            return grads, None, net.running
        if self.private is not None and every_round:
            return *self.private(move.loss, net, batches[0], me), net.running
        grads, (value, running) = net.grad_and_value(move.loss, b, me)
        return grads, value, running

    def descend(
        self, move: ResolvedMove, own: Tensors, grads: Tensors, optimizer_state: OptimizerState, factor: Tensor
    ) -> Tensors:
        """Return every tensor of a move after the optimiser's step; `optimizer_state` is updated."""
        if move.clip is not None:
            grads = optim.clip_gradients(grads, move.clip)
        result = {}
        for name in move.names:
            rate = move.rate[name] * factor if move.decays else move.rate[name]
            numbers = move.momentum[name], move.weight_decay[name]
            state = optimizer_state.get(name, {})
            result[name], state = optim.step(self.method.optimizer, own[name], grads[name], state, rate, *numbers)
            if state:
                optimizer_state[name] = state
        return result

    def finish(self, client: ClientState, common: Common) -> tuple[Tensors, Extras]:
        """Return what the client remembers from now on, and the extras that it uploads."""
        finished = self.method.finish(*self.view(client, common, purpose=FINISH))
        if not isinstance(finished, tuple) or [type(each).__name__ for each in finished if not isinstance(each, dict)]:
            raise ConfigError(f"{called(self.method, 'finish')} must return two dicts: the new me.keep, and extras")
        keep, extras = finished
        if set(keep) != set(client.keep):
            raise ConfigError(f"finish() returns {sorted(keep)} to keep, but keep() declares {sorted(client.keep)}")
        for name, value in keep.items():
            if value.shape != client.keep[name].shape:
                raise ConfigError(
                    f"finish() returns '{name}' with the shape {tuple(value.shape)}, but keep() declares "
                    f"{tuple(client.keep[name].shape)}"
                )
        return dict(keep), extras

    def report(self, client: ClientState, rows: BatchRows, common: Common) -> Extras:
        """Return the extras that a mini-batch adds to the client's report."""
        (b,) = self.drawing(self.batches(rows, common.x, common.y), client.key + rows.key + REPORT, client)
        net, me = self.view(client, common, b.mask, purpose=rows.key + REPORT)
        reported = self.method.report(net, b, me)
        return tree_map(lambda value: value.to(self.dtype) if value.is_floating_point() else value, reported)

    def describe(self, rows: BatchRows, x: Samples, y: Tensor) -> Extras:
        """Return a client's description of its samples."""
        (b,) = self.batches(rows, x, y)
        described = self.method.describe(b._replace(raw=chosen(x, rows.samples[0])))
        return tree_map(lambda value: value.to(self.dtype) if value.is_floating_point() else value, described)

    def predict(self, how: Callable, client: ClientState, rows: BatchRows, common: Common) -> Tensor:
        """Return the output of the client's own model, (rows, ...): logits or numbers, as the task says."""
        (b,) = self.batches(rows, common.x, common.y)
        net, me = self.view(client, common, b.mask, purpose=rows.key + PREDICT)
        return self.output(how(net, b.x, me), b, how)

    def predict_global(self, tensors: Tensors, rows: BatchRows, x: Samples, y: Tensor) -> Tensor:
        """Return the output of the global model on samples of a data set, (rows, ...)."""
        (b,) = self.batches(rows, x, y)
        net = Net(self.parts, self.scope, tensors, mask=b.mask, compute=self.compute)
        return self.output(self.method.predict_global(net, b.x), b, self.method.predict_global)

    # ---- what they see

    def output(self, made: Tensor, b: Batch, how: Callable) -> Tensor:
        """Check the shape of a prediction, and return it in the run's precision."""
        wanted = (len(b.y), *self.task.output_shape(b.y.shape[1:]))
        if not isinstance(made, Tensor) or made.shape != wanted:
            given = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
            raise ConfigError(
                f"{first_line(how)}predictions must be {self.task.output_word} of the shape {wanted}, not {given}"
            )
        return made.to(self.dtype)

    def view(
        self,
        client: ClientState,
        common: Common,
        mask: Tensor | None = None,
        key: Tensor | None = None,
        training: bool = False,
        trainable: tuple[str, ...] = (),
        purpose: Tensor | int = 0,
    ) -> tuple[Net, Me]:
        """Return the network and `me` as a method sees them; `me` draws for a step (key), or for a purpose."""
        tensors = {**common.round.frozen, **client.frozen, **client.trained.own}
        received = {**common.round.got, **client.got}
        extras = {**common.round.extras, **client.extras}
        net = Net(
            self.parts,
            self.scope,
            tensors,
            trainable=trainable,
            training=training,
            mask=mask,
            key=key,
            compute=self.compute,
        )
        got = net._received(received)
        me = Me(
            Received(got, set(received), extras),
            Remembered(client.keep),
            client.counts,
            self.task,
            client.samples,
            client.steps,
            common.round.rate * self.method.lr,
            Draws((client.key + purpose if key is None else key) + MINE, self.dtype),
        )
        return net, me

    def normalised(self, x: Samples) -> Samples:
        """Return samples as the network sees them: normalised, but for whole numbers that it looks up."""

        def of_tensor(tensor: Tensor, centre: Tensor, scale: Tensor) -> Tensor:
            if self.embeds and is_whole(tensor):
                return tensor
            return (tensor.to(self.dtype) - centre) / scale

        return tree_map(of_tensor, x, self.centre, self.scale)

    def batches(self, rows: BatchRows, samples: Samples, labels: Tensor) -> tuple[Batch, ...]:
        """Return mini-batches of a data set: gathered, augmented, normalised, with their padding marked."""
        result = []
        mask = torch.arange(rows.samples.shape[-1], device=rows.samples.device) < rows.real
        for index, change in zip(rows.samples.unbind(0), rows.change.unbind(0), strict=True):
            x = chosen(samples, index)
            if change.shape[-1]:
                x = tree_map(lambda images, change=change: augmented(images, change), x)
            x = self.normalised(x)
            if self.channels_last:
                x = tree_map(lambda images: images.contiguous(memory_format=torch.channels_last), x)
            y = labels[index]
            result.append(Batch(x, y.to(self.dtype) if y.is_floating_point() else y, mask, self.task))
        return tuple(result)

    def drawing(self, batches: tuple[Batch, ...], key: Tensor, client: ClientState) -> tuple[Batch, ...]:
        """Return the same mini-batches, whose random numbers come from this key and whose classes have weights."""
        weights = balanced_weights(client.counts) if self.method.class_weights == "balanced" else None
        return tuple(
            b._replace(draws=Draws(key + SECOND * n, self.dtype), class_weights=weights) for n, b in enumerate(batches)
        )


def balanced_weights(counts: Tensor) -> Tensor:
    """Return (classes,) weights that give all of a client's classes equal weight, 1 on average over its samples."""
    present = (counts > 0).sum().clamp(min=1)
    return torch.where(counts > 0, counts.sum() / (present * counts.clamp(min=1)), 0.0)


def check_gradients(function: Callable, grads: Tensors, move: ResolvedMove) -> None:
    """Refuse gradients that leave out something that the move trains."""
    missing = [name for name in move.names if name not in grads]
    if missing:
        line = first_line(function)
        raise ConfigError(f"{line}gradients are needed for everything that trains, but '{missing[0]}' has none")


def overwriting(changes: Tensors, own: Iterable[str]) -> Tensors:
    """Return what a hook overwrites: tensors that the client has and that are not frozen."""
    for name in changes:
        if name not in own:
            raise ConfigError(f"{unknown('tensor', name, own)} (a hook may overwrite only tensors that are not frozen)")
    return dict(changes)


# ------------------------------------------------------------------------------------------------------------- a job


BlockBatches: TypeAlias = Sequence[PhaseBatches]  # an entry for each of the clients that are called together
Prediction: TypeAlias = Callable[[ClientState, BatchRows, Common], Tensor]
Made = TypeVar("Made")  # a tree of tensors
Walk: TypeAlias = Callable[[ClientState, Common, BlockBatches], ClientState]


class Caller(Protocol):
    """How the functions of one client are called: one client as it is, or many side by side.

    Arguments and results have a row for each client.
    """

    def each(self, function: Callable) -> Callable:
        """Make a function of one client one of all that are called together."""

    def walker(
        self, program: ClientProgram, phase: ResolvedPhase, client: ClientState, batches: BlockBatches, common: Common
    ) -> Walk:
        """Return the function that takes such clients through the steps of a phase."""

    def rows(self, batches: BlockBatches, device: torch.device) -> Iterable[BatchRows]:
        """Return the mini-batches of a report, step by step."""

    def predict(self, predict: Prediction, client: ClientState, batches: BlockBatches, common: Common) -> list[Tensor]:
        """Return the output of each client's model, (samples, ...)."""


class OneClient:
    """Calls a single client's functions as they are, its mini-batches without padding."""

    def each(self, function: Callable) -> Callable:
        """Make a function of one client one of a block with a single row."""
        return lambda client, *others: as_only_row(function(only_client(client), *others))

    def walker(
        self, program: ClientProgram, phase: ResolvedPhase, client: ClientState, batches: BlockBatches, common: Common
    ) -> Walk:
        """Return `walk` for a phase."""
        return partial(self.walk, program, phase)

    def walk(
        self, program: ClientProgram, phase: ResolvedPhase, client: ClientState, common: Common, batches: BlockBatches
    ) -> ClientState:
        """Return the client after every step of a phase, one after another."""
        one = only_client(client)
        for step, rows in enumerate(self.rows(batches, common.y.device), start=1):
            with located(f"step {step}"):
                one = one.after(program.step(phase, one, rows, common))
        return as_only_row(one)

    def rows(self, batches: BlockBatches, device: torch.device) -> Iterable[BatchRows]:
        """Return the only client's mini-batches, step by step."""
        (own,) = batches
        return own.rows(device)

    def predict(self, predict: Prediction, client: ClientState, batches: BlockBatches, common: Common) -> list[Tensor]:
        """Return the output of the only client's model, (samples, ...)."""
        one = only_client(client)
        logits = [predict(one, rows, common) for rows in self.rows(batches, common.y.device)]
        return [torch.cat(logits) if logits else torch.zeros(0)]


def only_client(client: ClientState) -> ClientState:
    """Return the only client of a block, without the dimension of clients."""
    return tree_map(lambda tensor: tensor[0], client)


def as_only_row(tree: Made) -> Made:
    """Return what one client made as the only row of a block."""
    return tree_map(lambda tensor: tensor[None], tree)


def client_job(
    program: ClientProgram,
    client: ClientState,
    common: Common,
    plan: JobPlan,
    batches: Sequence[JobBatches],
    caller: Caller,
) -> Outcome:
    """Carry out one job of some clients, as the caller calls their functions; all has a row for each of them."""
    if program.has("start"):
        client = client.overwritten(caller.each(program.start)(client, common))
    phases = [*plan.prepare, *plan.phases]
    for number, phase in enumerate(phases):
        with located(f"phase {number + 1}"):
            if phase.before:
                client = client.overwritten(caller.each(partial(program.overwrite, phase.before))(client, common))
            if phase.restart_optimizer:
                client = client.with_new_optimizer()
            drawn = [[*own.prepare, *own.phases][number] for own in batches]
            if any(own.steps for own in drawn):
                client = caller.walker(program, phase, client, drawn, common)(client, common, drawn)
            if phase.after:
                client = client.overwritten(caller.each(partial(program.overwrite, phase.after))(client, common))
    extras: Extras = {}
    if plan.trains and program.has("finish"):
        keep, extras = caller.each(program.finish)(client, common)
        client = client._replace(keep=keep)
    reported: Extras = {}
    reports = [own.report for own in batches if own.report]
    for rows in caller.rows(reports, common.y.device) if reports else ():
        part = caller.each(program.report)(client, rows, common)
        reported = tree_map(torch.add, reported, part) if reported else part
    tested = [own.predict for own in batches if own.predict]
    logits = caller.predict(partial(program.predict, plan.predict), client, tested, common) if tested else []
    return Outcome(client.trained, client.keep, {**extras, **reported}, logits)
