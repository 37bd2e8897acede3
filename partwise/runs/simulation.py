"""A run on this machine: rounds carried out, clients evaluated."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from partwise.data import Federation
from partwise.engines.engine import Engine
from partwise.errors import Diverged
from partwise.rounds.client import ClientProgram
from partwise.rounds.gate import FEWEST_ACCEPTED
from partwise.rounds.messages import Request, Updates
from partwise.rounds.server import Server
from partwise.runs.config import Config, Run
from partwise.runs.flops import CountFlops
from partwise.runs.metrics import OTHER_SCORES, History, Scores, measure, nonfinite, score
from partwise.runs.observers import Observer, Seen, TellCheck, TellRows
from partwise.runs.stopping import Stopping
from partwise.streams import stream

Progress = Callable[[dict[str, Any]], None]


@dataclass
class Simulation:
    """Everything that a run consists of, ready for round 0."""

    config: Config
    federation: Federation
    program: ClientProgram
    server: Server
    engine: Engine
    history: History
    notes: list[str]  # decisions that the run took by itself, a line each
    keep_adapted: bool = False  # keep the models that the method adapts in the last evaluation, to be written down
    method_adapted: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    over: bool = False  # the last evaluation has begun

    def run(self, progress: Progress = lambda row: None, observers: Sequence[Observer] = ()) -> "Simulation":
        """All rounds; `progress` gets every row of the metrics as it is made, `observers` all that a round was."""
        watching, last = [CountFlops(), TellCheck(), *observers, TellRows(progress)], None
        with switches(self.config.run):
            try:
                last = self.rounds(watching)
            finally:
                self.engine.release()
                for observer in watching:
                    observer.end(last)
        return self

    @cached_property
    def clients(self) -> list[int]:
        """Those that have a model: clients with training samples."""
        return [client for client, samples in enumerate(self.federation.train) if len(samples)]

    @cached_property
    def validated(self) -> bool:
        """Whether a client has validation samples."""
        return any(map(len, self.federation.validation))

    @property
    def total(self) -> int:
        """The rounds of all stages together."""
        return sum(plan.rounds for plan in self.server.plans)

    def rounds(self, observers: Sequence[Observer]) -> Seen:
        """From before the first round to after the last, which is returned as observers see it."""
        server, patience = self.server, self.config.run.patience
        stopping = Stopping(patience, server, self.engine.store) if patience is not None else None
        for observer in observers:
            observer.begin(self)
        server.begin()
        asked = server.asked  # before the first round
        for number in range(1, self.total + 1):
            begun = self.engine.clock()
            last = number == self.total
            evaluated = number % self.config.run.eval_every == 0 or last
            adapted = number in (self.config.run.eval_at or (() if stopping else (self.total,)))
            updates = [update for _, update in server.step(evaluate=evaluated)]
            if server.stage_over and server.plan.stage.snapshot:
                server.snapshots[server.plan.stage.snapshot] = self.global_tensors()
            row = self.row(number, updates)
            seen = Seen(self, row, [*asked, *server.asked])
            if last and stopping is None:
                self.end(seen)
            if evaluated or adapted:
                self.evaluate(seen, updates, evaluated, adapted)
            if stopping is not None and evaluated:
                last = stopping.over(row.get("validation", {}).get(self.history.key)) or last
                if last:
                    self.stop(seen, updates, stopping)
            row["seconds"] = round(self.engine.clock() - begun, 4)
            self.history.rows.append(row)
            for observer in observers:
                if observer.round(seen) and not last:
                    last = True
                    self.stop(seen, updates, stopping)
                    row["seconds"] = round(self.engine.clock() - begun, 4)
            if last:
                break
            asked = []
        return seen

    def stop(self, seen: Seen, updates: list[Updates], stopping: Stopping | None) -> None:
        """End the run here, with its best round where patience is set."""
        if stopping is not None and stopping.round:
            seen.row["restored"] = stopping.round
            stopping.go_back()
        self.end(seen)
        self.evaluate(seen, updates, True, True)

    def end(self, seen: Seen) -> None:
        """The method's own end, after the last round."""
        before = len(self.server.asked)
        self.server.end()
        self.over = True
        seen.asked += self.server.asked[before:]
        seen.look()

    def row(self, number: int, updates: list[Updates]) -> dict[str, Any]:
        """What every round notes, evaluated or not."""
        server = self.server
        ledger = server.ledger.rounds[-1]
        return {
            "round": number,
            "stage": server.plan.number,
            "participants": server.cohort,
            "refused": [refused.client for refused in server.refused if refused.round == number - 1],
            "train_loss": mean_loss(updates),
            "bytes_down": sum(ledger["down"].values()),
            "bytes_up": sum(ledger["up"].values()),
        }

    # ---- evaluation: on copies, from outside; a run with evaluations ends bit-equal to one without

    def evaluate(self, seen: Seen, updates: list[Updates], evaluated: bool, adapted: bool) -> None:
        """The moments of a round: the global model; what clients received and trained, and copies that were adapted."""
        result, clients = seen.row, self.evaluated_clients
        if not clients:
            return
        if evaluated:
            if self.config.method.predict_global is not None:
                seen.global_predictions = self.engine.predict_global(self.global_tensors(), self.federation.global_test)
                result["global"] = self.evaluate_global(seen.global_predictions, clients)
            logits = self.ask(seen, "received", self.server.request("predict", clients, evaluate=True)).logits
            result["received"] = self.history.note("received", self.scores(logits))
            if self.validated:
                result["validation"] = self.history.note("validation", self.scores(logits, validation=True))
            every = {client: value for update in updates for client, value in update.logits.items()}
            tested = set(clients)
            trained = {client: value for client, value in every.items() if client in tested}
            if not self.config.method.pooled:  # nobody trains for itself
                seen.predictions["trained"] = trained
                result["trained"] = self.history.note("trained", self.scores(trained))
        if adapted and self.config.run.moment == "adapted":
            self.adapt(seen, "adapted", self.server.request("finetune", clients, evaluate=True))
        if adapted and self.engine.adapt_phases:
            request = self.server.request("adapt", clients, evaluate=True, models=self.keep_adapted and self.over)
            self.method_adapted = sound_models(self.adapt(seen, "method_adapted", request))

    def ask(self, seen: Seen, moment: str, request: Request) -> Updates:
        """The answers to a request of an evaluation."""
        answers = self.engine.run(request)
        seen.evaluated[moment], seen.predictions[moment] = (request, answers), answers.logits
        return answers

    def adapt(self, seen: Seen, moment: str, request: Request) -> Updates:
        """Adapt copies and test them; those that diverged are named."""
        answers = self.ask(seen, moment, request)
        self.check_adapted(answers)
        seen.row[moment] = self.history.note(moment, self.scores(answers.logits))
        seen.row[moment]["diverged"] = answers.diverged
        return answers

    def check_adapted(self, answers: Updates) -> None:
        """Stop where too few adapted copies can be used, as in training."""
        asked, diverged = len(answers.clients), answers.diverged
        usable = asked - len(diverged)
        if usable < FEWEST_ACCEPTED * asked:
            raise Diverged(
                f"adaptation diverged after round {self.server.round}: {usable} of {asked} clients' models can be used"
                f", client {diverged[0]} first: holds numbers that are not finite"
            )

    @cached_property
    def evaluated_clients(self) -> list[int]:
        """Clients with samples to train and to test on: all, or a fixed sample of them."""
        clients = [client for client in self.clients if len(self.federation.test[client])]
        wanted = self.config.run.eval_clients
        if wanted is None or wanted >= len(clients):
            return clients
        return sorted(stream(self.config.run.seed, "evaluated").choice(clients, wanted, replace=False).tolist())

    def scores(self, logits: dict[int, Tensor], validation: bool = False) -> Scores:
        """Each client's predictions against its labels: test samples come first, validation samples after them."""
        rows, labels = {}, {}
        for client, values in logits.items():
            tested = len(self.federation.test[client])
            index = self.federation.validation[client] if validation else self.federation.test[client]
            rows[client] = values[tested:] if validation else values[:tested]
            labels[client] = self.federation.source.y[index]
        return measure(rows, labels)

    def evaluate_global(self, logits: Tensor, clients: list[int]) -> dict[str, Any]:
        """The global model on the global test set, and on each client's own."""
        index = self.federation.global_test
        labels = self.federation.source.y
        place = torch.full((len(labels),), -1)
        place[index] = torch.arange(len(index))
        own = {client: self.federation.test[client] for client in clients}
        [everywhere] = score(logits, labels[index], [len(index)])
        local = measure({k: logits[place[v]] for k, v in own.items()}, {k: labels[v] for k, v in own.items()})
        beside = {f"g_{name}": getattr(everywhere, name) for name in OTHER_SCORES}
        p_test = self.history.note("global", local)
        return {"g_test": everywhere.accuracy, **beside, "g_nonfinite": nonfinite(logits), "p_test": p_test}

    def global_tensors(self) -> dict[str, Tensor]:
        """The server's parts (or its snapshot of them); what clients keep is averaged, in simulation only."""
        server, plan = self.server, self.server.plan
        if server.snapshots:
            return next(reversed(server.snapshots.values()))
        tensors = {name: copies.values.mean(0) for name, copies in server.copies.items()}
        buffers = self.program.parts.buffers
        tensors.update({name: value for name, value in self.engine.norm_average(plan).items() if name in buffers})
        # A part that is uploaded has its mean on the server; what only clients hold is averaged over all of them.
        own = [name for name in plan.own if name not in buffers and not plan.share[name].sent]
        if own:
            weights = server.samples.double().numpy()[server.eligible]
            tensors.update(self.engine.store.average(own, server.eligible, weights))
        return tensors


def sound_models(answers: Updates) -> dict[int, dict[str, Tensor]]:
    """The models of the clients whose training or adaptation did not diverge: the others have none."""
    diverged = set(answers.diverged)
    return {client: model for client, model in answers.models.items() if client not in diverged}


@contextmanager
def switches(settings: Run) -> Iterator[None]:
    """Torch as the settings want it, for a while."""
    deterministic, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    torch.use_deterministic_algorithms(deterministic or settings.deterministic)
    torch.set_num_threads(settings.threads or threads)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.set_num_threads(threads)


def mean_loss(updates: list[Updates]) -> float | None:
    """The mean training loss of the participants that took a step; None where there is no number to give."""
    losses = [loss for update in updates for loss in update.loss[update.steps > 0].tolist()]
    loss = math.fsum(losses) / len(losses) if losses else math.nan
    return loss if math.isfinite(loss) else None
