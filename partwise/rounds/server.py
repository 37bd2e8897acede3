"""The server: its copies of every part, stages, and rounds.

A round is `sample > down > run > accept > mix`, the same lines for every engine. cohort.py draws participants,
failures.py plays dropouts, messages.py says what travels, acceptance.py what may be mixed, mixing.py and robust.py how,
relay.py passes a model on, events.py tells the log. A method's server hooks may use `clients`, `samples`, `round`,
`cohort`, `receivers`, `groups`, `regroup()`, `memory`, `copies`, `mix()`, and what server_view.py offers:
`server["head"]`, `net()`, `decay()` and `stream()`.
"""

import copy
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from partwise.errors import ConfigError, called, located
from partwise.method import Method, Relay, WithinGroups
from partwise.network.layers import LayerScope
from partwise.network.parts import Parts
from partwise.privacy.accountant import MEMORY, Accountant
from partwise.privacy.filters import Filters
from partwise.rounds.acceptance import accept_updates, check_enough, check_extras
from partwise.rounds.cohort import Participation, draw_from_groups, drawn, members_of, raised_for_groups
from partwise.rounds.events import Event, log_events, of_round
from partwise.rounds.failures import BACK, DROPPED, LATE
from partwise.rounds.ledger import Ledger
from partwise.rounds.messages import METHOD_JOBS, Job, Request, Updates, no_updates
from partwise.rounds.mixing import (
    Copies,
    checked_groups,
    mixed,
    mixing_matrices,
    own_matrices,
    redrawn,
    spread_to_groups,
    stepped_towards,
)
from partwise.rounds.plan import Plan, only_means
from partwise.rounds.relay import relay
from partwise.rounds.robust import robustly_mixed
from partwise.rounds.safeguards import Safeguards, TooFew
from partwise.rounds.server_state import ServerSnapshot, ServerState
from partwise.rounds.server_view import ServerView
from partwise.streams import stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from partwise.network.view import Tensors

log = logging.getLogger(__name__)


class ClientRunner(Protocol):
    """The functions that the server needs of an engine."""

    def run(self, request: Request) -> Updates:
        """Return the updates of a request's clients, sorted by client."""

    def enter(self, handed: dict[str, Copies], fresh: Sequence[str], stage: int) -> None:
        """Begin a stage: clients take over what the server hands to them, and draw `fresh` parts anew."""


USUAL = Safeguards()


