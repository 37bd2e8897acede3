"""Requests of the server and updates of its clients."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from partwise.devices import on_device
from partwise.network.view import Extras, PerClient, Tensors, Tree
from partwise.rounds.mixing import Copies
from partwise.rounds.plan import Plan

Job = Literal["train", "report", "describe", "predict", "adapt", "finetune"]
Measured = dict[str, dict[int, dict[str, float | None]]]  # numbers of a score by set of samples, client and metric
METHOD_JOBS = ("train", "report", "describe")  # what a method's server hooks may ask for
ADAPTING = ("adapt", "finetune")  # on throw-away copies: in the method's own way, or the same for every method


@dataclass(frozen=True)
class Request:
    """A request of the server to some clients."""

    job: Job
    plan: Plan
    round: int
    clients: list[int]
    copies: dict[str, Copies]  # of everything that a client does not keep itself, frozen parts included
    extras: "dict[str, Tree | PerClient]" = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)  # by client: rounds in which it took part before; none: 0
    rate: float = 1.0  # the schedule's factor on every learning rate
    evaluate: bool = False  # predict the client's test and validation samples afterwards
    models: bool = False  # bring back the tensors that the client predicts with; in simulation only
    before_first_round: bool = False
    number: int = 0  # of this round's requests, before this one
    next_hops: list[dict[int, int]] = field(default_factory=list)  # a relay's hops to come: who goes on after whom
    seed: int | None = None  # of what its clients draw; None: the run's own
    averaged: bool = False  # a node may send the mean of its clients' parts: nothing else is made of them

    @property
    def when(self) -> str:
        """Return the round for an error, counted from 1; an evaluation belongs to the round just finished."""
        return f"round {self.round + 1}" if self.job in METHOD_JOBS else f"evaluation of round {self.round}"

    def only(self, clients: list[int]) -> "Request":
        """Return the same request to some of its clients."""
        if clients == self.clients:
            return self
        place = {client: row for row, client in enumerate(self.clients)}
        rows = torch.tensor([place[client] for client in clients], dtype=torch.long)

        def pick(tensor: Tensor) -> Tensor:
            return tensor[on_device(rows, tensor.device)]

        extras = {
            name: PerClient(tree_map(pick, value.rows)) if isinstance(value, PerClient) else value
            for name, value in self.extras.items()
        }
        return replace(self, clients=clients, extras=extras)


@dataclass(frozen=True)
class Entered:
    """A stage's beginning for clients: the parts that they keep from now on, and those that they draw anew."""

    handed: dict[str, Copies]
    fresh: list[str]
    stage: int


