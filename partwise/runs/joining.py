"""Models for clients that did not train, made from the models of the others.

A newcomer downloads what every client downloads. Where clients are in groups it gets the copy of the group whose model
has the lowest loss on its training samples, while it is fine-tuned on them; where the server mixes a copy for each
client, the mean of them all. Then it trains as clients do in the run's last stage, for some rounds, and nothing of that
is mixed: what is shared stays as it is, what is a client's own is learned. What it takes away is adapted in the
method's own way or, where nothing is a client's own, fine-tuned.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from partwise.engines.client_engine import ClientEngine
from partwise.rounds.learning_rate import rate_factor
from partwise.rounds.messages import Job, Request, Updates
from partwise.rounds.plan import Plan
from partwise.rounds.server import Server

if TYPE_CHECKING:
    from partwise.rounds.mixing import Copies


class Joining:
    """Newcomers, by their numbers, and the run that they join after its last round."""

    def __init__(self, server: Server, engine: ClientEngine, clients: Sequence[int]):
        self.server, self.engine, self.clients = server, engine, list(clients)

    def join(self, rounds: int) -> tuple[Request, Updates]:
        """Let them join; return the last request, and what they answer to it: predictions and models."""
        self.take_mean_copies()
        self.take_groups()
        for number in range(rounds if keeps_something(self.engine, self.server.plan) else 0):
            request = self.server.request("train", self.clients)
            rate = self.rate(request, number, rounds)
            self.engine.run(replace(request, round=request.round + number, rate=rate, evaluate=False))
            self.server.times[self.clients] += 1
        request = self.server.request(last_job(self.engine, self.server.plan), self.clients, evaluate=True, models=True)
        return request, self.engine.run(request)

    def rate(self, request: Request, number: int, rounds: int) -> float:
        """Return the factor on learning rates in a newcomer's round; a schedule that is over begins again for it."""
        method = self.server.method
        return request.rate if method.lr_schedule == "constant" else rate_factor(method, number, rounds)

    def take_mean_copies(self) -> None:
        """Give newcomers the mean of what the server mixes for each client."""
        others = torch.ones(self.server.clients, dtype=torch.bool)
        others[self.clients] = False
        for name in self.copied("mix"):
            values = self.server.copies[name].values.clone()
            values[self.clients] = values[others.to(values.device)].mean(0)
            self.server.copies[name] = replace(self.server.copies[name], values=values)

    def take_groups(self) -> None:
        """Let every newcomer be in the group whose model has the lowest loss on its training samples."""
        names = self.copied("group")
        if not names:
            return
        groups = torch.arange(len(self.server.copies[names[0]].values))
        losses = torch.stack([self.loss_in(names, group) for group in groups])  # (groups, newcomers)
        self.enter_groups(names, groups[losses.nan_to_num(torch.inf).argmin(0)])

    def loss_in(self, names: Sequence[str], group: Tensor) -> Tensor:
        """Return (newcomers,) the mean loss of fine-tuning a copy of a group's model on their training samples."""
        self.enter_groups(names, group.expand(len(self.clients)))
        return self.engine.run(self.server.request("finetune", self.clients)).loss.cpu()

    def enter_groups(self, names: Sequence[str], groups: Tensor) -> None:
        """Let newcomers have the copies of these groups, one each."""
        for name in names:
            copies: Copies = self.server.copies[name]
            assert copies.row is not None
            row = copies.row.clone()
            row[self.clients] = groups
            self.server.copies[name] = replace(copies, row=row)

    def copied(self, of: str) -> list[str]:
        """Return the tensors with a copy for each group, or for each client."""
        return [name for name, share in self.server.plan.share.items() if share.copy == of]


def keeps_something(engine: ClientEngine, plan: Plan) -> bool:
    """Return whether clients keep something from round to round."""
    return bool(plan.own or engine.store.keep)


def last_job(engine: ClientEngine, plan: Plan) -> Job:
    """Return the last job of a newcomer's model."""
    if engine.drawing.adapt_phases:
        return "adapt"
    return "predict" if keeps_something(engine, plan) else "finetune"


def how_to_join(engine: ClientEngine, plan: Plan, rounds: int) -> str:
    """Return a line about how clients join a run."""
    own = sorted({name.split(".")[0] for name in plan.own})
    kinds = {share.copy for share in plan.share.values()}
    words = [
        "gets the copy of the group that fits its samples best" if "group" in kinds else "gets what all clients get"
    ]
    if "mix" in kinds:
        words.append("the mean of what others get for themselves")
    if keeps_something(engine, plan):
        trained = f"its own {', '.join(own)}" if own else "what it remembers"
        words.append(f"trains {rounds} rounds for {trained}")
    job = last_job(engine, plan)
    words += {"adapt": ["is adapted in the method's own way"], "finetune": ["is fine-tuned"], "predict": []}[job]
    return ", ".join(words)
