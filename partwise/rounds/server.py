"""The server: its copies of every part, who takes part in a round, and how what comes back is mixed.

A round is `sample > down > run > accept_updates > mix`, the same lines for every engine. What a method's server hooks
may use: `clients`, `samples`, `round`, `cohort`, `receivers`, `groups`, `regroup()`, `memory`,
`server["head"]`, `net()`, `mix()` and `stream()`.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from partwise.errors import ConfigError, Diverged, called, located, short, unknown
from partwise.method import Method, Relay, Share
from partwise.network.layers import Scope
from partwise.network.parts import Parts
from partwise.network.view import Net, Tensors
from partwise.rounds import optim
from partwise.rounds.ledger import Ledger
from partwise.rounds.messages import Copies, PerClient, Refused, Request, Updates, accept_updates, on_device
from partwise.rounds.plan import Plan
from partwise.streams import stream

log = logging.getLogger(__name__)

FEWEST_ACCEPTED = 0.5  # the run stops when a smaller share of a round's updates can be used


class ClientRunner(Protocol):
    """What the server asks of an engine."""

    def run(self, request: Request) -> Updates: ...

    def enter(self, handed: dict[str, Copies], fresh: Sequence[str], stage: int) -> None: ...


class Server:
    """State and rounds of one run."""

    def __init__(self, method: Method, parts: Parts, scope: Scope, plans: list[Plan], samples: Tensor, seed: int):
        self.method, self.parts, self.scope, self.plans, self.seed = method, parts, scope, plans, seed
        self.samples: Tensor = samples  # (clients,) training samples, as registered
        self.clients: int = len(samples)  # how many there are; their numbers are 0 .. clients-1
        self.eligible = np.flatnonzero(samples.numpy() > 0)  # clients that have something to learn from
        # by full name; `copies["head.bias"].values` is (copies, ...): one for all, one a group, or one a client
        self.copies: dict[str, Copies] = {n: Copies(value.detach()[None]) for n, value in parts.tensors().items()}
        self.memory: dict[str, Any] = {}  # what a method remembers on the server, under names of its own
        self.snapshots: dict[str, Tensors] = {}  # the global model as it was when a stage ended, by its name
        self.groups: Tensor | None = None  # (clients,) the group of every client; None where there are none
        self.members: list[NDArray[np.int64]] = []  # the eligible clients of each group that has some, once asked for
        self.cohort: list[int] = []  # who takes part in this round, by number
        self.receivers: list[int] = []  # whom the next request goes to: in `down`, a row of a `PerClient` for each
        self.refused: list[Refused] = []
        self.told: set[str] = set()  # lines that the log has
        self.evaluate = False  # the participants of this round are tested after their training
        self.asked: list[tuple[Request, Updates]] = []  # this round's requests, and what was accepted of the answers
        self.round: int = 0  # the round that is running, from 0; in `begin` 0, in `end` the number of rounds
        self.plan = plans[0]
        self.ledger = Ledger({name: copies.values for name, copies in self.copies.items()})
        self.engine: ClientRunner  # set by whoever brings the two together

    # ---- a run, from outside

    def begin(self) -> None:
        """Before round 0. The method comes first: the first stage's groups may depend on what it asks the clients."""
        with located("before round 1"):
            self.method.begin(self, self.run)
            self.enter(self.plans[0], None)

    def step(self, evaluate: bool = False) -> list[tuple[Request, Updates]]:
        """One round. Returns its training requests and what participants sent back, for the metrics."""
        with located(f"round {self.round + 1}"):
            plan = next(plan for plan in reversed(self.plans) if plan.first_round <= self.round)
            if plan is not self.plan:
                self.enter(plan, self.plan)
            self.cohort = self.sample()
            self.evaluate, self.asked = evaluate, []
            self.ledger.begin(self.round, len(self.cohort))
            self.method.round(self, self.run)
        self.round += 1
        return [(request, updates) for request, updates in self.asked if request.job == "train"]

    @property
    def stage_over(self) -> bool:
        """Whether the last round of the stage is done."""
        return self.round == self.plan.first_round + self.plan.rounds

    def end(self) -> None:
        """After the last round. What is sent now is sent once."""
        self.ledger.current = self.ledger.once
        with located("after the last round"):
            self.method.end(self, self.run)

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
                self.copies[name] = self.spread(self.copies[name], torch.arange(self.clients))
            elif share.copy in ("all", "server"):
                self.copies[name] = self.spread(self.copies[name], None)
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
                self.copies[name] = self.spread(self.copies[name], self.groups)

    def checked_groups(self, groups: Iterable[int]) -> Tensor:
        result = torch.as_tensor(groups if isinstance(groups, Tensor) else list(groups), dtype=torch.long).cpu()
        if len(result) != self.clients or result.min() < 0 or not torch.bincount(result).all():
            raise ConfigError(
                f"groups must number every one of the {self.clients} clients from 0, without gaps, not "
                f"{short(str(result.tolist()))}"
            )
        return result

    def spread(self, copies: Copies, row: Tensor | None) -> Copies:
        """The same values for other groups: a group's copy is the mean of those that its members had."""
        if copies.row is None and row is None:
            return copies
        groups = torch.zeros(self.clients, dtype=torch.long) if row is None else row
        number = int(groups.max()) + 1
        if copies.row is None:  # the mean of equal values, without its rounding
            return Copies(copies.of(range(number)).clone(), row)
        members = [torch.where(groups == group)[0] for group in range(number)]
        return Copies(torch.stack([copies.of(group).mean(0) for group in members]), row)

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
        """Who takes part, in the order of their numbers; clients without training samples never do."""
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
            groups = self.groups.numpy()[self.eligible]
            order, sizes = groups.argsort(kind="stable"), np.bincount(groups)
            self.members = np.split(self.eligible[order], sizes[sizes > 0].cumsum()[:-1])
        if how == "within":
            every = [len(group) for group in self.members]
            relay = isinstance(cohort, Relay)  # every chain is drawn for itself
            numbers = [share_of(size, self.share) for size in every] if relay else self.spread_cohort(every)
            return sorted(k for group, n in zip(self.members, numbers, strict=True) for k in drawn(random, group, n))
        chosen = drawn(random, np.arange(len(self.members)), share_of(len(self.members), self.share))
        return sorted(np.concatenate([self.members[group] for group in chosen]).tolist())

    def spread_cohort(self, sizes: list[int]) -> list[int]:
        """How many of every group take part: the share of all its clients, at least one each."""
        wanted = self.method.clients_per_round or share_of(sum(sizes), self.share)
        if wanted < len(sizes):
            rate = f"{len(sizes)} of {sum(sizes)} clients, {len(sizes) / sum(sizes):.0%}, take part in a round"
            self.tell_once(f"{rate}, not {wanted}: there are {len(sizes)} groups, and one of each is needed")
        return in_proportion(max(wanted, len(sizes)), sizes)

    def tell_once(self, line: str) -> None:
        """Log what a user should know of the run, however many rounds it holds for."""
        if line not in self.told:
            self.told.add(line)
            log.warning(line)

    @property
    def share(self) -> float:
        """The share of participants, however it was set."""
        number = self.method.clients_per_round
        return self.method.participation if number is None else number / self.clients

    def run(self, job: Any, who: Sequence[int] | str) -> Updates:
        """Send some clients (or EVERYONE) to work and take in what they send back."""
        clients = self.eligible.tolist() if isinstance(who, str) else sorted(who)
        if job not in ("train", "report") or not clients:
            raise ConfigError(f"run({job!r}, {clients}): the jobs are 'train' and 'report', for at least one client")
        relayed = job == "train" and isinstance(self.plan.stage.cohort, Relay)
        asked, refused = len(self.asked), len(self.refused)
        updates = self.relay(clients) if relayed else self.ask(self.request(job, clients))
        accepted = sum(len(answers.clients) for _, answers in self.asked[asked:])
        self.check_enough(accepted, len(clients), len(self.refused) - refused)
        return updates

    def request(self, job: Any, clients: list[int], evaluate: bool = False, models: bool = False) -> Request:
        """What is asked of some clients. Outside training, the learning rate is that of the round just finished."""
        plan = self.plan
        self.receivers = clients
        with located(f"round {self.round + 1}" if job == "train" else f"evaluation of round {self.round}"):
            extras = self.method.down(self) if job != "report" else {}
        self.check_extras(extras)
        finished = self.round if job == "train" else max(self.round - 1, plan.rate_origin)
        return Request(
            job,
            plan,
            self.round,
            clients,
            {name: copies for name, copies in self.copies.items() if plan.share[name].adopt or plan.share[name].sent},
            extras,
            self.method.lr_decay ** (finished - plan.rate_origin),
            evaluate or (job == "train" and self.evaluate),
            models,
        )

    def ask(self, request: Request) -> Updates:
        """Send a request, count its bytes, and leave out updates that must not be mixed."""
        updates = self.engine.run(request)
        self.check_extras(updates.extras)
        if not self.method.pooled:  # where nothing is federated, no model travels
            self.ledger.count(request, updates, request.job == "train" or self.method.report_needs_network)
        expected = {name: self.copies[name].values[0] for name in request.plan.up} if request.job == "train" else {}
        accepted, refused = accept_updates(updates, request, expected, self.samples)
        self.refused += refused
        self.asked.append((request, accepted))
        return accepted

    def check_extras(self, extras: dict[str, Any]) -> None:
        for name, value in extras.items():
            leaves = tree_leaves(value.rows if isinstance(value, PerClient) else value)
            wrong = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
            if wrong:
                raise ConfigError(f"the extra '{name}' must be made of tensors, not of {type(wrong[0]).__name__}")
        for name in set(extras) & set(self.parts.modules):
            raise ConfigError(f"an extra cannot be called '{name}': there is a part of that name")

    def check_enough(self, accepted: int, asked: int, refused: int) -> None:
        """Stop with the last good model when too few usable updates came back; whoever was first is named."""
        if accepted < FEWEST_ACCEPTED * asked:
            why = ""
            if self.refused:
                first = self.refused[0]
                when = f", in round {first.round + 1}" if first.round < self.round else ""
                why = f", client {first.client} first{when}: {first.reason}"
            raise Diverged(
                f"diverged at round {self.round + 1}: {accepted} of {asked} updates can be used, {refused} refused{why}"
            )

    def relay(self, clients: list[int]) -> Updates:
        """Within each group the model goes from client to client; an update is what the last of a group holds."""
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
        for hop in range(max(map(len, chains))):
            runners = {chain[hop]: number for number, chain in enumerate(chains) if hop < len(chain)}
            request = self.request("train", sorted(runners))
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
        own, means = self.own_matrices(updates), dict[Share, Tensor]()
        for name, uploads in updates.parts.items():
            share, copies = self.plan.share[name], self.copies[name]
            if name not in own and share not in means:
                means[share] = self.mean_matrix(copies, updates)
            matrix = own[name] if name in own else means[share]
            self.copies[name] = self.stepped(name, mixed(matrix, uploads, copies.values), matrix)
        self.method.aggregate(self, updates)

    def own_matrices(self, updates: Updates) -> dict[str, Tensor]:
        """The method's own mixing matrix of every tensor for which it gives one; the later selector wins."""
        answer = self.method.mix(self, updates)
        given = {} if answer is None else answer if isinstance(answer, dict) else {"*": answer}
        matrices: dict[str, Tensor] = {}
        for selector, matrix in given.items():
            names = [name for name in self.parts.select(selector) if name in updates.parts]
            if not names:
                parts = ", ".join({name.split(".")[0]: None for name in updates.parts})
                raise ConfigError(
                    f"{called(self.method, 'mix')} answers for '{selector}', which is not uploaded; uploaded: {parts}"
                )
            matrices |= dict.fromkeys(names, torch.as_tensor(matrix).cpu())
        shapes = {name: (len(self.copies[name].values), len(updates.clients)) for name in matrices}
        whose = called(self.method, "mix")
        return {name: checked_matrix(whose, name, matrix, shapes[name]) for name, matrix in matrices.items()}

    def stepped(self, name: str, mean: Tensor, matrix: Tensor) -> Copies:
        """The copies of a tensor after the server's step towards what was mixed; copies without participants stay."""
        method, copies = self.method, self.copies[name]
        rate, momentum = optim.SERVER_STEP[method.server_optimizer]
        rate = rate if method.server_learning_rate is None else method.server_learning_rate
        momentum = momentum if method.server_momentum is None else method.server_momentum
        averaged = self.plan.share[name].copy in ("all", "group") and name not in self.parts.buffers
        if not averaged or (method.server_optimizer, rate, momentum) == ("sgd", 1, 0):
            return replace(copies, values=mean)
        slots = copies.slots or optim.server_slots(method.server_optimizer, momentum, copies.values)
        after = optim.server_step(method.server_optimizer, copies.values, mean, slots, rate, momentum)
        taken = on_device(matrix.any(1), mean.device).view(-1, *[1] * (mean.dim() - 1))
        values, slots = tree_map(lambda new, old: torch.where(taken, new, old), after, (copies.values, slots))
        return Copies(values, copies.row, slots)

    def mean_matrix(self, copies: Copies, updates: Updates) -> Tensor:
        """(copies, participants) the weights of the mean over all, or over the participants of each group."""
        weight = updates.samples.double().cpu()
        if self.method.aggregation == "uniform":
            weight = torch.ones_like(weight)
        rows = torch.zeros(len(weight), dtype=torch.long) if copies.row is None else copies.row[updates.clients]
        matrix = torch.zeros(len(copies.values), len(weight), dtype=torch.float64)
        matrix[rows, torch.arange(len(weight))] = weight
        return matrix / matrix.sum(1, keepdim=True).clamp(min=1e-300)

    # ---- for methods

    def __getitem__(self, selector: str) -> Tensors:
        """The server's parameters of a selector, named as `net` names them; where it has several copies: `copies`."""
        names = self.parts.parameters(selector)
        for name in names.values():
            if len(self.copies[name].values) > 1:
                part = name.split(".")[0]
                raise ConfigError(f"the server has a copy of '{part}' for every group or client: see server.copies")
        return {short: self.copies[name].values[0] for short, name in names.items()}

    def __setitem__(self, selector: str, tensors: Tensors) -> None:
        """New values of the server's parameters of a selector, or of some of them."""
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
        """The server's copies as a network, which can do what a client's can; of several copies the first."""
        return Net(self.parts, self.scope, {name: copies.values[0] for name, copies in self.copies.items()})

    def stream(self, *names: str | int) -> np.random.Generator:
        """The numpy generator of a name: the server's randomness for this purpose, `server.stream("noise", round)`."""
        return stream(self.seed, "server", *names)


