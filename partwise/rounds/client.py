"""One client's round, written once: start > phases > finish > report > predict.

The functions of `ClientProgram` are pure functions of one client's tensors: `(client, rows, common) -> tensors`, where
`client` is what belongs to this client, `rows` a row of a table of mini-batches, and `common` what all clients share
(the data set, frozen parts, what everybody received). An engine calls them as they are, or under vmap for a block.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from partwise.errors import ConfigError, called, first_line, located, unknown
from partwise.method import Method
from partwise.network.keyed import Draws
from partwise.network.layers import Scope
from partwise.network.parts import Parts
from partwise.network.view import RESERVED, Batch, Me, Net, Received, Remembered, Tensors
from partwise.rounds import optim
from partwise.rounds.augment import augmented
from partwise.rounds.plan import ResolvedMove, ResolvedPhase

# Large odd numbers: what is drawn for one purpose does not meet what is drawn for another.
MOVE, SECOND, MINE = 0x1000193, 0x2545F491, 0x61C88647  # a step's moves; its other mini-batches; `me` beside them
START, FINISH, REPORT, PREDICT = (0x3C6EF372 * number + 1 for number in range(1, 5))

Client = dict[str, Any]  # own, slots, got, extras, keep, counts, samples, steps, loss, key; of several runs: frozen
Common = dict[str, Any]  # x, y, frozen, got, extras, rate
BatchRows = dict[
    str, Tensor
]  # index (batches, rows), count (), key (), and where images change: change (batches, rows, 5)


@dataclass
class ClientProgram:
    """A method on a network, as pure functions of one client."""

    method: Method
    parts: Parts
    scope: Scope
    classes: int
    centre: Tensor
    scale: Tensor
    dtype: torch.dtype
    compute: torch.dtype | None = None
    channels_last: bool = False  # images lie in memory pixel by pixel: on a CPU convolutions are faster then

    def __post_init__(self) -> None:
        for part in RESERVED & set(self.parts.modules):
            raise ConfigError(f"a part cannot be called '{part}': `net.{part}` means something else")

    def has(self, hook: str) -> bool:
        """Whether the method overrides a hook."""
        return getattr(type(self.method), hook) is not getattr(Method, hook)

    def start(self, client: Client, rows: BatchRows, common: Common) -> Tensors:
        return overwriting(self.method.start(*self.view(client, common, purpose=START)), client["own"])

    def step(self, phase: ResolvedPhase, client: Client, rows: BatchRows, common: Common) -> Client:
        """One mini-batch through every move of a phase."""
        batches = self.batches(rows, common)
        own, slots, loss = dict(client["own"]), dict(client["slots"]), client["loss"]
        for number, move in enumerate(phase.moves):
            for turn in range(move.move.repeat):
                key = rows["key"] + MOVE * (number * 4096 + turn)
                net, me = self.view({**client, "own": own}, common, batches[0].mask, key, phase.training, move.names)
                grads, value, running = self.gradients(move, net, self.drawing(batches, key), me)
                loss = loss if value is None else loss + value.to(loss.dtype)
                grads = self.method.correct(grads, net, me)
                check_gradients(self.method.correct, grads, move)
                own.update(running)
                own.update(self.descend(move, own, grads, slots, common["rate"]))
                if move.after:
                    own.update(overwriting(move.after(net.with_tensors(own), me), own))
        return {"own": own, "slots": slots, "loss": loss}

    def gradients(
        self, move: ResolvedMove, net: Net, batches: tuple[Batch, ...], me: Me
    ) -> tuple[Tensors, Tensor | None, Tensors]:
        """The gradients of a move, its loss where it has one, and the new running values."""
        b = batches[0] if move.move.batches == 1 else batches[: move.move.batches]
        if move.gradient:
            grads = move.gradient(net, b, me)
            check_gradients(move.gradient, grads, move)
            return grads, None, net.running
        grads, (value, running) = net.grad_and_value(move.loss, b, me)
        return grads, value, running

    def descend(self, move: ResolvedMove, own: Tensors, grads: Tensors, slots: Client, factor: Tensor) -> Tensors:
        """The optimiser's step on every tensor of a move; `slots` is brought up to date."""
        if move.clip is not None:
            grads = optim.clipped(grads, move.clip)
        result = {}
        for name in move.names:
            rate = move.rate[name] * factor if move.decays else move.rate[name]
            numbers = move.momentum[name], move.weight_decay[name]
            slot = slots.get(name, {})
            result[name], slot = optim.step(self.method.optimizer, own[name], grads[name], slot, rate, *numbers)
            if slot:
                slots[name] = slot
        return result

    def finish(self, client: Client, rows: BatchRows, common: Common) -> Client:
        finished = self.method.finish(*self.view(client, common, purpose=FINISH))
        if not isinstance(finished, tuple) or [type(each).__name__ for each in finished if not isinstance(each, dict)]:
            raise ConfigError(f"{called(self.method, 'finish')} must return two dicts: the new me.keep, and extras")
        keep, extras = finished
        if set(keep) != set(client["keep"]):
            raise ConfigError(
                f"finish() remembers {sorted(keep)}, but keep() says that there is {sorted(client['keep'])}"
            )
        for name, value in keep.items():
            if value.shape != client["keep"][name].shape:
                raise ConfigError(
                    f"finish() remembers '{name}' as {tuple(value.shape)}, but keep() says that it is "
                    f"{tuple(client['keep'][name].shape)}"
                )
        return {"keep": dict(keep), "extras": extras}

    def report(self, client: Client, rows: BatchRows, common: Common) -> Client:
        (b,) = self.drawing(self.batches(rows, common), client["key"] + rows["key"] + REPORT)
        net, me = self.view(client, common, b.mask, purpose=rows["key"] + REPORT)
        reported = self.method.report(net, b, me)
        return tree_map(lambda value: value.to(self.dtype) if value.is_floating_point() else value, reported)

    def predict(self, how: Callable, client: Client, rows: BatchRows, common: Common) -> Tensor:
        (b,) = self.batches(rows, common)
        net, me = self.view(client, common, b.mask, purpose=rows["key"] + PREDICT)
        return self.logits(how(net, b.x, me), b, how)

    def predict_global(self, tensors: Tensors, rows: BatchRows, common: Common) -> Tensor:
        (b,) = self.batches(rows, common)
        net = Net(self.parts, self.scope, tensors, mask=b.mask, compute=self.compute)
        return self.logits(self.method.predict_global(net, b.x), b, self.method.predict_global)

    def logits(self, made: Tensor, b: Batch, how: Callable) -> Tensor:
        """What a prediction gives, checked."""
        if not isinstance(made, Tensor) or made.shape != (len(b.y), self.classes):
            given = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
            raise ConfigError(f"{first_line(how)}predictions are logits, {(len(b.y), self.classes)}, not {given}")
        return made.to(self.dtype)

    def view(
        self,
        client: Client,
        common: Common,
        mask: Tensor | None = None,
        key: Tensor | None = None,
        training: bool = False,
        trainable: tuple[str, ...] = (),
        purpose: Tensor | int = 0,
    ) -> tuple[Net, Me]:
        """The network and `me`, as the method's functions see them; `me` draws for a step (key), or for a purpose."""
        tensors = {**common["frozen"], **client.get("frozen", {}), **client["own"]}
        received = {**common["got"], **client["got"]}
        extras = {**common["extras"], **client["extras"]}
        settings: Any = {"training": training, "mask": mask, "key": key, "compute": self.compute}
        net = Net(self.parts, self.scope, tensors, trainable=trainable, **settings)
        got = Net(self.parts, self.scope, {**tensors, **received}, record=False, **settings)
        lr = common["rate"] * self.method.lr
        me = Me(
            Received(got, set(received), extras),
            Remembered(client["keep"]),
            client["counts"],
            client["samples"],
            client["steps"],
            lr,
            Draws((client["key"] + purpose if key is None else key) + MINE, self.dtype),
        )
        return net, me

    def batches(self, rows: BatchRows, common: Common) -> tuple[Batch, ...]:
        """The mini-batches of a step: gathered, augmented, normalised, with their padding marked."""
        result = []
        mask = torch.arange(rows["index"].shape[-1], device=rows["index"].device) < rows["count"]
        for number, index in enumerate(rows["index"].unbind(0)):
            x = common["x"][index]
            if "change" in rows:
                x = augmented(x, rows["change"][number])
            x = (x.to(self.dtype) - self.centre) / self.scale
            if self.channels_last:
                x = x.contiguous(memory_format=torch.channels_last)
            result.append(Batch(x, common["y"][index], mask, self.classes))
        return tuple(result)

    def drawing(self, batches: tuple[Batch, ...], key: Tensor) -> tuple[Batch, ...]:
        """The same mini-batches, whose random numbers come from this key."""
        return tuple(b._replace(draws=Draws(key + SECOND * n, self.dtype)) for n, b in enumerate(batches))


