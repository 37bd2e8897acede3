"""The server: its copies of every part, stages, and rounds.

A round is `sample > down > run > accept_updates > mix`, the same lines for every engine. cohort.py draws participants,
failures.py plays dropouts, messages.py says what travels, gate.py what may be mixed, mixing.py and robust.py how. A
method's server hooks may use `clients`, `samples`, `round`, `cohort`, `receivers`, `groups`, `regroup()`, `memory`,
`server["head"]`, `net()`, `mix()`, `decay()` and `stream()`.
"""

import copy
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partwise.devices import on_device
from partwise.errors import ConfigError, called, located, short, unknown
from partwise.method import Method, Relay, Share
from partwise.network.layers import Scope
from partwise.network.parts import Parts
from partwise.network.view import Net, Tensors
from partwise.privacy.accountant import MEMORY, Accountant
from partwise.privacy.filters import Filters
from partwise.rounds.acceptance import Event, accept_updates, check_enough, check_extras, told
from partwise.rounds.cohort import drawn, in_proportion, members_of, share_of
from partwise.rounds.failures import BACK, DROPPED, LATE
from partwise.rounds.ledger import Ledger
from partwise.rounds.messages import TOLD, Job, Request, Updates
from partwise.rounds.mixing import Copies, checked_matrix, mean_matrix, mixed, spread, stepped_towards
from partwise.rounds.plan import Plan, only_means
from partwise.rounds.robust import RobustMean, check_mean
from partwise.rounds.safeguards import Safeguards, TooFew
from partwise.streams import stream

log = logging.getLogger(__name__)

# What a server holds that a round changes and early stopping goes back to
HELD = ("copies", "memory", "snapshots", "round", "groups", "times")
ServerState = dict[str, Any]  # by the names of attributes


class ClientRunner(Protocol):
    """The functions that the server needs of an engine."""

    def run(self, request: Request) -> Updates: ...

    def enter(self, handed: dict[str, Copies], fresh: Sequence[str], stage: int) -> None: ...


USUAL = Safeguards()


