"""One client after another: the reference that every other engine must equal."""

from collections.abc import Iterable

import torch
from torch.utils._pytree import tree_map

from partwise.client import Client, Common, Outcome, Work, client_job
from partwise.engines.engine import Engine, Tables, cut
from partwise.updates import Order


class Loop(Engine):
    """Clients one at a time, their mini-batches as they are, without padding."""

    def blocks(self, order: Order, tables: dict[int, Tables]) -> Iterable[list[int]]:
        return ([client] for client in order.clients)

    def execute(self, order: Order, client: Client, common: Common, tables: list[Tables]) -> Outcome:
        (table,) = tables
        work = Work(
            [(phase, cut(rows, self.device)) for phase, rows in zip(self.phases(order), table.phases, strict=True)],
            order.job == "train",
            cut(table.report, self.device) if table.report else (),
            cut(table.predict, self.device) if table.predict else (),
            order.plan.predict,
        )
        outcome = client_job(self.kernel, tree_map(lambda tensor: tensor[0], client), common, work)
        logits = [torch.cat(outcome.logits)] if outcome.logits else []
        alone = {"own": outcome.own, "keep": outcome.keep, "slots": outcome.slots, "extras": outcome.extras}
        rows = tree_map(lambda tensor: tensor[None], {**alone, "loss": outcome.loss, "logits": logits})
        return Outcome(**rows)
