"""A method's stages, resolved for a network: one share for every tensor, one setting for every tensor of a move."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torch import Tensor

from partwise.errors import ConfigError, unknown
from partwise.method import FROZEN, LOCAL, Method, Move, Phase, Relay, Share, Stage
from partwise.network.parts import Parts
from partwise.network.view import Batch, Me, Net
from partwise.rounds.learning_rate import check_schedule

if TYPE_CHECKING:
    from partwise.rounds.messages import Job

MANY_TIMES = 1000  # rounds: a client that took part in this many does what it does in most of them


@dataclass(frozen=True)
class ResolvedMove:
    """A move with its functions found and a number for every tensor that it trains."""

    move: Move
    names: tuple[str, ...]
    loss: Callable
    gradient: Callable | None
    update: Callable | None
    after: Callable | None
    rate: dict[str, float]
    momentum: dict[str, float]
    weight_decay: dict[str, float]
    clip: float | None
    decays: bool


@dataclass(frozen=True)
class ResolvedPhase:
    """A phase with its moves resolved, its functions found and its defaults filled in."""

    moves: tuple[ResolvedMove, ...]
    epochs: float | Callable[[int], float]
    run_epochs: bool  # they are the run's, in whose place a client may have its own
    steps: int | None
    batches: int
    training: bool
    sample_range: tuple[float, float]  # the share of the client's samples that it goes through
    before: Callable | None
    after: Callable | None
    restart_optimizer: bool
    every_round: bool  # a phase of training, not of adaptation before a test
    name: str  # the same in every process: `stage 0, phase 1`

    def epochs_after(self, times: int, own: int | None = None) -> float:
        """Return the epochs of a client that took part in `times` rounds before this one; `own` are its own, if any."""
        if own is not None and self.run_epochs:
            return own
        return self.epochs(times) if callable(self.epochs) else self.epochs


@dataclass(frozen=True)
class Plan:
    """A stage as the server and the clients carry it out."""

    number: int
    stage: Stage
    share: dict[str, Share]  # of every tensor, running values included
    prepare: tuple[ResolvedPhase, ...]
    phases: tuple[ResolvedPhase, ...]
    first_round: int  # of the run
    rate_origin: int  # the round at which the learning-rate schedule last started
    rate_rounds: int  # rounds of that schedule, until the next restart or the end of the run
    fresh: tuple[str, ...]
    predict: Callable  # (net, x, me) -> logits
    finetuning: ResolvedPhase  # the adaptation that is the same for every method

    @property
    def rounds(self) -> int:
        """Return the number of rounds."""
        return self.stage.rounds

    def names(self, wanted: Callable[[Share], bool]) -> list[str]:
        """Return the tensors whose share is wanted."""
        return [name for name, share in self.share.items() if wanted(share)]

    @property
    def own(self) -> list[str]:
        """Return the tensors that a client keeps between rounds."""
        return self.names(lambda share: not share.adopt)

    @property
    def down(self) -> list[str]:
        """Return the tensors that the server sends every round."""
        return self.names(lambda share: share.sent)

    @property
    def up(self) -> list[str]:
        """Return the tensors that a client uploads."""
        return self.names(lambda share: share.upload)


@dataclass(frozen=True)
class JobPlan:
    """What clients do in a job: phases, then reports or predictions where they have mini-batches for them."""

    prepare: Sequence[ResolvedPhase]
    phases: Sequence[ResolvedPhase]
    trains: bool  # a training round: `finish` runs and its memory counts
    predict: Callable  # (net, x, me) -> logits

    @classmethod
    def of(cls, job: "Job", stage: Plan, adapting: Sequence[ResolvedPhase]) -> "JobPlan":
        """Return the plan of a job in a stage; `adapting` are the phases of the method's own adaptation."""
        phases = {"train": stage.phases, "adapt": adapting, "finetune": [stage.finetuning]}.get(job, ())
        return cls(() if job == "report" else stage.prepare, phases, job == "train", stage.predict)


def as_phases(phases: Phase | Iterable[Phase] | None) -> tuple[Phase, ...]:
    """Return phases as a tuple, however a stage gives them; refuse anything else."""
    every = () if phases is None else phases if isinstance(phases, list | tuple | Iterator) else (phases,)
    for phase in (every := tuple(every)):
        if not isinstance(phase, Phase):
            raise ConfigError(f"{phase!r} is not a phase; write phases as Phase(Move('head'), ...)")
    return every


