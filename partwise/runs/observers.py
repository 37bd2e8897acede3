"""Observers, which watch a run from outside. An observed run ends bit for bit like one without observers."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_map

from partwise.engines.client_engine import ClientEngine
from partwise.engines.flops import flops_per_sample, training_flops
from partwise.errors import PartwiseError
from partwise.network.view import Extras, PerClient, Tensors
from partwise.records.rounds import MomentScores, RoundRecord
from partwise.rounds.messages import Job, Request, Updates
from partwise.rounds.mixing import Copies

if TYPE_CHECKING:
    from partwise.runs.simulation import Simulation

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Exchange:
    """One request to clients, and the updates that were accepted."""

    request: Request
    updates: Updates
    engine: ClientEngine

    @property
    def job(self) -> Job:
        """Return `train`, `report` or `describe`; `predict`, `finetune` or `adapt` if clients are only evaluated."""
        return self.request.job

    @property
    def clients(self) -> list[int]:
        """Return the clients of the request that did not drop out; the accepted ones are `updates.clients`."""
        return self.request.clients

    def received(self, client: int) -> Tensors:
        """Return the copies that a client received of all that it does not keep, by name, frozen parts included."""
        return {name: copies.of([client])[0] for name, copies in self.request.copies.items()}

    def received_extras(self, client: int) -> Extras:
        """Return the extras that a client received."""
        return {
            name: row_of(value.of(self.clients, [client], self.engine.device), 0)
            if isinstance(value, PerClient)
            else value
            for name, value in self.request.extras.items()
        }

    def uploaded(self, client: int) -> Tensors:
        """Return the parts that a client uploaded, by name; unknown if its node sent the mean of several clients."""
        if self.updates.mean is not None:
            raise PartwiseError(f"what client {client} uploaded is not known: its node sends the mean of its clients")
        return row_of(self.updates.parts, self.updates.clients.index(client))

    def uploaded_extras(self, client: int) -> Extras:
        """Return the extras that a client uploaded."""
        return row_of(self.updates.extras, self.updates.clients.index(client))

    def batches(self, client: int) -> list[list[np.ndarray]]:
        """Return a client's mini-batches: for every phase and step, (mini-batches, rows) samples of the data set.

        They are drawn again from the client's own stream, so they cost nothing where nobody asks.
        """
        drawn = self.engine.drawing.draw(self.request, client)
        phases = [*drawn.prepare, *drawn.phases]
        return [[step[:, :rows] for step, rows in zip(own.samples, own.real, strict=True)] for own in phases]


def row_of(tree: Any, row: int) -> Any:
    """Return one client's row of a tree of tensors."""
    return tree_map(lambda tensor: tensor[row], tree)