def share_of(number: int, share: float) -> int:
    """max(1, round(share x number)), halves rounded up."""
    return max(1, int(round(share * number, 9) + 0.5))  # 0.29 x 50 is 14.5, whatever floats make of it


def in_proportion(total: int, sizes: Sequence[int]) -> list[int]:
    """Spread a total over groups by their sizes, at least one each; of equal claims the first group's comes first.

    One by one, each goes to the group that is farthest below its share: where a share is one or more in every group,
    that is the method of the largest remainder, and no group ever gets more than it has.
    """
    every, number = np.array(sizes), np.ones(len(sizes), np.int64)
    for _ in range(total - len(sizes)):
        number[(total * every - number * every.sum()).argmax()] += 1
    return number.tolist()


def drawn(random: np.random.Generator, among: NDArray[np.int64], number: int) -> list[int]:
    """Some of the clients (or groups), without repetition, in the order of their numbers."""
    return sorted(random.choice(among, min(number, len(among)), replace=False).tolist())


def mixed(matrix: Tensor, uploads: Tensor, before: Tensor) -> Tensor:
    """(copies, ...) `matrix @ uploads`; a copy without participants stays.

    Written as the first upload of a row plus weighted differences from it: the mean of equal models is that model, and
    nothing of clients that have no part in a row reaches it.
    """
    rows = uploads.reshape(len(uploads), -1)
    result = before.reshape(len(before), -1).clone()
    for row, weights in enumerate(matrix):
        support = torch.nonzero(weights)[:, 0]
        if len(support):
            chosen = rows if len(support) == len(rows) else rows[on_device(support, rows.device)]
            first = chosen[:1]
            shares = on_device(weights[support][None].to(rows.dtype), rows.device)
            result[row] = (first + shares @ (chosen - first))[0]
    return result.view_as(before)


def checked_matrix(whose: str, name: str, matrix: Tensor, shape: tuple[int, int]) -> Tensor:
    """A method's own mixing matrix, on the host and checked."""
    matrix = matrix.detach().double().cpu()
    sums = matrix.sum(1) if matrix.dim() == 2 else matrix
    if matrix.shape != shape or not (((sums - 1).abs() < 1e-6) | (matrix == 0).all(1)).all():
        raise ConfigError(
            f"{whose} gives '{name}' a mixing matrix {tuple(matrix.shape)} with rows that sum to "
            f"{short(str([round(each, 6) for each in sums.flatten().tolist()]))}; it must be {shape} (copies, "
            "participants), each row summing to 1 or empty"
        )
    return matrix