@dataclass(frozen=True)
class Updates:
    """The answers of clients, a row for each, sorted by client."""

    clients: list[int]  # the numbers of those whose update was accepted
    round: int  # the round in which they trained
    samples: Tensor  # (clients,) their training samples
    steps: Tensor  # (clients,) local steps that they took
    loss: Tensor  # (clients,) mean training loss; nan where it is withheld
    parts: Tensors  # what they uploaded of their networks by full name, (clients, ...); a report has none
    extras: Extras  # what `finish` and `report` returned by name: trees of tensors, (clients, ...)
    logits: dict[int, Tensor] = field(default_factory=dict)  # by client, where the request asked for predictions
    models: dict[int, Tensors] = field(default_factory=dict)  # by client, where the request asked for them
    finite: Tensor | None = None  # (clients,) whether all that a client made is finite, what it keeps too; None: unsaid
    sent: "Counter[str] | None" = None  # bytes by part and extra, where filters were at work
    scores: Measured = field(default_factory=dict)  # where clients are scored on their own machines, in place of logits
    client_events: dict[int, tuple[str, str]] = field(default_factory=dict)  # those asked: an event, and its detail
    mean: Tensor | None = None  # (clients,) the row of `parts` that a client is part of, -1: of none; None: its own
    withheld: Tensor | None = (
        None  # (clients,) whether a silo keeps its loss; `finite` says then whether that is finite
    )

    @property
    def diverged(self) -> list[int]:
        """Return the clients with numbers that are not finite."""
        return [] if self.finite is None else [self.clients[row] for row in (~self.finite).nonzero()[:, 0].tolist()]

    def only(self, rows: list[int]) -> "Updates":
        """Return the updates of some rows, given as positions in `clients`."""
        index = torch.tensor(rows, dtype=torch.long)

        def pick(tensor: Tensor) -> Tensor:
            return tensor[on_device(index, tensor.device)]

        left = {self.clients[row] for row in rows}
        parts = self.parts if self.mean is not None else {name: pick(value) for name, value in self.parts.items()}
        return replace(
            self,
            clients=[self.clients[row] for row in rows],
            samples=pick(self.samples),
            steps=pick(self.steps),
            loss=pick(self.loss),
            parts=parts,
            extras=tree_map(pick, self.extras),
            logits={client: value for client, value in self.logits.items() if client in left},
            models={client: value for client, value in self.models.items() if client in left},
            finite=None if self.finite is None else pick(self.finite),
            scores={name: {k: own for k, own in each.items() if k in left} for name, each in self.scores.items()},
            mean=None if self.mean is None else pick(self.mean),
            withheld=None if self.withheld is None else pick(self.withheld),
        )

    def of_clients(self) -> Tensors:
        """Return the parts with a row for each client; none if nodes sent means."""
        return self.parts if self.mean is None else {}

    def by_row(self, matrix: Tensor) -> Tensor:
        """Return a mixing matrix by rows of `parts`, (copies, rows); a mean gets the sum of its clients' weights."""
        if self.mean is None:
            return matrix
        rows = len(next(iter(self.parts.values()), ()))
        return matrix.new_zeros(len(matrix), rows).index_add_(1, self.mean.cpu(), matrix)


def no_updates(round: int, parts: Tensors) -> Updates:
    """Return the updates of no client; `parts` have no rows, (0, ...)."""
    none = torch.zeros(0)
    return Updates([], round, none, none, none, parts, {})


def concatenated(pieces: Sequence[Updates]) -> Updates:
    """Join several updates into one, sorted by client."""
    first, *others = pieces
    clients = [client for piece in pieces for client in piece.clients]
    order = sorted(range(len(clients)), key=clients.__getitem__)
    sort = order != list(range(len(clients)))
    if not others and not sort:
        return first

    def column(name: str) -> Tensor:
        return torch.cat([getattr(piece, name) for piece in pieces])

    every = Updates(
        clients,
        first.round,
        column("samples"),
        column("steps"),
        column("loss"),
        {name: torch.cat([piece.parts[name] for piece in pieces]) for name in first.parts},
        tree_map(lambda *rows: torch.cat(rows), first.extras, *(piece.extras for piece in others)),
        {client: logits for piece in pieces for client, logits in piece.logits.items()},
        {client: model for piece in pieces for client, model in piece.models.items()},
        None if first.finite is None else column("finite"),
        None if first.sent is None else sum((piece.sent or Counter[str]() for piece in pieces), Counter[str]()),
        joined_scores(pieces),
        {client: why for piece in pieces for client, why in piece.client_events.items()},
        joined_means(pieces),
        None if first.withheld is None else column("withheld"),
    )
    return every.only(order) if sort else every


def joined_means(pieces: Sequence[Updates]) -> Tensor | None:
    """Return each client's row among the rows of all pieces."""
    if all(piece.mean is None for piece in pieces):
        return None
    result, before = list[Tensor](), 0
    for piece in pieces:
        rows = len(next(iter(piece.parts.values()), piece.clients))
        own = torch.arange(rows) if piece.mean is None else piece.mean
        result.append(torch.where(own < 0, own, own + before))
        before += rows
    return torch.cat(result)


def joined_scores(pieces: Sequence[Updates]) -> Measured:
    """Join the scores of several updates."""
    names = dict.fromkeys(name for piece in pieces for name in piece.scores)
    return {name: {k: own for piece in pieces for k, own in piece.scores.get(name, {}).items()} for name in names}
