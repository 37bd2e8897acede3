"""What every engine on this machine does: lay out what a client holds, and keep what is its own."""

import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from partwise.data.source import Federation
from partwise.devices import on_device
from partwise.engines.check import Check
from partwise.engines.packing import Decisions
from partwise.engines.portions import Portions
from partwise.engines.store import Key, Store
from partwise.engines.trial import Trial
from partwise.errors import PartwiseError, located
from partwise.method import FROZEN
from partwise.network.view import PerClient, Tensors
from partwise.rounds import optim
from partwise.rounds.acceptance import finite_rows
from partwise.rounds.augment import Augmentation
from partwise.rounds.batches import PhaseBatches, Recipe, ordered, shuffled, within
from partwise.rounds.client import LATE, ClientProgram, JobBatches, JobPlan
from partwise.rounds.messages import ADAPTING, Entered, Request, Updates, concatenated
from partwise.rounds.mixing import Copies
from partwise.rounds.plan import Plan, ResolvedPhase, adaptation
from partwise.rounds.state import ClientState, Common, Extras, OptimizerState, Outcome, RoundInputs, Trained
from partwise.streams import key

if TYPE_CHECKING:
    from partwise.engines.side_by_side import SideBySide

EVALUATION_BATCH = 256
MOST_NAMED = 5  # clients that an error names

log = logging.getLogger(__name__)