class Server:
    """State and rounds of one run."""

    def __init__(
        self,
        method: Method,
        parts: Parts,
        scope: Scope,
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
                self.method.round(self, self.run)
            except TooFew as few:
                self.events.append(Event(self.round, None, "skipped", str(few)))
            self.tell(self.happened(self.round))
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
                self.tell(self.events[-1:])

    def held(self) -> ServerState:
        """Return a snapshot of the server, for early stopping to go back to within the same stage.

        Copies are never changed in place within a stage, so they cost references; what a method remembers may be.
        """
        held = {name: getattr(self, name) for name in HELD}
        own = {"copies": dict(self.copies), "snapshots": dict(self.snapshots), "memory": copy.deepcopy(self.memory)}
        return held | own

    def go_back(self, held: ServerState) -> None:
        """Restore such a snapshot; what was spent of privacy stays spent."""
        spent = {name: value for name, value in self.memory.items() if name == MEMORY}
        vars(self).update(held)
        self.memory |= spent

    def state(self) -> ServerState:
        """Return all that the server holds between two rounds, for a checkpoint."""
        held = {name: getattr(self, name) for name in (*HELD, "cohort", "events", "told")}
        begun = [plan.first_round for plan in self.plans if plan.number <= self.plan.number]
        return held | {"begun": begun, "stage_over": self.stage_over, "ledger": self.ledger.state()}

    def restore(self, state: ServerState) -> None:
        """Take over such a state; the stages that had begun must begin where they did."""
        begun, over, ledger = (state.pop(name) for name in ("begun", "stage_over", "ledger"))
        vars(self).update(state)
        self.plan = self.plans[min(len(begun), len(self.plans)) - 1]
        if (
            begun != [plan.first_round for plan in self.plans[: len(begun)]]
            or self.round > self.plan.first_round + self.plan.rounds
            or over != self.stage_over
        ):
            raise ConfigError(
                f"rounds = {self.method.rounds} changes stages of {type(self.method).__name__} that had begun after "
                f"{self.round} rounds, so the run cannot continue; set rounds as before, or use --overwrite"
            )
        self.ledger.restore(ledger)

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
                self.copies[name] = spread(self.copies[name], torch.arange(self.clients), self.clients)
            elif share.copy in ("all", "server"):
                self.copies[name] = spread(self.copies[name], None, self.clients)
        personal = [name for name in plan.fresh if name in plan.own]
        common = [name for name in plan.fresh if name not in plan.own]
        self.redraw(common, plan.number)
        self.engine.enter(handed, personal, plan.number)
        self.ledger.enter(plan, before)

    def regroup(self, groups: Iterable[int]) -> None:
        """Set other groups from now on; the copy of a new group is the mean of those that its members had."""
        self.groups, self.members = self.checked_groups(groups), []
        for name, share in self.plan.share.items():
            if share.copy == "group":
                self.copies[name] = spread(self.copies[name], self.groups, self.clients)

    def checked_groups(self, groups: Iterable[int]) -> Tensor:
        result = torch.as_tensor(groups if isinstance(groups, Tensor) else list(groups), dtype=torch.long).cpu()
        if len(result) != self.clients or result.min() < 0 or not torch.bincount(result).all():
            raise ConfigError(
                f"groups must give each of the {self.clients} clients a number, from 0 and without gaps, not "
                f"{short(str(result.tolist()))}"
            )
        return result

    def redraw(self, names: list[str], stage: int) -> None:
        """Draw the server's copies of some tensors anew: one draw for each copy."""
        rows = max((len(self.copies[name].values) for name in names), default=0)
        draws = [self.parts.draw(names, self.seed, "fresh", stage, "copy", row) for row in range(rows)]
        for name in names:
            old = self.copies[name]
            values = torch.stack([draw[name] for draw in draws[: len(old.values)]])
            self.copies[name] = Copies(values.to(old.values), old.row)

    # ---- a round

    def sample(self) -> list[int]:
        """Sample the round's participants, sorted by number; never clients without training samples."""
        random = stream(self.seed, "cohort", self.round)
        cohort = self.plan.stage.cohort
        how = "clients" if cohort is None else cohort.sample
        if how == "clients":
            number = self.method.clients_per_round or share_of(self.clients, self.share)
            self.cohort = drawn(random, self.eligible, number)
            if isinstance(cohort, Relay):
                self.regroup(cohort.groups(self))
            return self.cohort
        assert self.groups is not None
        if not self.members:
            self.members = members_of(self.groups.numpy(), self.eligible)
        if how == "within":
            every = [len(group) for group in self.members]
            relay = isinstance(cohort, Relay)  # every chain is drawn for itself
            numbers = [share_of(size, self.share) for size in every] if relay else self.spread_cohort(every)
            return sorted(k for group, n in zip(self.members, numbers, strict=True) for k in drawn(random, group, n))
        chosen = drawn(random, np.arange(len(self.members)), share_of(len(self.members), self.share))
        return sorted(np.concatenate([self.members[group] for group in chosen]).tolist())

    def spread_cohort(self, sizes: list[int]) -> list[int]:
        """Divide the cohort's size among the groups in proportion to their sizes, at least one client each."""
        wanted = self.method.clients_per_round or share_of(sum(sizes), self.share)
        if wanted < len(sizes):
            rate = f"{len(sizes)} of {sum(sizes)} clients, {len(sizes) / sum(sizes):.0%}, take part in a round"
            self.tell_once(f"{rate}, not {wanted}: each of the {len(sizes)} groups needs a participant")
        return in_proportion(max(wanted, len(sizes)), sizes)

    def tell(self, events: Sequence[Event]) -> None:
        """Log a round's events in one line: INFO if all are simulated failures, or outliers of clients named before."""
        named = {event.client for event in self.events if event.what == "outlier" and event.round < self.round}
        usual = all(
            event.what in (DROPPED, LATE, BACK) or (event.what == "outlier" and event.client in named)
            for event in events
        )
        if events:
            log.log(logging.INFO if usual else logging.WARNING, "round %d: %s", self.round + 1, told(events))

    def tell_once(self, line: str) -> None:
        """Log what a user should know of the run, however many rounds it holds for."""
        if line not in self.told:
            self.told.add(line)
            log.warning(line)

    @property
    def share(self) -> float:
        """Return the fraction of clients that take part, set by `participation` or `clients_per_round`."""
        number = self.method.clients_per_round
        return self.method.participation if number is None else number / self.clients

    def run(self, job: Job, who: Sequence[int] | str) -> Updates:
        """Send some clients (or EVERYONE) to work and take in what they send back."""
        clients = self.eligible.tolist() if isinstance(who, str) else sorted(who)
        if job not in TOLD or not clients:
            raise ConfigError(
                f"run({job!r}, {clients}): the job must be 'train', 'report' or 'describe', for at least one client"
            )
        relayed = job == "train" and isinstance(self.plan.stage.cohort, Relay)
        asked, happened = len(self.asked), len(self.events)
        updates = self.relay(clients) if relayed else self.ask(self.request(job, clients))
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

    def happened(self, round: int) -> list[Event]:
        """Return the events of this round, the newest; the first round includes those before it."""
        return list(takewhile(lambda event: event.round == round, reversed(self.events)))[::-1]

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

    def decay(self, round: int) -> float:
        """Return the factor on learning rates in a round of this stage: `server.decay(server.round)`."""
        return self.method.lr_decay ** (round - self.plan.rate_origin)

    def ask(self, request: Request) -> Updates:
        """Send a request, count its bytes, and leave out updates that must not be mixed."""
        trains = request.job == "train"
        failing = self.safeguards.failures.of(self.seed, self.round, request.clients) if trains else {}
        self.events += [Event(self.round, client, what) for client, what in failing.items()]
        carried_out = request.only([client for client in request.clients if failing.get(client) != DROPPED])
        each = failing or self.safeguards.robust is not None or self.safeguards.outliers.action != "log"  # is judged
        carried_out = replace(carried_out, averaged=trains and not each and only_means(self.method, request.plan))
        updates = self.engine.run(carried_out) if carried_out.clients else self.silence(request)
        self.events += [Event(self.round, client, *why) for client, why in sorted(updates.befell.items())]
        check_extras(updates.extras, self.parts.modules)
        if self.filters is not None and updates.clients:
            updates = self.filtered(self.filters, request, updates)
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

    def silence(self, request: Request) -> Updates:
        """Return empty updates, for a request that no client answers."""
        none = torch.zeros(0)
        parts = {name: self.copies[name].values[:0] for name in request.plan.up}
        return Updates([], request.round, none, none, none, parts, {})

    def filtered(self, filters: Filters, request: Request, updates: Updates) -> Updates:
        """Return updates after the privacy filters: what leaves the clients in answer to a request."""
        copies = {**self.copies, **request.copies}  # of what is only uploaded, a client has the first one
        received = {name: copies[name].of(updates.clients) for name in updates.parts}
        when = ("before" if request.before else request.round, request.job, request.number)
        upload = filters(updates.parts, updates.extras, received, updates.clients, *when)
        return replace(updates, parts=upload.parts, extras=upload.extras, sent=upload.sent)

    def relay(self, clients: list[int]) -> Updates:
        """Pass the model from client to client within each group; return an update from the last client of each."""
        assert self.groups is not None
        groups = sorted({int(self.groups[client]) for client in clients})
        chains = []
        for group in groups:
            members = [client for client in clients if self.groups[client] == group]
            chains.append(stream(self.seed, "relay", self.round, group).permutation(members).tolist())
        state = {name: self.copies[name].of([chain[0] for chain in chains]).clone() for name in self.plan.up}
        samples = torch.zeros(len(chains), dtype=torch.float64)
        row = torch.zeros(self.clients, dtype=torch.long)  # the chain of a client
        for number, chain in enumerate(chains):
            row[chain] = number
        times = {client: int(self.times[client]) for client in clients}
        lengths = range(max(map(len, chains)))
        after = [{chain[hop]: chain[hop - 1] for chain in chains if hop < len(chain)} for hop in lengths]
        for hop in lengths:
            runners = {chain[hop]: number for number, chain in enumerate(chains) if hop < len(chain)}
            request = replace(self.request("train", sorted(runners)), onward=after[hop + 1 :], times=times)
            request.copies.update({name: Copies(values, row) for name, values in state.items()})
            updates = self.ask(request)
            went_on = torch.tensor([runners[client] for client in updates.clients], dtype=torch.long)
            samples[went_on] += updates.samples.double().cpu()
            for name, values in state.items():  # not in place: what a hop's clients received may be looked at
                state[name] = values.index_copy(0, on_device(went_on, values.device), updates.parts[name])
        nothing = torch.zeros(len(chains))
        every = Updates([chain[-1] for chain in chains], self.round, samples, nothing, nothing, state, {})
        return every.only([row for row in range(len(chains)) if samples[row] > 0])  # a chain may be refused altogether

    def mix(self, updates: Updates) -> None:
        """Make the next copies of all that was uploaded: the method's mix, or the mean; then `aggregate` is called."""
        matrices = self.over_enough(self.matrices(updates), updates.clients)
        rule = self.safeguards.robust
        robust = {} if rule is None else self.robustly_mixed(rule, matrices, updates)
        for name, matrix in matrices.items():
            share, copies = self.plan.share[name], self.copies[name]
            values = mixed(updates.by_row(matrix), updates.parts[name], copies.values) if rule is None else robust[name]
            averaged = share.copy in ("all", "group") and name not in self.parts.buffers  # so the server may step
            self.copies[name] = (
                stepped_towards(self.method, copies, values, matrix) if averaged else replace(copies, values=values)
            )
        self.method.aggregate(self, updates)

    def matrices(self, updates: Updates) -> dict[str, Tensor]:
        """Return the mixing matrix of every tensor that is uploaded and mixed: the method's own, or the mean."""
        result, means = self.own_matrices(updates), dict[Share, Tensor]()
        for name in updates.parts:
            share = self.plan.share[name]
            if share.copy is not None and name not in result:  # without a copy, it was uploaded to be seen
                if share not in means:
                    means[share] = mean_matrix(self.copies[name], updates.clients, self.weights(updates))
                result[name] = means[share]
        return result

    def over_enough(self, matrices: dict[str, Tensor], clients: list[int]) -> dict[str, Tensor]:
        """Return the matrices without the means over too few clients: these copies stay as they are.

        A relay's mean is over chains, whose clients `run` has counted; a mix that is made for one client is no mean.
        """
        if not self.safeguards.need_several or isinstance(self.plan.stage.cohort, Relay):
            return matrices
        means = {n: matrix for n, matrix in matrices.items() if self.plan.share[n].copy in ("all", "group")}
        different = {id(matrix): matrix for matrix in means.values()}  # many tensors have one in common
        emptied = {number: self.safeguards.emptied(matrix, clients) for number, matrix in different.items()}
        kept = dict.fromkeys(line for _, lines in emptied.values() for line in lines)
        self.events += [Event(self.round, None, "skipped", line) for line in kept]
        return matrices | {name: emptied[id(matrix)][0] for name, matrix in means.items()}

    def robustly_mixed(self, rule: RobustMean, matrices: dict[str, Tensor], updates: Updates) -> Tensors:
        """Return the robust means; tensors with equal matrices are judged together."""
        together: dict[tuple[torch.Size, bytes], list[str]] = {}
        for name, matrix in matrices.items():
            check_mean(rule, called(self.method, "mix"), name, matrix)
            together.setdefault((matrix.shape, matrix.numpy().tobytes()), []).append(name)
        result: Tensors = {}
        for names in together.values():
            uploads = {name: updates.parts[name] for name in names}
            before = {name: self.copies[name].values for name in names}
            result |= rule.mixed(matrices[names[0]], uploads, before)
        return result

    def own_matrices(self, updates: Updates) -> dict[str, Tensor]:
        """Return the method's own mixing matrices by tensor; the later selector wins."""
        answer = self.method.mix(self, updates)
        given = {} if answer is None else answer if isinstance(answer, dict) else {"*": answer}
        matrices: dict[str, Tensor] = {}
        for selector, matrix in given.items():
            names = [n for n in self.parts.select(selector) if n in updates.parts and self.plan.share[n].copy]
            if not names:
                parts = ", ".join({name.split(".")[0]: None for name in updates.parts})
                raise ConfigError(
                    f"{called(self.method, 'mix')} mixes '{selector}', which is not uploaded; uploaded: {parts}"
                )
            matrices |= dict.fromkeys(names, torch.as_tensor(matrix).cpu())
        shapes = {name: (len(self.copies[name].values), len(updates.clients)) for name in matrices}
        whose = called(self.method, "mix")
        return {name: checked_matrix(whose, name, matrix, shapes[name]) for name, matrix in matrices.items()}

    def weights(self, updates: Updates) -> Tensor:
        """Return (participants,) float64 on the host: the weight of each in a mean."""
        samples = updates.samples.double().cpu()
        if self.method.aggregation == "uniform":
            return torch.ones_like(samples)
        return self.safeguards.capped(samples, updates.clients)

    # ---- for methods

    def __getitem__(self, selector: str) -> Tensors:
        """Return the server's parameters of a selector, by `net`'s names; if it has several copies, use `copies`."""
        names = self.parts.parameters(selector)
        for name in names.values():
            if len(self.copies[name].values) > 1:
                part = name.split(".")[0]
                raise ConfigError(
                    f"the server has several copies of '{part}', one per group or client; use server.copies"
                )
        return {short: self.copies[name].values[0] for short, name in names.items()}

    def __setitem__(self, selector: str, tensors: Tensors) -> None:
        """Set the server's parameters of a selector, or some of them."""
        old, names = self[selector], self.parts.parameters(selector)
        for key, value in tensors.items():
            if key not in old:
                raise ConfigError(unknown(f"tensor of '{selector}'", key, old))
            if value.shape != old[key].shape or value.dtype != old[key].dtype:
                raise ConfigError(
                    f"'{names[key]}' is {tuple(old[key].shape)} {old[key].dtype}, not "
                    f"{tuple(value.shape)} {value.dtype}"
                )
            self.copies[names[key]] = replace(self.copies[names[key]], values=value.detach()[None])

    def net(self) -> Net:
        """Return the server's copies as a network like a client's; of several copies, the first."""
        return Net(self.parts, self.scope, {name: copies.values[0] for name, copies in self.copies.items()})

    def stream(self, *names: str | int) -> np.random.Generator:
        """Return a numpy generator seeded by names, for the server's own use: `server.stream("noise", round)`."""
        return stream(self.seed, "server", *names)