@dataclass
class Seen:
    """A round as observers see it. Its tensors are those of the run: read them, and clone what you want to change."""

    simulation: "Simulation"
    record: RoundRecord
    asked: list[tuple[Request, Updates]]
    logits: dict[str, dict[int, Tensor]] = field(default_factory=dict)  # of `predictions`, where they were made
    on_host: dict[str, dict[int, Tensor]] = field(default_factory=dict)  # copies of them, once somebody asks
    global_logits: Tensor | None = None
    evaluated: dict[str, tuple[Request, Updates]] = field(default_factory=dict)
    copies: dict[str, Copies] = field(init=False)  # the server's after the mixing: `copies[name].of(clients)`
    cohort: list[int] = field(init=False)  # who took part
    groups: Tensor | None = field(init=False)  # (clients,) the group of every client, where there are groups

    def __post_init__(self) -> None:
        self.look([])

    def look(self, asked: Sequence[tuple[Request, Updates]]) -> None:
        """Note what was asked since, and what the server holds now: the next round replaces it, and changes none."""
        server = self.simulation.server
        self.asked = [*self.asked, *asked]
        self.copies, self.cohort, self.groups = dict(server.copies), server.cohort, server.groups

    def update(self, **fields: Any) -> None:
        """Set fields of the record: the run does as the round goes on."""
        self.record = replace(self.record, **fields)

    def add(self, name: str, value: Any) -> None:
        """Add something to the round's line of metrics.jsonl, under a name of its own; JSON must be able to hold it."""
        self.update(noted={**self.record.noted, name: value})

    def note(self, moment: str, request: Request, answers: Updates) -> None:
        """Note the answers at an evaluated moment."""
        self.evaluated[moment] = request, answers
        self.note_logits(moment, answers.logits)

    def note_logits(self, moment: str, logits: dict[int, Tensor]) -> None:
        """Note the predictions at an evaluated moment."""
        self.logits[moment] = logits
        self.on_host.pop(moment, None)

    def note_scores(self, moment: str, test: MomentScores, validation: MomentScores | None = None) -> None:
        """Note the scores at an evaluated moment, on test samples and on validation samples."""
        validated = {} if validation is None else {moment: validation}
        self.update(moments={**self.record.moments, moment: test}, validation={**self.record.validation, **validated})

    def note_global(self, logits: Tensor) -> None:
        """Note the global model's predictions."""
        self.global_logits = logits

    @property
    def predictions(self) -> dict[str, dict[int, Tensor]]:
        """Return logits by client at the evaluated moments (`received`, `trained`, ...), on the host.

        Those of a client's test samples come first, then those of its validation samples.
        """
        for moment in self.logits.keys() - self.on_host.keys():
            self.on_host[moment] = {client: own.cpu() for client, own in self.logits[moment].items()}
        return {moment: self.on_host[moment] for moment in self.logits}

    @property
    def global_predictions(self) -> Tensor | None:
        """Return the global model's logits of the global test samples, on the host; None if there are none."""
        return None if self.global_logits is None else self.global_logits.cpu()

    @property
    def exchanges(self) -> list[Exchange]:
        """Return all requests and answers since the round before, in order; of a relay, every hop.

        The first round's begin with those of the method's `begin`, the last round's end with those of its `end`.
        """
        return [Exchange(request, updates, self.simulation.engine) for request, updates in self.asked]

    @property
    def evaluations(self) -> dict[str, Exchange]:
        """Return the evaluations after the round by moment: `received`, and the moments with adaptation."""
        return {moment: Exchange(*pair, self.simulation.engine) for moment, pair in self.evaluated.items()}


class Observer:
    """Watches a run; override what you need. `partwise.run(..., observers=[...])` calls them in order."""

    def begin(self, simulation: "Simulation") -> None:
        """Run code before the first request to a client."""

    def round(self, seen: Seen) -> bool | None:
        """Run code after every round, evaluated where the run evaluates; return True to end the run.

        It ends then as it always does, with the method's `end` and a last evaluation, which observers further down the
        list see in this round already, and all in `end`.
        """
        return None

    def end(self, last: Seen | None) -> None:
        """Run code after the last round, which is `last`; None if an error ended the run."""


class TellRounds(Observer):
    """Hands the record of every round to a function."""

    def __init__(self, tell: Callable[[RoundRecord], None]):
        self.tell = tell

    def round(self, seen: Seen) -> None:
        """Pass on the record of the round."""
        self.tell(seen.record)


class TellCheck(Observer):
    """Says what `--check` found."""

    def end(self, last: Seen | None) -> None:
        """Note and log what the check found."""
        if last is not None and last.simulation.engine.check is not None:
            last.simulation.notes.append(str(last.simulation.engine.check))
            log.warning(last.simulation.notes[-1])


class CountFlops(Observer):
    """Adds what local training costs to the ledger."""

    def round(self, seen: Seen) -> None:
        """Count the operations of a sample in each stage, once."""
        ledger = seen.simulation.server.ledger
        for exchange in seen.exchanges:
            if exchange.job == "train":
                engine, request, stage = exchange.engine, exchange.request, exchange.request.plan.number
                if stage not in ledger.per_sample:
                    ledger.per_sample[stage] = flops_per_sample(engine, request)
                ledger.add_flops(training_flops(engine, request, ledger.per_sample[stage]))
