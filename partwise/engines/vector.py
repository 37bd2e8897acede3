"""Blocks of clients in one kernel: every step of a block is one call under vmap."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch.func import vmap
from torch.utils._pytree import tree_map

from partwise.batches import Table
from partwise.client import Client, Common, Outcome, Rows, Work, client_job
from partwise.engines.engine import Engine, Tables
from partwise.updates import Order


class Vector(Engine):
    """Clients sorted by their number of steps, cut into blocks of at most `width`, and stepped in lockstep."""

    width: int | None = None  # None: all clients of an order in one block
    filler: int | None = None  # the sample in padded rows; None: each client's own first. No result depends on it.

    def blocks(self, order: Order, tables: dict[int, Tables]) -> Iterable[list[int]]:
        clients = sorted(order.clients, key=lambda client: (-tables[client].steps, client))
        width = self.width or max(1, len(clients))
        return (clients[start : start + width] for start in range(0, len(clients), width))

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