def check_gradients(function: Callable, grads: Tensors, move: ResolvedMove) -> None:
    """Refuse gradients that leave out something that the move trains."""
    missing = [name for name in move.names if name not in grads]
    if missing:
        line = first_line(function)
        raise ConfigError(f"{line}gradients are those of everything that trains, but '{missing[0]}' is left out")


def overwriting(changes: Tensors, own: Tensors) -> Tensors:
    """What a hook overwrites: tensors that the client has and that are not frozen."""
    for name in changes:
        if name not in own:
            raise ConfigError(f"{unknown('tensor', name, own)} (a hook may overwrite what is not frozen)")
    return dict(changes)


@dataclass
class JobInputs:
    """The mini-batches of one client (or of a block of clients, in lockstep) for one job."""

    phases: Sequence[tuple[ResolvedPhase, Any]] = ()  # each with its mini-batches, as `walk` takes them
    trains: bool = False  # a training round: `finish` runs and its memory counts
    report: Iterable[BatchRows] = ()
    predict: Iterable[BatchRows] = ()
    how: Callable = Method.predict  # (net, x, me) -> logits


@dataclass
class Outcome:
    """What a client (or a block of clients) holds after a job."""

    own: Tensors
    keep: Tensors
    slots: Client
    loss: Tensor
    extras: dict[str, Any] = field(default_factory=dict)
    logits: list[Tensor] = field(default_factory=list)