def plans(method: Method, parts: Parts) -> list[Plan]:
    """Return the stages of a run, checked before the first round."""
    result: list[Plan] = []
    first_round = origin = 0
    stages = method.stages()
    for number, stage in enumerate(stages if isinstance(stages, Iterable) else [stages]):
        if not isinstance(stage, Stage) or not isinstance(stage.rounds, int):
            raise ConfigError(
                f"stage {number} of {type(method).__name__} is {stage!r}; it must be a Stage with a number of rounds"
            )
        share = share_by_tensor(method, parts, stage)
        if stage.rounds < 1:
            raise ConfigError(f"stage {number} has {stage.rounds} rounds; a stage needs at least 1")
        origin = first_round if stage.restart_lr else origin
        frozen = {name for name, answer in share.items() if answer == FROZEN}
        prepare, phases = (
            tuple(
                resolve_phase(method, parts, phase, f"stage {number}, {kind} {place}", frozen, True)
                for place, phase in enumerate(as_phases(given))
            )
            for kind, given in (("preparation", method.prepare()), ("phase", stage.phases))
        )
        fresh, predict = tuple(parts.select(stage.fresh)), function_of(method, stage.predict)
        if number == 0 and method.init == "per_client":
            fresh += tuple(n for n, s in share.items() if s == LOCAL and n not in parts.buffers and n not in fresh)
        tuned = finetuning(method, parts, predict)
        result.append(
            Plan(number, stage, share, prepare, phases, first_round, origin, method.rounds, fresh, predict, tuned)
        )
        if isinstance(stage.cohort, Relay):
            check_relay(method, number, stage, share)
        first_round += stage.rounds
    if not result:
        raise ConfigError(f"{type(method).__name__} has no stage")
    if first_round != method.rounds:
        lengths = " + ".join(str(plan.rounds) for plan in result)
        raise ConfigError(
            f"the stages of {type(method).__name__} have {lengths} rounds, but rounds = {method.rounds}: make the "
            "stages' rounds add up to it, or set rounds to their sum"
        )
    starts = sorted({plan.rate_origin for plan in result})
    spans = {start: end - start for start, end in pairwise([*starts, first_round])}
    check_schedule(method, list(spans.values()))
    return [replace(plan, rate_rounds=spans[plan.rate_origin]) for plan in result]


def check_relay(method: Method, number: int, stage: Stage, share: dict[str, Share]) -> None:
    """Refuse what a relay cannot do: only the model that passes from client to client reaches the server."""
    if stage.report and type(method).report is not Method.report:
        raise ConfigError(f"stage {number} is a relay and cannot report after training; set report=False in it")
    if type(method).finish is not Method.finish:
        raise ConfigError(
            f"stage {number} is a relay and cannot send extras: remove finish() from {type(method).__name__}"
        )
    for name, answer in share.items():
        if answer.upload and not answer.adopt:
            raise ConfigError(f"stage {number} is a relay and '{name}' is {answer}: a relay must adopt what it uploads")


def share_by_tensor(method: Method, parts: Parts, stage: Stage) -> dict[str, Share]:
    """Return the share of every tensor. Running values stay local unless averaged with their layer."""
    if not isinstance(stage.share, dict):
        raise ConfigError(f"share of {type(method).__name__} is {stage.share!r}; it must be a dict, as {{'body': ALL}}")
    for selector, answer in stage.share.items():
        if not isinstance(selector, str):
            raise ConfigError(f"share of {selector!r}: a part's name must be a text, as in 'body'")
        if not isinstance(answer, Share):
            raise ConfigError(f"share of '{selector}' is {answer!r}; it must be ALL, GUIDE, GROUP, SERVER, ...")
    result = parts.assign(stage.share)
    for name in parts.buffers:
        averaged = method.bn_buffers == "average" and result[name].copy in ("all", "group")
        result[name] = result[name] if averaged else LOCAL
    return result


