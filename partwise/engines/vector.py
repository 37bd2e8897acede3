"""Blocks of clients in one kernel: every step of a block is one call under vmap."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.func import vmap
from torch.utils._pytree import tree_leaves, tree_map

from partwise.batches import Table
from partwise.client import Client, Common, Outcome, Rows, Work, client_job
from partwise.engines.engine import Engine, Tables
from partwise.errors import ConfigError
from partwise.updates import Order, Updates


class Vector(Engine):
    """Clients sorted by their number of steps, cut into blocks of at most `width`, and stepped in lockstep."""

    width: int | None = None  # None: all clients of an order in one block
    probed: set[int]  # the stages whose losses were seen to ignore padding
    filler: int | None = None  # the sample in padded rows; None: each client's own first. No result depends on it.

    def __init__(self, *arguments: Any, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self.probed = set()

    def blocks(self, order: Order, tables: dict[int, Tables]) -> Iterable[list[int]]:
        clients = sorted(order.clients, key=lambda client: (-tables[client].steps, client))
        width = self.width or max(1, len(clients))
        return (clients[start : start + width] for start in range(0, len(clients), width))

    def run(self, order: Order) -> Updates:
        if order.job == "train" and order.plan.number not in self.probed:
            self.probed.add(order.plan.number)
            self.check_padding(order)
        return super().run(order)

    def check_padding(self, order: Order) -> None:
        """Take a step of every phase with other samples in the padded rows: nothing may change."""
        client = order.clients[0]
        layout, common = self.layout(order, [client], {client: self.tables(order, client)})
        alone = tree_map(lambda tensor: tensor[0], layout)
        real = max(2, self.batch - 1)  # rows, as batch-norm needs two
        mine, others = (torch.tensor(sample, device=self.device) for sample in (self.train[client][0], len(self.y) - 1))
        for phase in order.plan.phases if real < self.batch else ():
            results = []
            for filler in (mine, others):
                index = torch.cat([mine.expand(real), filler.expand(self.batch - real)]).expand(phase.batches, -1)
                rows = {"index": index, "count": torch.tensor(real, device=self.device), "key": torch.zeros_like(mine)}
                with torch.no_grad():
                    results.append(tree_leaves(self.kernel.step(phase, alone, rows, common)))
            if not all(torch.equal(one.nan_to_num(), two.nan_to_num()) for one, two in zip(*results, strict=True)):
                raise ConfigError(
                    f"{type(self.kernel.method).__name__} looks at padded rows, so clients cannot run in blocks: take "
                    "means with b.mean or b.ce, use b.mask where rows meet, or run with --engine loop"
                )

    def execute(self, order: Order, client: Client, common: Common, tables: list[Tables]) -> Outcome:
        phases = self.phases(order)
        columns = [self.lockstep([table.phases[number] for table in tables]) for number in range(len(phases))]
        work = Work(
            list(zip(phases, columns, strict=True)),
            order.job == "train",
            self.lockstep([table.report for table in tables if table.report]),
            self.lockstep([table.predict for table in tables if table.predict]),
        )
        return client_job(self.kernel, client, common, work, vectorised)

    def lockstep(self, tables: Sequence[Table]) -> Iterator[Rows]:
        """The mini-batches of a block, step by step; a client that has finished has none (count 0)."""
        if not tables:
            return
        steps = max(table.steps for table in tables)
        index = torch.from_numpy(np.stack([self.padded(table.index, steps) for table in tables])).to(self.device)
        count = torch.from_numpy(np.stack([self.padded(table.count, steps, 0) for table in tables])).to(self.device)
        key = torch.from_numpy(np.stack([self.padded(table.key, steps, 0) for table in tables])).to(self.device)
        if self.filler is not None:
            padding = torch.arange(index.shape[-1], device=self.device) >= count[:, :, None, None]
            index = torch.where(padding, self.filler, index)
        for step in range(steps):
            yield {"index": index[:, step], "count": count[:, step], "key": key[:, step]}

    def padded(self, rows: np.ndarray, steps: int, value: int | None = None) -> np.ndarray:
        """An array of `steps` rows: after the last one, `value` or what the first one begins with."""
        if value is None:
            value = rows.flat[0] if rows.size else 0
        return np.concatenate([rows, np.full((steps - len(rows), *rows.shape[1:]), value, dtype=rows.dtype)])


def vectorised(function: Callable, stays: tuple[str, ...] = ()) -> Callable:
    """A function of one client over a block; an idle client keeps what `stays`, or adds nothing."""

    def guarded(client: Client, rows: Rows, common: Common) -> Client:
        new = function(client, rows, common)
        if "count" not in rows:
            return new
        active = rows["count"] > 0
        old = {name: client[name] for name in stays} if stays else tree_map(torch.zeros_like, new)
        return tree_map(lambda after, before: torch.where(active, after, before), new, old)

    return vmap(guarded, in_dims=(0, 0, None))
