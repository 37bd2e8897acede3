"""The clients of runs that differ in their seed alone, in the same blocks."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from partwise.engines.engine import Engine, JobBatches
from partwise.engines.vector import Vector, shapes
from partwise.rounds.batches import PhaseBatches
from partwise.rounds.client import Client, ClientProgram, Common, Outcome
from partwise.rounds.messages import PerClient, Request, Updates, concatenated
from partwise.rounds.plan import Plan


class Shared(Vector):
    """The clients of several runs in one engine: client k of run r has the number r x `most` + k here."""

    def __init__(self, engines: Sequence[Vector]):
        vars(self).update(vars(engines[0]))  # its program, its phases and its data serve all
        self.engines = engines  # what is of a run alone, such as its store, is asked of its own
        for engine in engines:
            engine.store.runs = len(engines)
        self.most = max(engine.federation.clients for engine in engines)
        self.batch, self.report_batch, self.predict_batch = (
            max(getattr(engine, name) for engine in engines) for name in ("batch", "report_batch", "predict_batch")
        )
        self.plans: dict[int, Plan] = {}  # by stage: that of the run that came first, also when it has ended
        self.stage: int | None = None
        self.requests: dict[int, Request] = {}  # those that are carried out now, by run
        self.release()

    def carry_out_all(self, requests: dict[int, Request]) -> dict[int, Updates]:
        """The updates of each run's request; the requests agree."""
        self.requests, first = requests, next(iter(requests.values()))
        plan = self.plans.setdefault(first.plan.number, first.plan)
        if plan.number != self.stage:
            self.release()  # another stage has other steps
            self.stage = plan.number
        for run in requests:
            self.engines[run].average = None
        clients = [self.number(run, client) for run, request in requests.items() for client in request.clients]
        every = Engine.carry_out(self, replace(first, plan=plan, clients=clients))
        result = {}
        for run, rows in self.by_run(every.clients):
            numbers = [client % self.most for client in every.clients[rows]]
            result[run] = renamed(every.only(list(range(rows.start, rows.stop))), numbers)
        return result

    def number(self, run: int, client: int) -> int:
        return run * self.most + client

    def by_run(self, clients: list[int]) -> Iterator[tuple[int, slice]]:
        """The rows of each run, among clients in the order of their numbers."""
        begin = 0
        for run, own in groupby(clients, key=lambda client: client // self.most):
            end = begin + len(list(own))
            yield run, slice(begin, end)
            begin = end

    def attempt(self, request: Request, clients: list[int], tables: dict[int, JobBatches]) -> Updates | None:
        return super().attempt(request, sorted(clients), tables)  # the clients of a run stand together

    def halved(self, clients: list[int]) -> int:
        if len(clients) == 1:
            run, client = divmod(clients[0], self.most)
            return self.engines[run].halved([client])  # which knows it by its name
        return super().halved(clients)

    def tables(self, request: Request, client: int) -> JobBatches:
        run, number = divmod(client, self.most)
        own = self.engines[run].tables(self.requests[run], number)
        return JobBatches(
            [wider(table, self.batch) for table in own.phases],
            own.report and wider(own.report, self.report_batch),
            own.predict and wider(own.predict, self.predict_batch),
        )

    def layout(self, request: Request, clients: list[int], tables: dict[int, JobBatches]) -> tuple[Client, Common]:
        """What the clients of a run have in common differs from run to run, so each has a row of it."""
        layouts = []
        for run, rows in self.by_run(clients):
            own = {client % self.most: tables[client] for client in clients[rows]}
            client, common = self.engines[run].layout(self.requests[run], list(own), own)
            layouts.append(in_rows(client, common, len(own)))
        joined = tree_map(lambda *rows: torch.cat(rows), *layouts)
        return joined, {**common, "frozen": {}, "got": {}, "extras": {}}

    def collect(self, request: Request, clients: list[int], outcome: Outcome, tables: list[JobBatches]) -> Updates:
        pieces = []
        for run, rows in self.by_run(clients):
            numbers = [client % self.most for client in clients[rows]]
            own = Outcome(**tree_map(lambda tensor, rows=rows: tensor[rows], vars(outcome)))
            updates = self.engines[run].collect(self.requests[run], numbers, own, tables[rows])
            pieces.append(renamed(updates, clients[rows]))
        return concatenated(pieces)


def in_rows(client: Client, common: Common, clients: int) -> Client:
    """What some clients hold, with a row for each of what they have in common."""

    def rows(tree: Any) -> Any:
        return tree_map(lambda tensor: tensor.expand(clients, *tensor.shape), tree)

    got, extras = ({**rows(common[name]), **client[name]} for name in ("got", "extras"))
    return {**client, "frozen": rows(common["frozen"]), "got": got, "extras": extras}


def wider(table: PhaseBatches, rows: int) -> PhaseBatches:
    """The same mini-batches, padded to more rows: a run with smaller clients has narrower ones."""
    more = [(0, 0), (0, 0), (0, rows - table.index.shape[-1])]
    change = table.change if table.change is None else np.pad(table.change, [*more, (0, 0)], "edge")
    return replace(table, index=np.pad(table.index, more, "edge"), change=change)


def renamed(updates: Updates, clients: list[int]) -> Updates:
    """The same updates under other numbers."""
    new = dict(zip(updates.clients, clients, strict=True))
    logits = {new[client]: value for client, value in updates.logits.items()}
    models = {new[client]: value for client, value in updates.models.items()}
    return replace(updates, clients=clients, logits=logits, models=models)


# ------------------------------------------------------------------------------------ what can be put together


def joint_key(request: Request) -> Any:
    """What requests of common blocks agree in, beside their round and their job."""
    extras = {
        name: value.rows if isinstance(value, PerClient) else tree_map(lambda tensor: tensor[None], value)
        for name, value in request.extras.items()
    }
    one_for_all = frozenset(name for name, copies in request.copies.items() if copies.row is None)
    return request.plan.number, request.evaluate, request.models, shapes(extras), one_for_all


def can_share(engines: Sequence[Engine]) -> bool:
    """Whether runs may be carried out side by side: on the same data, by kernels in which nothing is of a seed."""
    first = engines[0]
    return all(
        isinstance(engine, Vector)
        and engine.x is first.x
        and all(torch.equal(*pair) for pair in zip(constants(engine.program), constants(first.program), strict=True))
        for engine in engines
    )


def constants(program: ClientProgram) -> list[torch.Tensor]:
    """The tensors of a kernel that are not handed to it with every call."""
    buffers = (buffer for module in program.parts.modules.values() for buffer in module.buffers())
    return [program.centre, program.scale, *(buffer for buffer in buffers if not buffer.is_floating_point())]


def remembers_the_same(one: ClientProgram, two: ClientProgram) -> bool:
    """Whether two methods are alike in all that they hold: one may hold more than its settings."""
    try:
        return bool(vars(one.method) == vars(two.method))
    except (RuntimeError, ValueError):  # tensors and arrays, which nobody can say to be equal in one word
        return False
