"""Count the bytes down and up of each part; one-off transfers are counted apart, evaluation is not counted."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from partwise.method import FROZEN
from partwise.network.view import ClassRows, PerClient
from partwise.privacy.histograms import INTEGER
from partwise.rounds.messages import METHOD_JOBS, Request, Updates
from partwise.rounds.plan import Plan
from partwise.rounds.server_state import ByteCounts, LedgerState, RoundByteCounts
from partwise.trees import Samples, tensors_of


class Ledger:
    """The bytes of every round, the bytes of one-off transfers, and the operations of training."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.sizes = {name: value.numel() * value.element_size() for name, value in tensors.items()}
        self.rounds: list[RoundByteCounts] = []
        self.once = ByteCounts()
        self.current: ByteCounts = self.once  # where bytes are counted now: a round, or what is sent once
        self.visited: dict[int, int] = {}  # the last stage in which a client took part
        self.flops = 0.0
        self.per_sample: dict[int, list[float]] = {}  # operations in each phase, by stage: measured once
        self.changed: dict[int, list[str]] = {}  # by stage: what a client has to fetch once as it enters

    def begin(self, round: int, participants: int) -> None:
        """Begin a round; the server counts from 0, files for people from 1."""
        self.rounds.append(RoundByteCounts(round=round + 1, participants=participants))
        self.current = self.rounds[-1]

    def end(self) -> None:
        """End the last round; later transfers count as one-off."""
        self.current = self.once

    def add_flops(self, number: float) -> None:
        """Add the operations of local training."""
        self.flops += number

    def enter(self, plan: Plan, before: Plan | None) -> None:
        """Begin a stage: note what its clients hold beside each round's download."""
        self.changed[plan.number] = [
            name
            for name, share in plan.share.items()
            if before is not None
            and ((share == FROZEN and before.share[name] != FROZEN) or (not share.adopt and before.share[name].adopt))
            and name not in plan.fresh
        ]

    def count(self, request: Request, updates: Updates, sent: Mapping[str, int] | None = None) -> None:
        """Count a request and its answers; to describe their samples, clients need no network.

        `sent` are the bytes up by part and extra, where filters made something else of what came back.
        """
        if request.job not in METHOD_JOBS:
            return
        to, plan, network = self.current, request.plan, request.job != "describe"
        for client in request.clients if network else ():
            self.count_once(plan, client)
        for name in plan.down if network else ():
            if request.job == "train" or plan.share[name].adopt:  # a report is made on the newest copies
                to.down[name.split(".")[0]] += self.sizes[name] * len(request.clients)
        if sent is None and request.job == "train":
            for name in updates.parts:
                to.up[name.split(".")[0]] += self.sizes[name] * len(updates.clients)
        for name, value in request.extras.items():
            copies = 1 if isinstance(value, PerClient) else len(request.clients)
            to.down[name] += wire_bytes(value.rows if isinstance(value, PerClient) else value) * copies
        for name, extra in updates.extras.items() if sent is None else ():
            to.up[name] += wire_bytes(extra)
        to.up.update(sent or {})

    def count_samples(self, x: Samples, samples: int) -> None:
        """Count samples and labels that are pooled in one place before the first round."""
        self.once.up["samples"] += samples * (
            sum(own[0].numel() * own.element_size() for own in tensors_of(x)) + INTEGER
        )

    def count_once(self, plan: Plan, client: int) -> None:
        """Count what a client receives once, at its first visit in a stage."""
        last = self.visited.get(client)
        if last == plan.number:
            return
        if last is None:
            names = [name for name, share in plan.share.items() if not share.sent or not share.adopt]
            names = [name for name in names if name not in plan.fresh]
        else:
            names = [name for stage in range(last + 1, plan.number + 1) for name in self.changed[stage]]
        for name in dict.fromkeys(names):
            self.once.down[name.split(".")[0]] += self.sizes[name]
        self.visited[client] = plan.number

    def state(self) -> LedgerState:
        """Return the counts, for a checkpoint."""
        return LedgerState(self.rounds, self.once, self.visited, self.flops, self.per_sample, self.changed)

    def restore(self, state: LedgerState) -> None:
        """Restore the counts of a checkpoint."""
        self.rounds, self.once, self.visited = state.rounds, state.once, state.visited
        self.flops, self.per_sample, self.changed = state.flops, state.per_sample, state.changed

    def as_dict(self) -> dict[str, Any]:
        """Return the content of ledger.json."""
        total = ByteCounts()
        for row in self.rounds:
            total.down.update(row.down)
            total.up.update(row.up)
        return {
            "unit": "bytes",
            "total": by_direction(total),
            "once": by_direction(self.once),
            "training_flops": self.flops,
            "rounds": [
                {"round": row.round, "participants": row.participants, **by_direction(row)} for row in self.rounds
            ],
        }


def by_direction(counts: ByteCounts) -> dict[str, dict[str, int]]:
    """Return counts as ledger.json has them."""
    return {"down": dict(counts.down), "up": dict(counts.up)}


def wire_bytes(value: Any) -> int:
    """Return the bytes of an extra as it is sent. Class rows travel only with a count: mean, label and count."""
    if isinstance(value, ClassRows):
        rows = int(torch.count_nonzero(value.counts))
        return rows * (value.sums.shape[-1] * value.sums.element_size() + 2 * INTEGER)
    if isinstance(value, dict | list | tuple):
        return sum(map(wire_bytes, value.values() if isinstance(value, dict) else value))
    return value.numel() * (value.element_size() if value.is_floating_point() else INTEGER)