def one_client(function: Callable) -> Callable:
    """How a single client runs a function of the program: as it is."""
    return function


def step_by_step(
    program: ClientProgram, phase: ResolvedPhase, client: Client, table: Iterable[BatchRows], common: Common
) -> Client:
    """How a single client goes through a phase."""
    for step, rows in enumerate(table, start=1):
        with located(f"step {step}"):
            client = {**client, **program.step(phase, client, rows, common)}
    return client


def client_job(
    program: ClientProgram,
    client: Client,
    common: Common,
    work: JobInputs,
    call: Callable = one_client,
    walk: Callable = step_by_step,
) -> Outcome:
    """One job of one client, or of a block of clients where `call` vectorises and `walk` goes through phases."""
    if program.has("start"):
        client = {**client, "own": {**client["own"], **call(program.start)(client, {}, common)}}
    for number, (phase, table) in enumerate(work.phases, start=1):
        with located(f"phase {number}"):
            client = walk(program, phase, client, table, common)
    extras: dict[str, Any] = {}
    if work.trains and program.has("finish"):
        finished = call(program.finish)(client, {}, common)
        client, extras = {**client, "keep": finished["keep"]}, finished["extras"]
    reported: dict[str, Any] | None = None
    for rows in work.report:
        part = call(program.report)(client, rows, common)
        reported = part if reported is None else tree_map(torch.add, reported, part)
    logits = [call(partial(program.predict, work.how))(client, rows, common) for rows in work.predict]
    return Outcome(
        client["own"], client["keep"], client["slots"], client["loss"], {**extras, **(reported or {})}, logits
    )
