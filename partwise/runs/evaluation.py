"""Evaluates a run without changing it: a run with evaluations ends bit-equal to one without.

The moments of a round are predicted one after another, then scored all at once where the logits lie.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from partwise.data import Federation
from partwise.devices import on_device
from partwise.engines.averages import average_own
from partwise.engines.client_engine import ClientEngine
from partwise.engines.engine import Engine
from partwise.engines.scores import Judged
from partwise.errors import Diverged
from partwise.method import Method
from partwise.network.view import Tensors
from partwise.records.rounds import GlobalScores
from partwise.rounds.acceptance import FEWEST_ACCEPTED
from partwise.rounds.messages import Request, Updates
from partwise.rounds.server import Server
from partwise.runs.config import Config
from partwise.runs.metrics import History, Scores, measure_all, over_clients
from partwise.runs.observers import Seen
from partwise.streams import stream
from partwise.tasks import Task

GLOBAL_MODEL = "global"  # beside the moments, what is scored


class Evaluation:
    """Asks for predictions, scores them and notes the scores."""

    def __init__(
        self,
        config: Config,
        federation: Federation,
        server: Server,
        engine: ClientEngine,
        history: History,
        rows_meet: bool,
        held_out: Collection[int] = (),
    ):
        self.held_out = held_out  # clients that have no model before the last round
        self.rows_meet = rows_meet  # in the network, in evaluation too
        self.config, self.federation, self.server, self.engine = config, federation, server, engine
        self.program, self.history = engine.program, history

    @cached_property
    def clients(self) -> list[int]:
        """Return clients with training and test samples: all, or a fixed sample of them."""
        both = zip(self.federation.without(self.held_out).train, self.federation.test, strict=True)
        clients = [client for client, (train, test) in enumerate(both) if len(train) and len(test)]
        wanted = self.config.run.eval_clients
        if wanted is None or wanted >= len(clients):
            return clients
        return sorted(stream(self.config.run.seed, "evaluated").choice(clients, wanted, replace=False).tolist())

    @cached_property
    def validated(self) -> bool:
        """Return whether a client has validation samples."""
        return any(map(len, self.federation.validation))

    def evaluate(self, seen: Seen, updates: Sequence[Updates]) -> None:
        """Evaluate a round: the global model; what clients received and trained."""
        if not self.clients:
            return
        has_global = self.config.method.predict_global is not None
        tensors = self.global_tensors() if has_global else {}
        request = self.server.request("predict", self.clients, evaluate=True)
        judged: dict[str, list[Judged]] = {}
        if has_global:
            one_for_all = self.one_for_all(request)
            samples = self.known_samples if one_for_all else self.federation.global_test
            assert isinstance(self.engine, Engine)  # nodes score elsewhere
            logits = self.engine.predict_global(tensors, samples)
            seen.note_global(logits[: len(self.federation.global_test)])
            judged[GLOBAL_MODEL] = self.judged_globally(logits)
            answers = self.answered(request, logits) if one_for_all else self.engine.run(request)
        else:
            answers = self.engine.run(request)
        seen.note("received", request, answers)
        judged["received"] = self.sets("received", answers.logits)
        if not self.config.method.pooled:  # nobody trains for itself
            trained = {client: logits for update in updates for client, logits in update.logits.items()}
            tested = set(self.clients)
            own = {client: logits for client, logits in trained.items() if client in tested}
            seen.note_logits("trained", own)
            judged["trained"] = self.sets("trained", own)
        scores = scores_of_judged(judged, self.program.task)
        if GLOBAL_MODEL in scores:
            seen.update(global_model=self.global_scores(*scores.pop(GLOBAL_MODEL)))
        for moment, each in scores.items():
            self.note_scores(seen, moment, each)

    def adapt(self, seen: Seen, moment: str, request: Request) -> Updates:
        """Adapt copies of clients and test them."""
        answers = self.engine.run(request)
        self.note(seen, moment, request, answers)
        return answers

    def note(self, seen: Seen, moment: str, request: Request, answers: Updates) -> None:
        """Test what clients answered whose copies were adapted; those that diverged are named."""
        seen.note(moment, request, answers)
        self.check_adapted(answers)
        self.note_scores(seen, moment, self.scores_at(moment, answers), answers.diverged)

    def note_scores(self, seen: Seen, moment: str, scores: list[Scores], diverged: list[int] | None = None) -> None:
        """Note the scores of a moment: those on test samples, and on validation samples where they were measured."""
        test, *validation = scores
        tested = replace(self.history.note(moment, test), diverged=diverged)
        seen.note_scores(moment, tested, *map(over_clients, validation))

    def scores_at(self, moment: str, answers: Updates) -> list[Scores]:
        """Return the scores of what clients answered: on test samples, and on validation samples where they count."""
        return scores_of_judged({moment: self.sets(moment, answers.logits)}, self.program.task)[moment]

    def check_adapted(self, answers: Updates) -> None:
        """Stop where too few adapted copies can be used, as in training."""
        asked, diverged = len(answers.clients), answers.diverged
        usable = asked - len(diverged)
        if usable < FEWEST_ACCEPTED * asked:
            raise Diverged(
                f"adaptation diverged after round {self.server.round}: {usable} of {asked} clients' models can be used"
                f", client {diverged[0]} first: holds numbers that are not finite"
            )

    # ---- what clients answered, and what is true

    def sets(self, moment: str, logits: dict[int, Tensor]) -> list[Judged]:
        """Return what is scored at a moment: test samples, and validation samples where something is compared."""
        validated = self.validated and moment in ("received", self.config.run.moment)
        return [self.judged(logits), *([self.judged(logits, validation=True)] if validated else [])]

    def judged(self, logits: dict[int, Tensor], validation: bool = False) -> Judged:
        """Return clients' predictions beside their labels: test samples come first, validation samples after them."""
        sets, tests = self.federation.validation if validation else self.federation.test, self.federation.test
        clients = list(logits)
        rows = [
            own[len(tests[client]) :] if validation else own[: len(tests[client])] for client, own in logits.items()
        ]
        samples = torch.cat([sets[client] for client in clients]) if clients else torch.arange(0)
        answers = torch.cat(rows) if rows else torch.zeros(0, device=self.engine.device)
        return Judged(answers, self.labels(samples), clients, [len(sets[client]) for client in clients])

    def labels(self, samples: Tensor) -> Tensor:
        """Return (samples, ...) their labels, on the device."""
        return self.engine.y[on_device(samples, self.engine.device)]

    # ---- the global model

    def global_tensors(self) -> Tensors:
        """Return the server's parts (or its snapshot of them); what clients keep is averaged, in simulation only."""
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
            tensors.update(average_own(self.engine.store, own, server.eligible, weights))
        return tensors

    def one_for_all(self, request: Request) -> bool:
        """Return whether all clients received the global model itself, so that one prediction serves both moments."""
        plan, method = request.plan, self.program.method
        plain = getattr(plan.predict, "__func__", None) is Method.predict
        return (
            plain
            and getattr(method.predict_global, "__func__", None) is Method.predict_global
            and not self.program.has("start")
            and not plan.prepare
            and not self.rows_meet  # or a prediction depends on what is predicted beside it
            and not self.server.snapshots
            and all(share.adopt and request.copies[name].row is None for name, share in plan.share.items())
        )

    @cached_property
    def known_samples(self) -> Tensor:
        """Return the global test samples, then the evaluated clients' validation samples."""
        return torch.cat([self.federation.global_test, *(self.federation.validation[k] for k in self.clients)])

    @cached_property
    def place(self) -> np.ndarray:
        """Return (samples of the data set,) the place of each in `known_samples`; -1: not among them."""
        place = np.full(len(self.federation.source.y), -1)
        place[self.known_samples.numpy()] = np.arange(len(self.known_samples))
        return place

    def of_clients(self, logits: Tensor, samples: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return each client's rows of the global model's logits."""
        places = on_device(torch.from_numpy(self.place[torch.cat(list(samples)).numpy()]), logits.device)
        return logits[places].split([len(own) for own in samples])

    def answered(self, request: Request, logits: Tensor) -> Updates:
        """Return the global model's predictions as the clients' answers, who need not be asked (`one_for_all`)."""
        rows = self.of_clients(logits, [self.engine.drawing.tested(client) for client in request.clients])
        samples = self.engine.counts[request.clients].sum(1)
        nothing = torch.zeros_like(samples)
        own = dict(zip(request.clients, rows, strict=True))
        return Updates(request.clients, request.round, samples, nothing, nothing, {}, {}, own)

    def judged_globally(self, logits: Tensor) -> list[Judged]:
        """Return the global model's predictions of the global test set, and of each client's own test samples."""
        everywhere, tests = self.federation.global_test, [self.federation.test[client] for client in self.clients]
        own = torch.cat(self.of_clients(logits, tests))
        sizes = [len(test) for test in tests]
        return [
            Judged(logits[: len(everywhere)], self.labels(everywhere), [0], [len(everywhere)]),
            Judged(own, self.labels(torch.cat(tests)), self.clients, sizes),
        ]

    def global_scores(self, everywhere: Scores, local: Scores) -> GlobalScores:
        """Return how the global model does on the global test set, and on each client's own."""
        assert everywhere.together is not None
        return GlobalScores(everywhere.together, self.history.note(GLOBAL_MODEL, local), everywhere.nonfinite)


def scores_of_judged(judged: Mapping[str, Sequence[Judged]], task: Task) -> dict[str, list[Scores]]:
    """Return the scores of everything that is judged, by the same names; all are measured at once."""
    scores = iter(measure_all([one for each in judged.values() for one in each], task))
    return {name: [next(scores) for _ in each] for name, each in judged.items()}


def sound_models(answers: Updates) -> dict[int, Tensors]:
    """Return the models by client, without those that diverged."""
    diverged = set(answers.diverged)
    return {client: model for client, model in answers.models.items() if client not in diverged}
