"""What travels between the server and its clients, and what stands between them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from partwise.errors import ConfigError
from partwise.rounds.plan import Plan

Job = Literal["train", "report", "predict", "adapt", "finetune"]
ADAPTING = ("adapt", "finetune")  # on throw-away copies: in the method's own way, or the same for every method


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor where it is needed, without waiting for what a GPU is doing."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@dataclass(frozen=True)
class Copies:
    """The server's copies of a tensor: one for all, one a group, or one a client."""

    values: Tensor  # (copies, ...)
    row: Tensor | None = None  # (clients,) which copy a client has; None: the only one
    slots: dict[str, Tensor] = field(default_factory=dict)  # what the server's optimiser remembers, (copies, ...) each

    def of(self, clients: "Sequence[int] | NDArray | Tensor") -> Tensor:
        """(clients, ...) the copy of every client."""
        if self.row is None:
            return self.values.expand(len(clients), *self.values.shape[1:])
        return self.values[on_device(self.row[torch.as_tensor(clients)], self.values.device)]


@dataclass(frozen=True)
class PerClient:
    """An extra that differs from client to client: a row for each of `server.receivers`, in order."""

    rows: Any  # a tensor, or a tree of tensors

    def of(self, receivers: Sequence[int], clients: Sequence[int], device: torch.device) -> Any:
        """The rows of some of the receivers."""
        place = {client: row for row, client in enumerate(receivers)}
        index = torch.tensor([place[client] for client in clients])

        def pick(tensor: Tensor) -> Tensor:
            if len(tensor) != len(receivers):
                raise ConfigError(f"an extra has {len(tensor)} rows for {len(receivers)} receivers")
            return on_device(tensor[on_device(index, tensor.device)], device)

        return tree_map(pick, self.rows)


@dataclass(frozen=True)
class Request:
    """What the server asks of some clients."""

    job: Job
    plan: Plan
    round: int
    clients: list[int]
    copies: dict[str, Copies]  # of everything that a client does not keep itself, frozen parts included
    extras: dict[str, Any] = field(default_factory=dict)
    rate: float = 1.0  # the factor that decay puts on every learning rate
    evaluate: bool = False  # predict the client's test and validation samples afterwards
    models: bool = False  # bring back the tensors that the client predicts with; in simulation only

    @property
    def when(self) -> str:
        """The round that an error names, counted from 1; an evaluation belongs to the round just finished."""
        return f"round {self.round + 1}" if self.job in ("train", "report") else f"evaluation of round {self.round}"


@dataclass(frozen=True)
class Updates:
    """What clients send back, a row for each, in the order of their numbers."""

    clients: list[int]  # the numbers of those whose update was accepted
    round: int  # the round in which they trained
    samples: Tensor  # (clients,) their training samples
    steps: Tensor  # (clients,) local steps that they took
    loss: Tensor  # (clients,) mean training loss
    parts: dict[str, Tensor]  # what they uploaded of their networks by full name, (clients, ...); a report has none
    extras: dict[str, Any]  # what `finish` and `report` returned by name: trees of tensors, (clients, ...)
    logits: dict[int, Tensor] = field(default_factory=dict)  # by client, where the request asked for predictions
    models: dict[int, dict[str, Tensor]] = field(default_factory=dict)  # by client, where the request asked for them
    finite: Tensor | None = None  # (clients,) whether all that a client made is finite, what it keeps too; None: unsaid

    @property
    def diverged(self) -> list[int]:
        """The clients that hold numbers which are not finite."""
        return [] if self.finite is None else [self.clients[row] for row in (~self.finite).nonzero()[:, 0].tolist()]

    def only(self, rows: list[int]) -> "Updates":
        """The updates of some rows, as positions in `clients`."""
        index = torch.tensor(rows, dtype=torch.long)

        def pick(tensor: Tensor) -> Tensor:
            return tensor[on_device(index, tensor.device)]

        left = {self.clients[row] for row in rows}
        return replace(
            self,
            clients=[self.clients[row] for row in rows],
            samples=pick(self.samples),
            steps=pick(self.steps),
            loss=pick(self.loss),
            parts={name: pick(value) for name, value in self.parts.items()},
            extras=tree_map(pick, self.extras),
            logits={client: value for client, value in self.logits.items() if client in left},
            models={client: value for client, value in self.models.items() if client in left},
            finite=None if self.finite is None else pick(self.finite),
        )


def concatenated(pieces: Sequence[Updates]) -> Updates:
    """Several updates as one, in the order of the clients' numbers."""
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
    )
    return every.only(order) if sort else every


@dataclass(frozen=True)
class Refused:
    """An update that was left out, and why."""

    client: int
    round: int
    reason: str


def finite_rows(values: Tensor) -> Tensor:
    """(rows,) whether every number of a row is finite: then its smallest and its largest are; a nan is both."""
    rows = values[..., None].flatten(1)
    if not rows.is_floating_point() or not rows.shape[1]:
        return torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    on_cpu = rows.device.type == "cpu"  # where one after the other is many times faster than both at once
    smallest, largest = (rows.amin(1), rows.amax(1)) if on_cpu else torch.aminmax(rows, dim=1)
    return torch.isfinite(smallest) & torch.isfinite(largest)


def accept_updates(
    updates: Updates, request: Request, expected: dict[str, Tensor], registered: Tensor
) -> tuple[Updates, list[Refused]]:
    """Leave out what must not be mixed: wrong tensors, numbers that are not finite, false sample counts, repeats.

    `expected` holds a tensor of the right shape and type for every name, `registered` every client's sample count.
    """
    reasons: dict[int, str] = {}
    if updates.round != request.round:
        reasons = dict.fromkeys(range(len(updates.clients)), f"belongs to round {updates.round}, not {request.round}")
    if set(updates.parts) != set(expected):
        wrong = sorted(set(updates.parts) ^ set(expected))
        reasons = dict.fromkeys(range(len(updates.clients)), f"missing or unexpected tensors: {', '.join(wrong)}")
    for name, value in updates.parts.items():
        if name in expected and (value.shape[1:] != expected[name].shape or value.dtype != expected[name].dtype):
            got = f"{tuple(value.shape[1:])} {value.dtype}, not {tuple(expected[name].shape)} {expected[name].dtype}"
            reasons = dict.fromkeys(range(len(updates.clients)), f"'{name}' is {got}")
    sent = [*updates.parts.values(), *tree_leaves(updates.extras)]
    whole = [value for value in sent if len(value) == len(updates.clients)]
    if len(whole) < len(sent):
        reasons = dict.fromkeys(range(len(updates.clients)), "came in a batch with a row too many or too few")
    finite = torch.stack([finite_rows(value) for value in (updates.steps, *whole)]).all(0)
    if updates.finite is not None:  # what stays with a client counts: one that diverged says so
        finite = finite & updates.finite.to(finite.device)
    allowed = set(request.clients)
    for row, (client, fine, samples) in enumerate(
        zip(updates.clients, finite.tolist(), updates.samples.tolist(), strict=True)
    ):
        if not fine:
            reasons.setdefault(row, "holds numbers that are not finite")
        if client not in allowed:
            reasons.setdefault(row, "was not asked, or answered before")
        elif not 0 < samples <= registered[client]:
            reasons.setdefault(row, f"counts {samples:g} samples, registered {int(registered[client])}")
        allowed.discard(client)
    rows = [row for row in range(len(updates.clients)) if row not in reasons]
    refused = [Refused(updates.clients[row], request.round, reason) for row, reason in sorted(reasons.items())]
    return (updates if not refused else updates.only(rows)), refused