class Server(ServerView):
    """State and rounds of one run."""

    def __init__(
        self,
        method: Method,
        parts: Parts,
        scope: LayerScope,
        plans: list[Plan],
        samples: Tensor,
        seed: int,
        engine: ClientRunner,
        safeguards: Safeguards = USUAL,
        filters: Filters | None = None,
        accountant: Accountant | None = None,
    ):
        self.safeguards = safeguards
        self.method, self.parts, self.scope, self.plans, self.seed = method, parts, scope, plans, seed
        self.engine = engine
        self.filters, self.accountant = filters, accountant  # what uploads pass before they arrive, and what it counts
        self.samples: Tensor = samples  # (clients,) training samples, as registered
        self.clients: int = len(samples)  # how many there are; their numbers are 0 .. clients-1
        self.eligible = np.flatnonzero(samples.numpy() > 0)  # clients that have something to learn from
        # by full name; `copies["head.bias"].values` is (copies, ...): one for all, one a group, or one a client
        self.copies: dict[str, Copies] = {n: Copies(value.detach()[None]) for n, value in parts.tensors().items()}
        self.memory: dict[str, Any] = {}  # what a method remembers on the server, under names of its own
        self.snapshots: dict[str, Tensors] = {}  # the global model as it was when a stage ended, by its name
        self.groups: Tensor | None = None  # (clients,) the group of every client; None where there are none
        self.members: list[NDArray[np.int64]] = []  # the eligible clients of each group that has some, once asked for
        self.times = np.zeros(self.clients, np.int64)  # rounds in which each client took part
        self.cohort: list[int] = []  # who takes part in this round, by number
        self.receivers: list[int] = []  # whom the next request goes to: in `down`, a row of a `PerClient` for each
        self.events: list[Event] = []  # of the whole run
        self.told: set[str] = set()  # lines that the log has
        self.evaluate = False  # the participants of this round are tested after their training
        self.asked: list[tuple[Request, Updates]] = []  # this round's requests, and what was accepted of the answers
        self.round: int = 0  # the round that is running, from 0; in `begin` 0, in `end` the number of rounds
        self.plan = plans[0]
        self.ledger = Ledger({name: copies.values for name, copies in self.copies.items()})

    # ---- a run, from outside

    def begin(self) -> None:
        """Run the method's `begin`, then enter the first stage, whose groups may depend on it."""
        with located("before round 1"):
            self.method.begin(self, self.run)
            self.enter(self.plans[0], None)

    def step(self, evaluate: bool = False) -> list[tuple[Request, Updates]]:
        """Run one round; return its training requests and the accepted updates, for the metrics."""
        with located(f"round {self.round + 1}"):
            plan = next(plan for plan in reversed(self.plans) if plan.first_round <= self.round)
            if plan is not self.plan:
                self.enter(plan, self.plan)
            self.cohort = self.sample()
            self.evaluate, self.asked = evaluate, []
            self.ledger.begin(self.round, len(self.cohort))
            self.events += [
                Event(self.round, client, BACK) for client in self.safeguards.failures.returning(self.round)
            ]
            try:
                self.method.round(self, self.run)  # down > run > accept > mix, as often as the method wants
            except TooFew as few:
                self.events.append(Event(self.round, None, "skipped", str(few)))
            log_events(self.events, of_round(self.events, self.round), self.round)
        self.round += 1
        return [(request, updates) for request, updates in self.asked if request.job == "train"]

    @property
    def stage_over(self) -> bool:
        """Return whether the last round of the stage is done."""
        return self.round == self.plan.first_round + self.plan.rounds

    def end(self) -> None:
        """Call the method's `end`, after the last round; what it sends is counted apart from rounds."""
        self.ledger.end()
        with located("after the last round"):
            try:
                self.method.end(self, self.run)
            except TooFew as few:
                self.events.append(Event(self.round, None, "skipped", str(few)))
                log_events(self.events, self.events[-1:], self.round)

    def held(self) -> ServerSnapshot:
        """Return a snapshot of the server, for early stopping to go back to within the same stage.

        Copies are never changed in place within a stage, so they cost references; what a method remembers may be.
        """
        return ServerSnapshot(
            dict(self.copies),
            copy.deepcopy(self.memory),
            dict(self.snapshots),
            self.round,
            self.groups,
            self.times,
        )

    def go_back(self, held: ServerSnapshot) -> None:
        """Restore a snapshot; the privacy that was spent since stays spent."""
        spent = {name: value for name, value in self.memory.items() if name == MEMORY}
        self.copies, self.memory, self.snapshots = held.copies, held.memory | spent, held.snapshots
        self.round, self.groups, self.times = held.round, held.groups, held.times

    def state(self) -> ServerState:
        """Return all that the server holds between two rounds, for a checkpoint."""
        return ServerState(
            self.copies,
            self.memory,
            self.snapshots,
            self.round,
            self.groups,
            self.times,
            self.cohort,
            self.events,
            self.told,
            [plan.first_round for plan in self.plans if plan.number <= self.plan.number],
            self.stage_over,
            self.ledger.state(),
        )

    def restore(self, state: ServerState) -> None:
        """Restore the state of a checkpoint; refuse settings by which stages would have begun at other rounds."""
        self.go_back(state)
        self.cohort, self.events, self.told, begun = state.cohort, state.events, state.told, state.begun
        self.plan = self.plans[min(len(begun), len(self.plans)) - 1]
        if (
            begun != [plan.first_round for plan in self.plans[: len(begun)]]
            or self.round > self.plan.first_round + self.plan.rounds
            or state.stage_over != self.stage_over
        ):
            raise ConfigError(
                f"rounds = {self.method.rounds} changes stages of {type(self.method).__name__} that had begun after "
                f"{self.round} rounds, so the run cannot continue; set rounds as before, or use --overwrite"
            )
        self.ledger.restore(state.ledger)

    # ---- stages

    def enter(self, plan: Plan, before: Plan | None) -> None:
        """Begin a stage: new groups, copies for them, parts handed over to the clients or drawn anew."""
        self.plan = plan
        cohort = plan.stage.cohort
        grouping = None if cohort is None or cohort.sample == "clients" else cohort.groups  # then in every round
        grouped = any(share.copy == "group" for share in plan.share.values())
        handed = {name: self.copies[name] for name in plan.own if before and before.share[name].adopt}
        if grouping is not None or grouped:
            self.regroup(grouping(self) if grouping is not None else self.method.groups(self))
        for name, share in plan.share.items():
            if share.copy == "mix":
                self.copies[name] = spread_to_groups(self.copies[name], torch.arange(self.clients), self.clients)
            elif share.copy in ("all", "server"):
                self.copies[name] = spread_to_groups(self.copies[name], None, self.clients)
        personal = [name for name in plan.fresh if name in plan.own]
        common = [name for name in plan.fresh if name not in plan.own]
        self.copies |= redrawn(self.parts, {name: self.copies[name] for name in common}, self.seed, plan.number)
        self.engine.enter(handed, personal, plan.number)
        self.ledger.enter(plan, before)

    def regroup(self, groups: Iterable[int]) -> None:
        """Set other groups from now on; the copy of a new group is the mean of those that its members had."""
        self.groups, self.members = checked_groups(groups, self.clients), []
        for name, share in self.plan.share.items():
            if share.copy == "group":
                self.copies[name] = spread_to_groups(self.copies[name], self.groups, self.clients)

    # ---- a round

    def sample(self) -> list[int]:
        """Sample the round's participants, sorted by number; never clients without training samples."""
        random, cohort = stream(self.seed, "cohort", self.round), self.plan.stage.cohort
        participation = Participation.of(self.method, self.clients)
        if cohort is None or cohort.sample == "clients":
            self.cohort = drawn(random, self.eligible, participation.among(self.clients))
            if isinstance(cohort, Relay):
                self.regroup(cohort.groups(self))
            return self.cohort
        assert self.groups is not None
        if not self.members:
            self.members = members_of(self.groups.numpy(), self.eligible)
        if isinstance(cohort, WithinGroups) and (line := raised_for_groups(self.members, participation)):
            self.tell_once(line)
        return draw_from_groups(random, self.members, cohort, participation)

    def tell_once(self, line: str) -> None:
        """Log what a user should know of the run, however many rounds it holds for."""
        if line not in self.told:
            self.told.add(line)
            log.warning(line)

    def run(self, job: Job, who: Sequence[int] | str) -> Updates:
        """Send some clients (or EVERYONE) to work and take in what they send back."""
        clients = self.eligible.tolist() if isinstance(who, str) else sorted(who)
        if job not in METHOD_JOBS or not clients:
            raise ConfigError(
                f"run({job!r}, {clients}): the job must be 'train', 'report' or 'describe', for at least one client"
            )
        relayed = job == "train" and isinstance(self.plan.stage.cohort, Relay)
        asked, happened = len(self.asked), len(self.events)
        updates = relay(self, clients) if relayed else self.ask(self.request(job, clients))
        accepted = [client for _, answers in self.asked[asked:] for client in answers.clients]
        new = [event.what for event in self.events[happened:]]
        answered = len(clients) - new.count(DROPPED) - new.count(LATE)  # who fails has not diverged
        check_enough(len(accepted), answered, self.round, self.events, new.count("refused"))
        if self.accountant is not None:
            stage = self.plan.number if job == "train" else None
            self.accountant.note(self.memory, self.samples, clients, updates.parts, updates.extras, stage)
        if why := self.safeguards.shortage(accepted):
            raise TooFew(f"{len(accepted)} of {len(clients)} updates can be used, {why}")
        return updates

    def request(self, job: Job, clients: list[int], evaluate: bool = False, models: bool = False) -> Request:
        """Return a request to some clients. Outside training, its learning rate is that of the round just finished."""
        plan = self.plan
        self.receivers = clients
        with located(f"round {self.round + 1}" if job == "train" else f"evaluation of round {self.round}"):
            extras = self.method.down(self) if job not in ("report", "describe") else {}
        check_extras(extras, self.parts.modules)
        finished = self.round if job == "train" else max(self.round - 1, plan.rate_origin)
        return Request(
            job,
            plan,
            self.round,
            clients,
            {name: copies for name, copies in self.copies.items() if plan.share[name].adopt or plan.share[name].sent},
            extras,
            {client: int(self.times[client]) for client in clients},
            self.decay(finished),
            evaluate or (job == "train" and self.evaluate),
            models,
            not self.ledger.rounds,
            len(self.asked),
        )

    def ask(self, request: Request) -> Updates:
        """Run a request and accept its answers: count bytes, and leave out updates that must not be mixed."""
        trains = request.job == "train"
        failing = self.safeguards.failures.of(self.seed, self.round, request.clients) if trains else {}
        self.events += [Event(self.round, client, what) for client, what in failing.items()]
        carried_out = request.only([client for client in request.clients if failing.get(client) != DROPPED])
        each = failing or self.safeguards.robust is not None or self.safeguards.outliers.action != "log"  # is judged
        carried_out = replace(carried_out, averaged=trains and not each and only_means(self.method, request.plan))
        nobody = no_updates(request.round, {name: self.copies[name].values[:0] for name in request.plan.up})
        updates = self.engine.run(carried_out) if carried_out.clients else nobody
        self.events += [Event(self.round, client, *why) for client, why in sorted(updates.client_events.items())]
        check_extras(updates.extras, self.parts.modules)
        if self.filters is not None and updates.clients:
            updates = filtered(self.filters, request, updates, self.copies)
        if not self.method.pooled:  # where nothing is federated, no model travels
            self.ledger.count(request, updates, updates.sent)
        if not carried_out.clients:
            return updates
        late = [client for client in updates.clients if failing.get(client) == LATE and client not in updates.diverged]
        in_time = [row for row, client in enumerate(updates.clients) if client not in failing]
        updates = updates if len(in_time) == len(updates.clients) else updates.only(in_time)
        expected = {name: self.copies[name].values[0] for name in request.plan.up} if trains else {}
        accepted, refused = accept_updates(updates, carried_out, expected, self.samples)
        accepted, outliers = self.safeguards.outliers.judge(accepted, carried_out)
        self.events += [*refused, *outliers]
        if trains:
            self.times = self.times.copy()  # what early stopping goes back to keeps its own
            self.times[[*accepted.clients, *late]] += 1  # late clients have trained too
        self.asked.append((carried_out, accepted))
        return accepted

    def mix(self, updates: Updates) -> None:
        """Make the next copies of all that was uploaded: the method's mix, or the mean; then `aggregate` is called."""
        share, whose, rule = self.plan.share, called(self.method, "mix"), self.safeguards.robust
        own = own_matrices(whose, self.method.mix(self, updates), self.parts, share, self.copies, updates)
        matrices = mixing_matrices(share, self.copies, updates, own, self.weights(updates))
        relayed = isinstance(self.plan.stage.cohort, Relay)  # then `run` has counted the clients of all chains
        if self.safeguards.need_several and not relayed:
            means = [name for name in matrices if share[name].copy in ("all", "group")]
            matrices, kept = self.safeguards.over_enough(matrices, means, updates.clients)
            self.events += [Event(self.round, None, "skipped", line) for line in kept]
        robust = {} if rule is None else robustly_mixed(rule, whose, matrices, updates.parts, self.copies)
        for name, matrix in matrices.items():
            copies = self.copies[name]
            values = mixed(updates.by_row(matrix), updates.parts[name], copies.values) if rule is None else robust[name]
            averaged = share[name].copy in ("all", "group") and name not in self.parts.buffers  # so the server may step
            self.copies[name] = (
                stepped_towards(self.method, copies, values, matrix) if averaged else replace(copies, values=values)
            )
        self.method.aggregate(self, updates)


def filtered(filters: Filters, request: Request, updates: Updates, copies: dict[str, Copies]) -> Updates:
    """Return updates after the privacy filters: what leaves the clients in answer to a request."""
    copies = {**copies, **request.copies}  # of what is only uploaded, a client has the first one
    received = {name: copies[name].of(updates.clients) for name in updates.parts}
    when = ("before" if request.before_first_round else request.round, request.job, request.number)
    upload = filters(updates.parts, updates.extras, received, updates.clients, *when)
    return replace(updates, parts=upload.parts, extras=upload.extras, sent=upload.sent)
