"""What every engine on this machine does: lay out what a client holds, and keep what is its own."""

import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from partwise.data.source import Federation
from partwise.engines.check import Check
from partwise.engines.store import Key, Store
from partwise.engines.trial import Trial
from partwise.errors import PartwiseError, located
from partwise.method import FROZEN
from partwise.network.view import Tensors
from partwise.rounds import optim
from partwise.rounds.augment import Augmentation
from partwise.rounds.batches import PhaseBatches, Recipe, ordered, shuffled
from partwise.rounds.client import BatchRows, Client, ClientProgram, Common, Outcome
from partwise.rounds.messages import ADAPTING, Copies, PerClient, Request, Updates, concatenated, finite_rows, on_device
from partwise.rounds.plan import Plan, ResolvedPhase, as_phases, resolve
from partwise.streams import key

EVALUATION_BATCH = 256
MOST_NAMED = 5  # clients that an error names

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobBatches:
    """The mini-batches of one client for one job."""

    phases: list[PhaseBatches]
    report: PhaseBatches | None
    predict: PhaseBatches | None

    @property
    def steps(self) -> int:
        return sum(table.steps for table in self.phases)


class Engine(ABC):
    """Orders in, updates out. Subclasses say how clients are grouped and how a group is carried out."""

    clock: Callable[[], float] = time.perf_counter  # by which the seconds of a run are counted
    check: Check | None = None  # that compares a client of every round with the loop, on request

    def __init__(
        self,
        program: ClientProgram,
        federation: Federation,
        store: Store,
        seed: int,
        device: torch.device,
        augmentation: Augmentation | None = None,
    ):
        self.augmentation = augmentation  # of training images
        self.program, self.federation, self.store, self.seed, self.device = program, federation, store, seed, device
        self.x, self.y = federation.source.x.to(device), federation.source.y.to(device)
        self.train = [index.numpy() for index in federation.train]
        self.tuned_on = [index.numpy() for index in federation.brought] or self.train
        self.average: Tensors | None = None
        self.trial = Trial(self)
        self.counts = federation.class_counts().to(program.dtype)  # on the host: a request needs those of its clients
        self.adapt_phases = [
            resolve(program.method, program.parts, phase) for phase in as_phases(program.method.adapt())
        ]
        largest = max(map(len, self.train))
        tested = max(len(a) + len(b) for a, b in zip(federation.test, federation.validation, strict=True))
        self.batch = max(1, min(program.method.batch, largest))
        self.report_batch, self.predict_batch = (max(1, min(EVALUATION_BATCH, most)) for most in (largest, tested))

    @abstractmethod
    def blocks(self, request: Request, tables: dict[int, JobBatches]) -> Iterable[list[int]]:
        """The request's clients in the groups that are carried out together."""

    @abstractmethod
    def execute(self, request: Request, client: Client, common: Common, tables: list[JobBatches]) -> Outcome:
        """Carry out the job of a group of clients; everything in `client` and in the outcome has a row for each."""

    def run(self, request: Request) -> Updates:
        """The updates of a request's clients, in the order of their numbers; first, what they run is tried."""
        with located(request.when):
            untried = self.trial(request)
        expected = self.check.expected(request) if self.check is not None and request.job == "train" else None
        updates = self.carry_out(request)
        if self.check is not None and expected is not None:
            self.check.compare(request, updates, expected)
        if untried:  # a mistake in a method would have ended the run
            log.warning(untried)
        return updates

    def carry_out(self, request: Request) -> Updates:
        """The updates of a request's clients."""
        self.average = None  # it lives as long as a request: only training changes it
        tables = {client: self.tables(request, client) for client in request.clients}
        pieces: list[Updates] = []
        waiting = deque(self.blocks(request, tables))
        while waiting:
            clients = waiting.popleft()
            piece = self.attempt(request, clients, tables)
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

    def attempt(self, request: Request, clients: list[int], tables: dict[int, JobBatches]) -> Updates | None:
        """Carry out a block; None where it does not fit into the device's memory: then nothing has happened."""
        try:
            client, common = self.layout(request, clients, tables)
            with torch.no_grad(), located(request.when), located(named(clients)):
                outcome = self.execute(request, client, common, [tables[number] for number in clients])
            return self.collect(request, clients, outcome, [tables[number] for number in clients])
        except torch.OutOfMemoryError:
            return None  # the error holds on to the block's memory, so it must be gone before the next attempt

    def halved(self, clients: list[int]) -> int:
        """How many clients of a block that was too large to try next."""
        torch.cuda.empty_cache()
        if len(clients) == 1:
            raise PartwiseError(f"client {clients[0]} alone does not fit into the memory of {self.device}: lower batch")
        return (len(clients) + 1) // 2

    def enter(self, handed: dict[str, Copies], fresh: Sequence[str], stage: int) -> None:
        """A new stage begins at the clients."""
        self.store.enter(handed, fresh, stage)

    def release(self) -> None:
        """Let go of memory that is only needed while there is something to train."""
        self.average = None

    # ---- what a job needs

    def phases(self, request: Request) -> Sequence[ResolvedPhase]:
        plan = request.plan
        return {"train": plan.phases, "adapt": self.adapt_phases, "finetune": [plan.finetuning]}.get(request.job, ())

    def tables(self, request: Request, client: int) -> JobBatches:
        """A client's mini-batches, from its own stream: they depend on nobody else."""
        adapts = request.job in ADAPTING
        samples, purpose = (self.tuned_on if adapts else self.train)[client], "adapt" if adapts else request.job
        phases = [
            shuffled(samples, self.recipe(phase), self.seed, client, request.round, purpose, number)
            for number, phase in enumerate(self.phases(request))
        ]
        tested = self.tested(client).numpy() if request.evaluate else None
        return JobBatches(
            phases,
            ordered(samples, self.report_batch) if self.reports(request) else None,
            None if tested is None else ordered(tested, self.predict_batch),
        )

    def reports(self, request: Request) -> bool:
        """Whether a request's clients report."""
        return request.job == "report" or (
            request.job == "train" and request.plan.stage.report and self.program.has("report")
        )

    def recipe(self, phase: ResolvedPhase) -> Recipe:
        """How the epochs of a phase are cut into mini-batches."""
        smallest = 2 if self.program.parts.batch_norm else 1
        drop_last = self.program.method.drop_last
        return Recipe(
            self.batch, phase.epochs, phase.steps, phase.batches, smallest, drop_last, augmentation=self.augmentation
        )

    def tested(self, client: int) -> Tensor:
        """The samples that a client predicts when it is evaluated: its test samples, then its validation samples."""
        return torch.cat([self.federation.test[client], self.federation.validation[client]])

    def layout(self, request: Request, clients: list[int], tables: dict[int, JobBatches]) -> tuple[Client, Common]:
        """What some clients hold after download (a row for each), and what they have in common."""
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
        extras = {
            name: value.of(request.clients, clients, self.device)
            for name, value in request.extras.items()
            if isinstance(value, PerClient)
        }
        dtype, counts = self.program.dtype, on_device(self.counts[clients], self.device)
        client = {
            "own": own,
            "got": got,
            "extras": extras,
            "keep": self.store.remembered(clients),
            "slots": self.slots(request, clients, own),
            "counts": counts,
            "samples": counts.sum(1),
            "steps": on_device(torch.tensor([tables[number].steps for number in clients], dtype=dtype), self.device),
            "loss": torch.zeros(len(clients), device=self.device, dtype=dtype),
            "key": on_device(torch.tensor([self.key(request, client) for client in clients]), self.device),
        }
        common = {
            "x": self.x,
            "y": self.y,
            "frozen": frozen,
            "got": got_in_common,
            "extras": {
                name: tree_map(lambda tensor: on_device(tensor, self.device), value)
                for name, value in request.extras.items()
                if name not in extras
            },
            "rate": torch.full((), request.rate, device=self.device, dtype=dtype),
        }
        return client, common

    def key(self, request: Request, client: int) -> int:
        """Names a client's job, for what its method draws outside of steps."""
        return key(self.seed, "draws", client, request.round, request.job) & 0xFFFFFFFF

    def held(self, request: Request, clients: list[int]) -> Tensors:
        """The own tensors of some clients. One that never stepped is tested with the others' running values."""
        own = self.store.stacked(clients, request.plan.own)
        newcomers = torch.from_numpy(~self.store.stepped(clients))
        if request.job in ("predict", *ADAPTING) and newcomers.any():
            newcomers = on_device(newcomers, self.device)
            for name, value in self.norm_average(request.plan).items():
                own[name][newcomers] = value
        return own

    def norm_average(self, plan: Plan) -> Tensors:
        """What newcomers are tested with, averaged by samples over the clients that stepped; nothing if none did."""
        if self.average is None:
            names = self.of_newcomers(plan)
            stepped = np.flatnonzero(self.store.steps)
            weights = np.array([float(len(self.train[client])) for client in stepped])
            self.average = self.store.average(names, stepped, weights) if names and len(stepped) else {}
        return self.average

    def of_newcomers(self, plan: Plan) -> list[str]:
        """Running values, and of scales and shifts those that stay local while the rest of their part is shared."""
        parts = self.program.parts
        rest = {name: share for name, share in plan.share.items() if name not in parts.norms | parts.buffers}
        shared = {name.split(".")[0] for name, share in rest.items() if share.adopt}
        kept = {name.split(".")[0] for name, share in rest.items() if not share.adopt}
        return [
            name
            for name in plan.own
            if name in parts.buffers or (name in parts.norms and name.split(".")[0] in shared - kept)
        ]

    def slots(self, request: Request, clients: list[int], own: Tensors) -> dict[str, Tensors]:
        """What the optimiser remembers as a client's round begins: nothing, unless it is to persist."""
        method, result = self.program.method, {}
        for move in (move for phase in self.phases(request) for move in phase.moves):
            for name in move.names:
                slot = optim.slots(method.optimizer, move.momentum[name], own[name])
                if slot:
                    result[name] = slot
        if method.persist_optimizer_state and request.job == "train":
            result = self.store.slots(clients, result)
        return result

    # ---- what comes out of it

    def collect(self, request: Request, clients: list[int], outcome: Outcome, tables: list[JobBatches]) -> Updates:
        """Keep what is the clients' own, and hand on what they upload."""
        client_samples = on_device(self.counts[clients].sum(1), self.device)
        steps = on_device(torch.tensor([table.steps for table in tables]), self.device)
        logits: dict[int, Tensor] = {}
        if request.evaluate and outcome.logits:
            every = torch.cat(outcome.logits, 1).cpu()
            logits = {client: every[row, : len(self.tested(client))] for row, client in enumerate(clients)}
        made = tree_leaves((client_samples, outcome.own, outcome.keep, outcome.extras))
        trains = request.job in ("train", *ADAPTING)
        updates = Updates(
            clients,
            request.round,
            client_samples,
            steps,
            outcome.loss / steps.clamp(min=1),
            {name: outcome.own[name] for name in request.plan.up} if request.job == "train" else {},
            outcome.extras,
            logits,
            {client: self.model(request, client, outcome, row) for row, client in enumerate(clients) if request.models},
            torch.stack([finite_rows(value) for value in made]).all(0).cpu() if trains else None,
        )
        if request.job == "train":  # last: a block that does not fit into memory must have changed nothing
            self.save(request.plan, updates, outcome, tables)
        return updates

    def save(self, plan: Plan, updates: Updates, outcome: Outcome, tables: list[JobBatches]) -> None:
        """Keep what is the clients' own; one that diverged keeps what it had: its update will be refused."""
        brought: dict[Key, Tensor] = {("own", name): outcome.own[name] for name in plan.own}
        brought |= {("keep", name): value for name, value in outcome.keep.items()}
        if self.program.method.persist_optimizer_state:
            brought |= {("slots", name, key): v for name, slot in outcome.slots.items() for key, v in slot.items()}
        assert updates.finite is not None
        kept = updates.finite.nonzero()[:, 0]
        if len(kept) < len(updates.clients):
            index = on_device(kept, self.device)
            brought = {key: value.index_select(0, index) for key, value in brought.items()}
        if len(kept):
            clients, steps = zip(*((updates.clients[row], tables[row].steps) for row in kept.tolist()), strict=True)
            self.store.save(clients, brought, steps)

    def model(self, request: Request, client: int, outcome: Outcome, row: int) -> Tensors:
        """The tensors that a client predicts with: its network, `got.` what it only received, `keep.` its memory."""
        tensors = {name: value[row] for name, value in outcome.own.items()}
        tensors |= {name: request.copies[name].of([client])[0] for name in request.plan.share if name not in tensors}
        guides = [name for name, share in request.plan.share.items() if share.sent and not share.adopt]
        tensors |= {f"got.{name}": request.copies[name].of([client])[0] for name in guides}
        tensors |= {f"keep.{name}": value[row] for name, value in outcome.keep.items()}
        return {name: value.detach().cpu().clone() for name, value in tensors.items()}

    def predict_global(self, tensors: Tensors, samples: Tensor) -> Tensor:
        """Logits of the global model."""
        untried = self.trial.globally(tensors)
        common = {"x": self.x, "y": self.y}
        table = ordered(samples.numpy(), EVALUATION_BATCH)
        with torch.no_grad(), located("global model"):
            logits = [self.program.predict_global(tensors, rows, common) for rows in cut(table, self.device)]
        if untried:
            log.warning(untried)
        return torch.cat(logits).cpu()


def named(clients: Sequence[int]) -> str:
    """Clients in an error: some, where they are many."""
    few = ", ".join(map(str, clients[:MOST_NAMED]))
    return (
        f"client {few}" if len(clients) == 1 else f"clients {few}{', ...' * (len(clients) > MOST_NAMED)} side by side"
    )


def cut(table: PhaseBatches, device: torch.device) -> Iterator[BatchRows]:
    """The mini-batches of one client as they are, without padding."""
    index, count, key = (torch.from_numpy(array).to(device) for array in (table.index, table.count, table.key))
    change = None if table.change is None else torch.from_numpy(table.change).to(device)
    for step, rows in enumerate(table.count):
        row = {"index": index[step, :, :rows], "count": count[step], "key": key[step]}
        yield row if change is None else {**row, "change": change[step, :, :rows]}