class Engine(ABC):
    """Requests in, updates out. Subclasses say how clients are grouped and how a group is carried out."""

    clock: Callable[[], float] = staticmethod(time.perf_counter)  # by which the seconds of a run are counted

    def __init__(
        self,
        program: ClientProgram,
        federation: Federation,
        store: Store,
        seed: int,
        device: torch.device,
        augmentation: Augmentation | None = None,
        checked: bool = False,
    ):
        self.augmentation = augmentation  # of training images
        self.program, self.federation, self.store, self.seed, self.device = program, federation, store, seed, device
        self.x, self.y = federation.source.x.to(device), federation.source.y.to(device)
        self.labels = federation.source.y.cpu().numpy()  # on the host, where mini-batches are drawn
        self.train = [index.numpy() for index in federation.train]
        self.tuned_on = [index.numpy() for index in federation.brought] or self.train
        self.trial = Trial(self, self.many_clients())
        self.check = Check(self) if checked else None  # compares a client of every round with the loop
        self.portions = Portions(device)
        self.averaged: tuple[tuple[int, int], Tensors] | None = None
        self.counts = federation.class_counts().to(program.dtype)  # on the host: a request needs those of its clients
        self.adapt_phases = adaptation(program.method, program.parts)
        largest = max(map(len, self.train))
        tested = max(len(a) + len(b) for a, b in zip(federation.test, federation.validation, strict=True))
        self.batch = max(1, min(program.method.batch, largest))
        self.report_batch, self.predict_batch = (max(1, min(EVALUATION_BATCH, most)) for most in (largest, tested))

    def many_clients(self) -> Callable[[Callable], Callable] | None:
        """Return the wrapper with which the trial runs a function for many padded clients; None: they run singly."""
        return None

    @abstractmethod
    def blocks(self, request: Request, batches: dict[int, JobBatches]) -> Iterable[list[int]]:
        """Return the request's clients in the groups that are carried out together."""

    @abstractmethod
    def execute(self, request: Request, client: ClientState, common: Common, batches: list[JobBatches]) -> Outcome:
        """Carry out the job of a group of clients; everything in `client` and in the outcome has a row for each."""

    def run(self, request: Request) -> Updates:
        """Return the updates of a request's clients, in the order of their numbers; what they run is tried first."""
        if request.job == "describe":
            return self.described(request)
        with located(request.when):
            untried = self.trial(request)
        expected = self.check.expected(request) if self.check is not None and request.job == "train" else None
        updates = self.carry_out(request)
        if self.check is not None and expected is not None:
            self.check.compare(request, updates, expected)
        if untried:  # a mistake in a method would have ended the run
            log.warning(untried)
        return updates

    def described(self, request: Request) -> Updates:
        """Return what a request's clients say about their samples, one client after another."""
        extras = []
        for client in request.clients:
            [rows] = ordered(self.train[client], len(self.train[client])).rows(self.device)
            with torch.no_grad(), located(request.when), located(clients_named([client])):
                extras.append(self.program.describe(rows, self.x, self.y))
        samples = on_device(self.counts[request.clients].sum(1), self.device)
        nothing = torch.zeros_like(samples)
        told = tree_map(lambda *each: torch.stack(each), *extras)
        return Updates(request.clients, request.round, samples, nothing, nothing, {}, told)

    def carry_out(self, request: Request) -> Updates:
        """Return the updates of a request's clients; blocks that do not fit into memory are halved."""
        batches = {client: self.job_batches(request, client) for client in request.clients}
        pieces: list[Updates] = []
        waiting = deque(self.blocks(request, batches))
        while waiting:
            clients = waiting.popleft()
            piece = self.attempt(request, clients, batches)
            if piece is None:
                half, left = self.halved(clients), [*clients, *chain.from_iterable(waiting)]
                waiting = deque(left[start : start + half] for start in range(0, len(left), half))
            else:
                pieces.append(piece)
        try:
            return concatenated(pieces)
        except torch.OutOfMemoryError:  # what is held ready for the next steps is in the way
            self.release()
            torch.cuda.empty_cache()
            return concatenated(pieces)

    def attempt(self, request: Request, clients: list[int], batches: dict[int, JobBatches]) -> Updates | None:
        """Carry out a block; None where it does not fit into the device's memory: then nothing has happened."""
        own = [batches[client] for client in clients]
        try:
            client, common = self.layout(request, clients, own)
            with torch.no_grad(), located(request.when), located(clients_named(clients)):
                outcome = self.execute(request, client, common, own)
            return self.collect(request, clients, outcome, own)
        except torch.OutOfMemoryError:
            return None  # the error holds on to the block's memory, so it must be gone before the next attempt

    def halved(self, clients: list[int]) -> int:
        """Return the size of the next blocks after one ran out of memory: half of it; a single client is an error."""
        torch.cuda.empty_cache()
        if len(clients) == 1:
            raise PartwiseError(f"client {clients[0]} alone needs more memory than {self.device} has: lower batch")
        return (len(clients) + 1) // 2

    def enter(self, handed: dict[str, Copies], fresh: Sequence[str], stage: int) -> None:
        """Begin a stage: the store takes over what the server hands to clients, and draws `fresh` parts anew."""
        self.store.enter(handed, fresh, stage)
        self.portions.forget()

    def release(self) -> None:
        """Let go of memory that is only needed while there is something to train."""
        self.averaged = None

    # ---- what it decided as it went

    def deciding(self) -> "list[SideBySide]":
        """Return the callers that decide how steps are carried out."""
        return []

    def decisions(self) -> list[Decisions]:
        """Return what a run that goes on in another process must not decide again."""
        return [caller.decisions() for caller in self.deciding()]

    def state(self) -> dict[str, list[Entered]]:
        """Return what else such a run needs; what clients keep is in the store."""
        return {}

    def restore(self, state: dict[str, list[Entered]]) -> None:
        """Take over such a state."""
        assert not state

    def decide(self, decisions: list[Decisions]) -> None:
        """Take over such decisions, as far as there is somebody to take them."""
        for caller, own in zip(self.deciding(), decisions, strict=False):
            caller.decide(own)

    # ---- what a job needs

    def phases(self, request: Request) -> Sequence[ResolvedPhase]:
        """Return the phases that a request's clients go through, those that prepare among them."""
        plan = self.job_plan(request)
        return [*plan.prepare, *plan.phases]

    def job_plan(self, request: Request) -> JobPlan:
        """Return what a request's clients do."""
        return JobPlan.of(request.job, request.plan, self.adapt_phases)

    def job_batches(self, request: Request, client: int) -> JobBatches:
        """Draw a client's mini-batches from its own stream: they depend on nobody else."""
        adapts = request.job in ADAPTING
        samples, purpose = (self.tuned_on if adapts else self.train)[client], "adapt" if adapts else request.job
        plan, times = self.job_plan(request), request.times.get(client, 0)

        def drawn(phases: Sequence[ResolvedPhase], purpose: str) -> list[PhaseBatches]:
            result = []
            for number, phase in enumerate(phases):
                own = within(samples, phase.of, self.store.seed, client)  # the same whatever a node draws noise from
                names = (client, request.round, purpose, number)
                labels = self.labels[own] if self.program.method.sampling == "balanced" else None
                result.append(shuffled(own, self.recipe(phase, times), self.seed, *names, labels=labels))
            return result

        return JobBatches(
            drawn(plan.prepare, "prepare"),
            drawn(plan.phases, purpose),
            ordered(samples, self.report_batch) if self.reports(request) else None,
            ordered(self.tested(client).numpy(), self.predict_batch) if request.evaluate else None,
        )

    def reports(self, request: Request) -> bool:
        """Return whether a request's clients report."""
        return request.job == "report" or (
            request.job == "train" and request.plan.stage.report and self.program.has("report")
        )

    def recipe(self, phase: ResolvedPhase, times: int = LATE) -> Recipe:
        """Return how a phase is cut into mini-batches, for a client that took part in so many rounds before."""
        return self.program.recipe(phase, self.batch, self.augmentation, times)

    def tested(self, client: int) -> Tensor:
        """Return the samples that evaluation predicts for a client: its test samples, then its validation samples."""
        return torch.cat([self.federation.test[client], self.federation.validation[client]])

    def layout(self, request: Request, clients: list[int], batches: Sequence[JobBatches]) -> tuple[ClientState, Common]:
        """Return what some clients hold after download (a row for each), and what they have in common."""
        own: Tensors = self.held(request, clients)
        frozen: Tensors = {}
        got: Tensors = {}
        got_in_common: Tensors = {}
        for name, share in request.plan.share.items():
            if share == FROZEN and request.copies[name].row is None and request.job not in ADAPTING:
                frozen[name] = request.copies[name].values[0]
            elif share.adopt:
                own[name] = request.copies[name].of(clients)
            if share.sent and request.copies[name].row is None:
                got_in_common[name] = request.copies[name].values[0]
            elif share.sent:
                got[name] = request.copies[name].of(clients)
        extras: Extras = {}
        extras_in_common: Extras = {}
        for name, value in request.extras.items():
            if isinstance(value, PerClient):
                extras[name] = value.of(request.clients, clients, self.device)
            else:
                extras_in_common[name] = tree_map(lambda tensor: on_device(tensor, self.device), value)
        dtype, counts = self.program.dtype, on_device(self.counts[clients], self.device)
        client = ClientState(
            Trained(
                own,
                self.optimizer_state(request, clients, own),
                torch.zeros(len(clients), device=self.device, dtype=dtype),
            ),
            {},
            got,
            extras,
            self.store.remembered(clients),
            counts,
            counts.sum(1),
            on_device(torch.tensor([each.steps for each in batches], dtype=dtype), self.device),
            on_device(torch.tensor([self.key(request, client) for client in clients]), self.device),
        )
        rate = torch.full((), request.rate, device=self.device, dtype=dtype)
        return client, Common(self.x, self.y, RoundInputs(frozen, got_in_common, extras_in_common, rate))

    def key(self, request: Request, client: int) -> int:
        """Return the random key of a client's job: start, finish, report and predict draw from it, not steps."""
        return key(self.seed, "draws", client, request.round, request.job) & 0xFFFFFFFF

    def held(self, request: Request, clients: list[int]) -> Tensors:
        """Return the own tensors of some clients. One that never trained is tested with the others' running values."""
        own = self.store.stacked(clients, request.plan.own)
        newcomers = torch.from_numpy(~self.store.stepped(clients))
        if request.job in ("predict", *ADAPTING) and newcomers.any():
            newcomers = on_device(newcomers, self.device)
            for name, value in self.norm_average(request.plan).items():
                own[name][newcomers] = value
        return own

    def norm_average(self, plan: Plan) -> Tensors:
        """Return what newcomers are tested with, averaged by samples over those that stepped; nothing if none did."""
        state = self.store.version, plan.number
        if self.averaged is None or self.averaged[0] != state:
            names = self.of_newcomers(plan)
            stepped = np.flatnonzero(self.store.steps)
            weights = np.array([float(len(self.train[client])) for client in stepped])
            self.averaged = state, self.store.average(names, stepped, weights) if names and len(stepped) else {}
        return self.averaged[1]

    def of_newcomers(self, plan: Plan) -> list[str]:
        """Return the batch-norm tensors that a client without any step borrows from the others when it is tested.

        These are running values, and scales and shifts that stay local while the rest of their part is shared.
        """
        parts = self.program.parts
        rest = {name: share for name, share in plan.share.items() if name not in parts.norms | parts.buffers}
        shared = {name.split(".")[0] for name, share in rest.items() if share.adopt}
        kept = {name.split(".")[0] for name, share in rest.items() if not share.adopt}
        return [
            name
            for name in plan.own
            if name in parts.buffers or (name in parts.norms and name.split(".")[0] in shared - kept)
        ]

    def optimizer_state(self, request: Request, clients: list[int], own: Tensors) -> OptimizerState:
        """Return what the optimiser remembers as a round begins, a row for each client: nothing, unless it persists."""
        method, result = self.program.method, OptimizerState()
        for move in (move for phase in self.phases(request) for move in phase.moves if not move.update):
            for name in move.names:
                state = optim.initial_state(method.optimizer, move.momentum[name], own[name])
                if state:
                    result[name] = state
        if method.persist_optimizer_state and request.job == "train":
            result = self.store.optimizer_state(clients, result)
        return result

    # ---- what comes out of it

    def collect(self, request: Request, clients: list[int], outcome: Outcome, batches: Sequence[JobBatches]) -> Updates:
        """Keep what is the clients' own, and return what they upload."""
        client_samples = on_device(self.counts[clients].sum(1), self.device)
        steps = on_device(torch.tensor([each.steps for each in batches]), self.device)
        own = outcome.trained.own
        made = tree_leaves((client_samples, own, outcome.keep, outcome.extras))
        trains = request.job in ("train", *ADAPTING)
        updates = Updates(
            clients,
            request.round,
            client_samples,
            steps,
            outcome.trained.loss / steps.clamp(min=1),
            {name: own[name] for name in request.plan.up} if request.job == "train" else {},
            outcome.extras,
            {client: logits for client, logits in zip(clients, outcome.logits, strict=False) if len(logits)},
            {client: self.model(request, client, outcome, row) for row, client in enumerate(clients) if request.models},
            torch.stack([finite_rows(value) for value in made]).all(0).cpu() if trains else None,
        )
        if request.job == "train":  # last: a block that does not fit into memory must have changed nothing
            self.save(request.plan, updates, outcome, batches)
        return updates

    def save(self, plan: Plan, updates: Updates, outcome: Outcome, batches: Sequence[JobBatches]) -> None:
        """Keep what is the clients' own; one that diverged keeps what it had: its update will be refused."""
        brought: dict[Key, Tensor] = {("own", name): outcome.trained.own[name] for name in plan.own}
        brought |= {("keep", name): value for name, value in outcome.keep.items()}
        if self.program.method.persist_optimizer_state:
            states = outcome.trained.optimizer_state.items()
            brought |= {("optimizer_state", name, key): v for name, state in states for key, v in state.items()}
        assert updates.finite is not None
        kept = (updates.finite & finite_rows(updates.loss).cpu()).nonzero()[:, 0]
        if len(kept) < len(updates.clients):
            index = on_device(kept, self.device)
            brought = {key: value.index_select(0, index) for key, value in brought.items()}
        if len(kept):
            clients, steps = zip(*((updates.clients[row], batches[row].steps) for row in kept.tolist()), strict=True)
            self.store.save(clients, brought, steps)

    def model(self, request: Request, client: int, outcome: Outcome, row: int) -> Tensors:
        """Return a client's tensors for prediction: its network, `got.` what it only received, `keep.` its memory."""
        tensors = {name: value[row] for name, value in outcome.trained.own.items()}
        tensors |= {name: request.copies[name].of([client])[0] for name in request.plan.share if name not in tensors}
        guides = [name for name, share in request.plan.share.items() if share.sent and not share.adopt]
        tensors |= {f"got.{name}": request.copies[name].of([client])[0] for name in guides}
        tensors |= {f"keep.{name}": value[row] for name, value in outcome.keep.items()}
        return {name: value.detach().cpu().clone() for name, value in tensors.items()}

    def predict_global(self, tensors: Tensors, samples: Tensor) -> Tensor:
        """Return (samples, classes) logits of the global model, on the device."""
        untried = self.trial.globally(tensors)

        def predicted(rows: Tensor) -> Tensor:
            [batch] = ordered(rows.numpy(), len(rows)).rows(self.device)
            return self.program.predict_global(tensors, batch, self.x, self.y)

        def everything() -> Tensor:
            spans = self.portions.of("global", len(samples), EVALUATION_BATCH)
            with torch.no_grad(), located("global model"):
                return torch.cat([predicted(samples[span]) for span in spans])

        try:
            logits = everything()
        except torch.OutOfMemoryError:  # what is held ready for the next steps is in the way
            self.release()
            self.portions.forget()
            torch.cuda.empty_cache()
            logits = everything()
        if untried:
            log.warning(untried)
        return logits


def clients_named(clients: Sequence[int]) -> str:
    """Name clients for an error, the first few if there are many."""
    few = ", ".join(map(str, clients[:MOST_NAMED]))
    return (
        f"client {few}" if len(clients) == 1 else f"clients {few}{', ...' * (len(clients) > MOST_NAMED)} side by side"
    )
