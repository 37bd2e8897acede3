"""A run on this machine: rounds carried out, watched by observers."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from partwise.data import Federation
from partwise.engines.client_engine import ClientEngine, EngineState
from partwise.engines.packing import Decisions
from partwise.engines.store import StoreState
from partwise.errors import blamed
from partwise.network.view import Tensors
from partwise.records.changes import InitialAttributes
from partwise.records.record import Record
from partwise.records.rounds import RoundRecord
from partwise.rounds.client import ClientProgram
from partwise.rounds.events import of_round
from partwise.rounds.messages import Updates
from partwise.rounds.server import Server
from partwise.rounds.server_state import ServerState
from partwise.runs.config import Config
from partwise.runs.evaluation import Evaluation, sound_models
from partwise.runs.joining import Joining
from partwise.runs.metrics import History, HistoryState, validation_value
from partwise.runs.observers import CountFlops, Observer, Seen, TellCheck, TellRounds
from partwise.runs.privacy import TellPrivacy
from partwise.runs.stopping import Stopping, StoppingState

Progress = Callable[[RoundRecord], None]


@dataclass(frozen=True)
class RunState(Record):
    """The state of a run between two rounds, without the rows of clients."""

    over: bool  # the last evaluation has begun
    server: ServerState
    store: StoreState
    history: HistoryState
    method: dict[str, Any]  # attributes of the method that differ from before the run
    gone: list[str]  # attributes that the method no longer has
    decisions: list[Decisions]
    engine: EngineState
    stopping: StoppingState | None


@dataclass
class Simulation:
    """Everything that a run consists of, ready for round 0."""

    config: Config
    federation: Federation
    server: Server
    engine: ClientEngine
    notes: list[str]  # decisions that the run took by itself, a line each
    threads: int  # that torch computes with
    rows_meet: bool  # in the network: what it gives for a sample depends on others
    held_out: list[int] = field(default_factory=list)  # clients that never train, and join after the last round
    evaluates: type[Evaluation] = Evaluation  # another where clients score themselves
    history: History = field(init=False)
    evaluation: Evaluation = field(init=False)
    stopping: Stopping | None = field(init=False)  # where patience is set
    held_first: InitialAttributes = field(init=False)  # by the method, before it ran
    method_adapted: dict[int, Tensors] = field(default_factory=dict)  # models of the last evaluation, where kept
    keep_adapted: bool = False  # `method_adapted` is filled in the last evaluation
    over: bool = False  # the last evaluation has begun

    def __post_init__(self) -> None:
        metric = self.config.run.metric
        self.history = History(metric)
        self.evaluation = self.evaluates(
            self.config, self.federation, self.server, self.engine, self.history, self.rows_meet, self.held_out
        )
        patience = self.config.run.patience
        self.stopping = Stopping(patience, metric, self.server, self.engine.store) if patience is not None else None
        self.held_first = InitialAttributes(vars(self.config.method))

    def run(
        self,
        progress: Progress = lambda _: None,
        observers: Sequence[Observer] = (),
        keep_adapted: bool = False,
    ) -> "Simulation":
        """Carry out all rounds; `progress` gets the record of every round, `observers` all that a round was.

        `keep_adapted`: the models that the method adapts in the last evaluation stay, to be written down.
        """
        if self.over:  # a checkpoint had all of it
            return self
        self.keep_adapted = keep_adapted
        own = CountFlops(), TellCheck(), TellPrivacy()
        watching, last = [*own, *observers, TellRounds(progress)], None
        with blamed(self.config.method), switches(self.config.run.deterministic, self.threads):
            try:
                last = self.rounds(watching)
            finally:
                self.engine.release()
                for observer in watching:
                    observer.end(last)
        return self

    def state(self) -> RunState:
        """Return the run's state between two rounds, for a checkpoint; what its clients keep is written apart."""
        method = vars(self.config.method)
        own = sorted({name for plan in self.server.plans for name in plan.own})
        return RunState(
            over=self.over,
            server=self.server.state(),
            store=self.engine.store.state(own),
            history=self.history.state(),
            method=self.held_first.changed(method),
            gone=self.held_first.gone(method),
            decisions=self.engine.decisions(),
            engine=self.engine.state(),
            stopping=self.stopping.watched() if self.stopping else None,
        )

    def restore(self, state: RunState) -> None:
        """Restore the state of a checkpoint."""
        self.over = state.over
        vars(self.config.method).update(state.method)
        for name in state.gone:
            delattr(self.config.method, name)
        self.server.restore(state.server)
        self.history.restore(state.history)
        self.engine.decide(state.decisions)
        self.engine.restore(state.engine)

    @property
    def program(self) -> ClientProgram:
        """Return the program that clients run."""
        return self.engine.program

    @cached_property
    def clients(self) -> list[int]:
        """Return the clients that have a model: those with training samples, unless they were held out."""
        trained = self.federation.without(self.held_out).train
        return [client for client, samples in enumerate(trained) if len(samples)]

    @property
    def names_held_out(self) -> list[str]:
        """Return the names of clients that never train."""
        return [self.federation.names[client] for client in self.held_out]

    @property
    def total(self) -> int:
        """Return the number of rounds of all stages."""
        return sum(plan.rounds for plan in self.server.plans)

    def rounds(self, observers: Sequence[Observer]) -> Seen:
        """Carry out the run from before the first round to after the last; return that as observers see it."""
        server, settings, stopping = self.server, self.config.run, self.stopping
        for observer in observers:
            observer.begin(self)
        if not server.round:  # else it goes on from a checkpoint
            server.begin()
        asked = server.asked  # before the first round
        for number in range(server.round + 1, self.total + 1):
            begun = self.engine.clock()
            # 1. Train: the server asks its clients and mixes what they upload.
            last = number == self.total
            evaluated = number % settings.eval_every == 0 or last
            updates = [update for _, update in server.step(evaluate=evaluated)]
            seen = Seen(self, self.record(number, updates), [*asked, *server.asked])
            asked = []
            if server.stage_over and server.plan.stage.snapshot:
                server.snapshots[server.plan.stage.snapshot] = self.evaluation.global_tensors()
            if last and stopping is None:
                self.end(seen)
            # 2. Evaluate: models as received and trained, adapted where it is time, and those of newcomers at the end.
            if evaluated:
                self.evaluation.evaluate(seen, updates)
            if number in (settings.eval_at or (() if stopping else (self.total,))):
                self.adapt(seen)
            if self.over:
                self.join(seen)
            # 3. Stop early, where validation data say so.
            if stopping is not None and evaluated:
                value = validation_value(seen.record, "received", self.history.metric)
                last = stopping.over(value) or last
                if last:
                    self.stop(seen, updates, stopping)
            # 4. Record: the history has the round, and observers see it; any of them may end the run.
            self.note(seen, begun)
            for observer in observers:
                if observer.round(seen) and not last:
                    last = True
                    self.stop(seen, updates, stopping)
                    seen.update(seconds=self.seconds_since(begun))
                self.history.rounds[-1] = seen.record
            if last:
                break
        return seen

    def note(self, seen: Seen, begun: float) -> None:
        """Add a round to the history."""
        seen.update(seconds=self.seconds_since(begun))
        self.history.rounds.append(seen.record)

    def seconds_since(self, begun: float) -> float:
        """Return the seconds since a time of the engine's clock, rounded as files have them."""
        return round(self.engine.clock() - begun, 4)

    def adapt(self, seen: Seen) -> None:
        """Adapt copies of the evaluated clients' models and test them: alike for every method, and in its own way."""
        clients = self.evaluation.clients
        if clients and self.config.run.moment == "adapted":
            self.evaluation.adapt(seen, "adapted", self.server.request("finetune", clients, evaluate=True))
        if clients and self.engine.drawing.adapt_phases:
            models = self.keep_adapted and self.over
            request = self.server.request("adapt", clients, evaluate=True, models=models)
            self.method_adapted = sound_models(self.evaluation.adapt(seen, "method_adapted", request))

    def stop(self, seen: Seen, updates: list[Updates], stopping: Stopping | None) -> None:
        """End the run here, with its best round where patience is set."""
        if stopping is not None and stopping.round:
            seen.update(restored=stopping.round)
            stopping.go_back()
        self.end(seen)
        self.evaluation.evaluate(seen, updates)
        self.adapt(seen)
        self.join(seen)

    def join(self, seen: Seen) -> None:
        """Let clients join that were held out, and test the models that they take away."""
        if self.held_out:
            request, answers = Joining(self.server, self.engine, self.held_out).join(self.config.run.join_rounds)
            self.evaluation.note(seen, "joined", request, answers)

    def end(self, seen: Seen) -> None:
        """Call the method's own end, after the last round, and let `seen` know what it asked."""
        asked, copies = len(self.server.asked), dict(self.server.copies)
        self.server.end()
        self.over = True
        seen.look(self.server.asked[asked:])
        changed = any(self.server.copies[name] is not before for name, before in copies.items())
        seen.update(changed_at_end=changed, epsilon=self.spent())

    def record(self, number: int, updates: list[Updates]) -> RoundRecord:
        """Return what every round records, evaluated or not."""
        server = self.server
        sent = server.ledger.rounds[-1]
        return RoundRecord(
            number,
            server.plan.number,
            server.cohort,
            [
                event.client
                for event in of_round(server.events, number - 1)
                if event.what == "refused" and event.client is not None
            ],
            mean_loss(updates),
            sent.down.total(),
            sent.up.total(),
            self.regrouped(),
            self.spent(),
        )

    def regrouped(self) -> list[int] | None:
        """Return the group of every client if this round changed it."""
        if self.server.groups is None:
            return None
        groups = self.server.groups.tolist()
        before = next((each.groups for each in reversed(self.history.rounds) if each.groups is not None), None)
        return None if groups == before else groups

    def spent(self) -> dict[str, float] | None:
        """Return the privacy spent so far, where an accountant counts it."""
        accountant = self.server.accountant
        return None if accountant is None else accountant.spent(self.server.memory)


@contextmanager
def switches(deterministic: bool, threads: int) -> Iterator[None]:
    """Set torch's determinism and threads for a run while entered."""
    changes, before = deterministic and not torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    if changes:  # a switch that is touched imports torch's compiler, whichever way it is turned
        torch.use_deterministic_algorithms(True)
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        if changes:
            torch.use_deterministic_algorithms(False)
        torch.set_num_threads(before)


def mean_loss(updates: list[Updates]) -> float | None:
    """Return the mean training loss of the participants that took a step and tell it; None where none does."""
    losses = [loss for update in updates for loss in update.loss[update.steps > 0].tolist() if math.isfinite(loss)]
    return math.fsum(losses) / len(losses) if losses else None