def resolve_phase(
    method: Method,
    parts: Parts,
    phase: Phase,
    name: str,
    frozen: set[str] | frozenset[str] = frozenset(),
    every_round: bool = False,
) -> ResolvedPhase:
    """Resolve a phase to functions and numbers; frozen parts get no gradient, whatever a move names."""
    moves = tuple(resolve_move(method, parts, move, frozen) for move in phase.moves)
    epochs = method.epochs if phase.epochs is None else phase.epochs
    trained = tuple(move for move in moves if move.names)
    before, after = function_of(method, phase.before), function_of(method, phase.after)
    return ResolvedPhase(
        trained,
        epochs,
        phase.epochs is None and phase.steps is None,
        phase.steps,
        phase.batches,
        phase.mode == "train",
        phase.sample_range,
        before,
        after,
        phase.restart_optimizer,
        every_round,
        name,
    )


def adaptation(method: Method, parts: Parts) -> list[ResolvedPhase]:
    """Return the phases of the method's own adaptation."""
    phases = enumerate(as_phases(method.adapt()))
    return [resolve_phase(method, parts, phase, f"adaptation, phase {number}") for number, phase in phases]


def finetuning(method: Method, parts: Parts, predict: Callable) -> ResolvedPhase:
    """Return the phase of fine-tuning by the task's loss; frozen parts are tuned too, because it works on a copy."""
    loss = partial(task_loss, predict)
    move = Move(method.finetune_part, loss, lr=method.finetune_lr, decay=False)
    return resolve_phase(method, parts, Phase(move, epochs=method.finetune_epochs), "fine-tuning")


def task_loss(predict: Callable, net: Net, b: Batch, me: Me) -> Tensor:
    """Return the task's loss of a mini-batch."""
    return b.loss(predict(net, b.x, me))


def resolve_move(method: Method, parts: Parts, move: Move, frozen: set[str] | frozenset[str]) -> ResolvedMove:
    """Resolve a move to functions and numbers for each tensor; frozen tensors are left out."""
    tensors = parts.tensors()  # a parameter that came with requires_grad=False is not trained
    names = tuple(
        name for name in parts.select(move.parts) if name not in frozen and (move.update or tensors[name].requires_grad)
    )

    def numbers(value: Any, default: float) -> dict[str, float]:
        every = parts.assign({"*": default, **value} if isinstance(value, dict) else {"*": value})
        return {name: default if every[name] is None else every[name] for name in names}

    return ResolvedMove(
        move,
        names,
        function_of(method, move.loss),
        function_of(method, move.gradient),
        function_of(method, move.update),
        function_of(method, move.after),
        numbers(move.lr, method.lr),
        numbers(move.momentum, method.momentum),
        numbers(move.weight_decay, method.weight_decay),
        method.clip_norm if move.clip is None else move.clip,
        move.decay or move.lr is None,
    )


def only_means(method: Method, plan: Plan) -> bool:
    """Return whether the method uses clients' uploads in a stage only through their mean."""
    own = any(getattr(type(method), hook) is not getattr(Method, hook) for hook in ("round", "mix", "aggregate"))
    copies = {plan.share[name].copy for name in plan.up}
    return copies == {"all"} and not own and not isinstance(plan.stage.cohort, Relay)


def hands_on(method: Method, plans: Iterable[Plan]) -> str:
    """Return how a method hands a single client's model on to others; empty if it hands on only means over several.

    Means over groups do not count: the server applies `min_clients` to each group.
    """
    for plan in plans:
        if isinstance(plan.stage.cohort, Relay):
            return "a relay takes a client's model to the next one"
        mixes, seen = (
            sorted({name.split(".")[0] for name in plan.names(wanted)})
            for wanted in (lambda share: share.copy == "mix", lambda share: share.upload and not share.sent)
        )
        if mixes:
            return f"each client gets a mix of {', '.join(mixes)} made for it alone"
        if seen and type(method).down is not Method.down:  # the server has single models, and sends what it likes
            return f"clients get {', '.join(seen)} of single others"
    return ""


def function_of(method: Method, value: str | Callable | None) -> Any:
    """Return a function, or the method's function of this name."""
    if isinstance(value, str) and not hasattr(method, value):
        own = [name for name in vars(type(method)) if callable(getattr(method, name)) and not name.startswith("_")]
        raise ConfigError(f"{type(method).__name__}: {unknown('function', value, ['loss', 'predict', *own])}")
    return getattr(method, value) if isinstance(value, str) else value
