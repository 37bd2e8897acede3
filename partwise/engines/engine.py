"""The base of every engine on this machine: carry out requests in blocks of clients, and store their state."""

import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from partwise.data.source import Federation
from partwise.devices import on_device
from partwise.engines.check import Check
from partwise.engines.client_engine import EngineState
from partwise.engines.laying_out import ClientLayout
from partwise.engines.outcomes import kept_rows, model_of
from partwise.engines.packing import Decisions
from partwise.engines.portions import Portions
from partwise.engines.purity import PurityCheck
from partwise.engines.store import Store
from partwise.errors import PartwiseError, located
from partwise.network.view import Tensors
from partwise.rounds.acceptance import finite_rows
from partwise.rounds.augment import Augmentation
from partwise.rounds.batches import EVALUATION_BATCH, Drawing, JobBatches, ordered
from partwise.rounds.client import Caller, ClientProgram, client_job
from partwise.rounds.messages import ADAPTING, Request, Updates, concatenated
from partwise.rounds.mixing import Copies
from partwise.rounds.state import ClientState, Common, Outcome

if TYPE_CHECKING:
    from partwise.engines.side_by_side import SideBySide

MOST_CLIENTS_NAMED = 5  # clients that an error names

log = logging.getLogger(__name__)


class Engine(ABC):
    """Requests in, updates out. Subclasses define how clients are grouped, and the caller that runs a group's job."""

    clock: Callable[[], float] = staticmethod(time.perf_counter)  # by which the seconds of a run are counted
    caller: Caller
    hand_over: Callable[[Request], Updates] | None = None  # carries out requests in place of this engine

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
        self.program, self.federation, self.store, self.device = program, federation, store, device
        self.drawing = Drawing(program, federation, seed, store.seed, augmentation)
        self.layout = ClientLayout(program, federation, store, self.drawing, device)
        self.x, self.y, self.counts, self.train = self.layout.x, self.layout.y, self.layout.counts, self.drawing.train
        self.norm_average = self.layout.norm_average
        self.portions = Portions(device)
        self.purity = PurityCheck(self, self.many_clients())
        self.check = Check(self) if checked else None  # compares a client of every round with the loop

    def many_clients(self) -> Callable[[Callable], Callable] | None:
        """Return the wrapper by which PurityCheck runs a function for padded clients; None: it runs them singly."""
        return None

    @abstractmethod
    def blocks(self, request: Request, batches: dict[int, JobBatches]) -> Iterable[list[int]]:
        """Return the request's clients in the groups that are carried out together."""

    def run(self, request: Request) -> Updates:
        """Return the updates of a request's clients, in order; their functions are checked first."""
        if request.job == "describe":
            return self.described(request)
        with located(request.when):
            untried = self.purity(request)
        expected = self.check.expected(request) if self.check is not None and request.job == "train" else None
        updates = (self.hand_over or self.carry_out)(request)
        if self.check is not None and expected is not None:
            self.check.compare(request, updates, expected)
        if untried:  # a mistake in a method would have ended the run
            log.warning(untried)
        return updates

    def described(self, request: Request) -> Updates:
        """Return the descriptions that a request's clients make of their samples, one client after another."""
        extras = []
        for client in request.clients:
            [rows] = ordered(self.train[client], len(self.train[client])).rows(self.device)
            with torch.no_grad(), located(request.when), located(clients_named([client])):
                extras.append(self.program.describe(rows, self.x, self.y))
        samples = on_device(self.counts[request.clients].sum(1), self.device)
        nothing = torch.zeros_like(samples)
        stacked = tree_map(lambda *each: torch.stack(each), *extras)
        return Updates(request.clients, request.round, samples, nothing, nothing, {}, stacked)

    def carry_out(self, request: Request) -> Updates:
        """Return the updates of a request's clients; blocks that do not fit into memory are halved."""
        batches = {client: self.drawing.draw(request, client) for client in request.clients}
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

    def execute(self, request: Request, client: ClientState, common: Common, batches: list[JobBatches]) -> Outcome:
        """Carry out the job of a group of clients; everything in `client` and in the outcome has a row for each."""
        return client_job(self.program, client, common, self.drawing.job_plan(request), batches, self.caller)

    def collect(self, request: Request, clients: list[int], outcome: Outcome, batches: Sequence[JobBatches]) -> Updates:
        """Store the new state of clients and return their uploads; a client that diverged keeps its old state."""
        client_samples = on_device(self.counts[clients].sum(1), self.device)
        steps = on_device(torch.tensor([each.steps for each in batches]), self.device)
        own = outcome.trained.own
        made = tree_leaves((client_samples, own, outcome.keep, outcome.extras))
        trains = request.job in ("train", *ADAPTING)
        finite = torch.stack([finite_rows(value) for value in made]).all(0).cpu() if trains else None
        updates = Updates(
            clients,
            request.round,
            client_samples,
            steps,
            outcome.trained.loss / steps.clamp(min=1),
            {name: own[name] for name in request.plan.up} if request.job == "train" else {},
            outcome.extras,
            {client: logits for client, logits in zip(clients, outcome.logits, strict=False) if len(logits)},
            {client: model_of(request, client, outcome, row) for row, client in enumerate(clients) if request.models},
            finite,
        )
        if request.job == "train":  # last: a block that does not fit into memory must have changed nothing
            assert finite is not None
            brought = kept_rows(request.plan, outcome, self.program.method.persist_optimizer_state)
            sound = (finite & finite_rows(updates.loss).cpu()).nonzero()[:, 0]
            if len(sound) < len(clients):
                index = on_device(sound, self.device)
                brought = {key: value.index_select(0, index) for key, value in brought.items()}
            if len(sound):
                rows = sound.tolist()
                self.store.save([clients[row] for row in rows], brought, [batches[row].steps for row in rows])
        return updates

    def predict_global(self, tensors: Tensors, samples: Tensor) -> Tensor:
        """Return the output of the global model, (samples, ...), on the device."""
        untried = self.purity.globally(tensors)

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

    def enter(self, handed: dict[str, Copies], fresh: Sequence[str], stage: int) -> None:
        """Begin a stage: the store takes over what the server hands to clients, and draws `fresh` parts anew."""
        self.store.enter(handed, fresh, stage)
        self.portions.forget()

    # ---- memory

    def halved(self, clients: list[int]) -> int:
        """Return the size of the next blocks after one ran out of memory: half of it; a single client is an error."""
        torch.cuda.empty_cache()
        if len(clients) == 1:
            raise PartwiseError(f"client {clients[0]} alone needs more memory than {self.device} has: lower batch")
        return (len(clients) + 1) // 2

    def release(self) -> None:
        """Release memory that only training needs."""
        self.norm_average.forget()

    # ---- what it decided as it went

    def deciding(self) -> "list[SideBySide]":
        """Return the callers that decide how steps are carried out."""
        return []

    def decisions(self) -> list[Decisions]:
        """Return the decisions that a run resumed in another process must keep."""
        return [caller.decisions() for caller in self.deciding()]

    def state(self) -> EngineState:
        """Return the state of the engine between rounds, for a checkpoint; the state of clients is in the store."""
        return EngineState()

    def restore(self, state: EngineState) -> None:
        """Restore the state of a checkpoint."""
        assert not state.entered

    def decide(self, decisions: list[Decisions]) -> None:
        """Use such decisions from now on, one for each deciding caller."""
        for caller, own in zip(self.deciding(), decisions, strict=False):
            caller.decide(own)


def clients_named(clients: Sequence[int]) -> str:
    """Name clients for an error, the first few if there are many."""
    few = ", ".join(map(str, clients[:MOST_CLIENTS_NAMED]))
    return (
        f"client {few}"
        if len(clients) == 1
        else f"clients {few}{', ...' * (len(clients) > MOST_CLIENTS_NAMED)} side by side"
    )
