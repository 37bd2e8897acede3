"""The personal state of clients: a row from the first participation on, until then a common initial state.

Every tensor has a sheet with a row for each client that took part, so that a block of clients is read and written at
once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partwise.devices import on_device
from partwise.engines.store_memory import StoreMemory, copied_to_host
from partwise.network.parts import Parts
from partwise.network.view import Tensors
from partwise.rounds.mixing import Copies
from partwise.rounds.state import OptimizerState

SMALLEST_SHEET = 16  # that a sheet has; when they are full, it doubles

Key = tuple[str, ...]  # ("own", tensor), ("keep", name) or ("optimizer_state", tensor, name), where it persists
ClientNumbers = Sequence[int] | NDArray[np.int64]
Rows = dict[Key, tuple[NDArray[np.int64], Tensor]]  # who has such a tensor of its own, and (those, ...) what


@dataclass
class Sheet:
    """One tensor of many clients."""

    values: Tensor  # (rows, ...)
    filled: NDArray[np.bool_]  # (rows,) whether the client of a row has a value of its own


@dataclass(frozen=True)
class StoreState:
    """The state of a store beside the rows of clients."""

    initial: dict[str, Copies]  # what clients start from
    fresh: dict[str, int]
    known: NDArray[np.int64]  # the clients that took part, in the order in which they first did
    steps: NDArray[np.int64]  # (clients,)


class Store:
    """The tensors that clients keep between rounds, and those that a client without a row starts from."""

    def __init__(self, initial: dict[str, Copies], keep: Tensors, parts: Parts, seed: int, clients: int):
        self.initial = dict(initial)
        self.keep = keep
        self.parts, self.seed = parts, seed
        self.fresh: dict[str, int] = {}  # tensors drawn anew, one draw a client: the stage in which that was last done
        self.sheets: dict[Key, Sheet] = {}
        self.row = np.full(clients, -1)  # of a client in every sheet; -1: it never took part
        self.changed = np.zeros(clients, np.bool_)  # clients whose rows differ from those in the last checkpoint
        self.steps = np.zeros(clients, np.int64)  # that a client took in all its rounds
        self.rows = 0  # that are taken
        self.version = 0  # another number whenever what clients hold has changed
        self.device = next(iter(initial.values())).values.device
        self.memory = StoreMemory(self.device)

    def enter(self, handed: dict[str, Copies], fresh: Sequence[str], stage: int) -> None:
        """Enter a stage: parts that become the client's own start from the last server copy; draw `fresh` anew."""
        self.version += 1
        self.initial.update(handed)
        left = {*handed, *fresh}
        if any(key[0] != "keep" and key[1] in left for key in self.sheets):
            self.changed = self.row >= 0
        self.sheets = {key: sheet for key, sheet in self.sheets.items() if key[0] == "keep" or key[1] not in left}
        self.fresh = {name: last for name, last in self.fresh.items() if name not in left} | dict.fromkeys(fresh, stage)

    # ---- reading

    def own(self, client: int, names: Sequence[str]) -> Tensors:
        """Return a client's own tensors."""
        return {name: rows[0] for name, rows in self.stacked([client], names).items()}

    def stacked(self, clients: ClientNumbers, names: Sequence[str]) -> Tensors:
        """Return (clients, ...) the own tensors of several clients."""
        result = {name: self.read(("own", name), clients, self.initial[name].of(clients)) for name in names}
        for stage in set(self.fresh.values()):  # drawn when it is asked for: a client that never comes costs nothing
            drawn = [name for name in names if self.fresh.get(name) == stage]
            empty = {name: ~self.filled(("own", name), clients) for name in drawn}
            for place in np.flatnonzero(np.any([*empty.values()], 0)) if drawn else ():
                values = self.parts.draw(drawn, self.seed, "fresh", stage, "client", clients[int(place)])
                for name in drawn:
                    if empty[name][place]:
                        result[name][place] = values[name]
        return result

    def remembered(self, clients: ClientNumbers) -> Tensors:
        """Return (clients, ...) the memory of several clients."""
        everybody = {name: value.expand(len(clients), *value.shape) for name, value in self.keep.items()}
        return {name: self.read(("keep", name), clients, value) for name, value in everybody.items()}

    def optimizer_state(self, clients: ClientNumbers, empty: OptimizerState) -> OptimizerState:
        """Return (clients, ...) the optimiser states of several clients; `empty` is the initial one."""
        return {
            name: {key: self.read(("optimizer_state", name, key), clients, value) for key, value in state.items()}
            for name, state in empty.items()
        }

    def stepped(self, clients: Any) -> Any:
        """Return whether a client, or each of several, ever took a step."""
        return self.steps[clients] > 0

    def rows_of(self, clients: ClientNumbers) -> NDArray[np.int64]:
        """Return (clients,) their rows in every sheet."""
        return self.row[np.asarray(clients, np.int64)]

    def filled(self, key: Key, clients: ClientNumbers) -> NDArray[np.bool_]:
        """Return (clients,) whether they have a value of their own."""
        rows, sheet = self.rows_of(clients), self.sheets.get(key)
        if sheet is None:
            return np.zeros(len(rows), np.bool_)
        known = (rows >= 0) & (rows < len(sheet.filled))  # a sheet that is not written any more does not grow
        return known & sheet.filled[np.where(known, rows, 0)]

    def read(self, key: Key, clients: ClientNumbers, start: Tensor) -> Tensor:
        """Return (clients, ...) a copy of each client's row, or else of `start`'s."""
        filled = self.filled(key, clients)
        if not filled.any():
            return start.clone(memory_format=torch.contiguous_format)
        values, rows = self.sheets[key].values, torch.from_numpy(self.rows_of(clients)[filled])
        if values.device == self.device:
            found = values.index_select(0, on_device(rows, self.device))
        else:
            found = torch.empty(len(rows), *values.shape[1:], dtype=values.dtype, pin_memory=True)
            found = torch.index_select(values, 0, rows, out=found).to(self.device, non_blocking=True)
        if filled.all():
            return found
        places = on_device(torch.from_numpy(np.flatnonzero(filled)), self.device)
        return start.to(found.dtype).index_copy(0, places, found)

    # ---- writing

    def save(self, clients: ClientNumbers, brought: dict[Key, Tensor], steps: Sequence[int]) -> None:
        """Keep what some clients have after a round, a row for each; tensors that are not given stay as they were.

        Where memory does not suffice, nothing has changed: what needs some comes first.
        """
        clients = np.asarray(clients)
        new = clients[self.row[clients] < 0]
        self.make_room(brought, self.rows + len(new))
        sheets = {key: self.sheets[key] for key in brought}
        away = {key: brought[key] for key, sheet in sheets.items() if sheet.values.device != self.device}
        arrived = copied_to_host(away)
        self.version += 1
        self.row[new] = np.arange(self.rows, self.rows + len(new))
        self.rows += len(new)
        self.steps[clients] += steps
        self.changed[clients] = True
        rows = torch.from_numpy(self.row[clients])
        here = on_device(rows, self.device)
        for key, sheet in sheets.items():
            sheet.values.index_copy_(0, rows if key in away else here, arrived.get(key, brought[key]).detach())
            sheet.filled[rows] = True

    def make_room(self, brought: dict[Key, Tensor], rows: int) -> None:
        """Enlarge the sheets to at least this many rows."""
        for key, value in brought.items():
            if key not in self.sheets:
                self.sheets[key] = Sheet(value.new_empty(0, *value.shape[1:]), np.zeros(0, np.bool_))
        for key in brought:
            capacity = max(SMALLEST_SHEET, len(self.sheets[key].filled))
            while capacity < rows:
                capacity *= 2
            capacity = min(capacity, len(self.row))
            if capacity > len(self.sheets[key].filled):
                self.sheets[key] = self.copied(self.sheets[key], capacity)

    def copied(self, sheet: Sheet, capacity: int) -> Sheet:
        """Copy the rows into a larger sheet."""
        held = min(len(sheet.filled), self.rows)
        each = sum(sheet.values.shape[1:].numel() * sheet.values.element_size() for sheet in self.sheets.values())
        values = self.memory.empty(capacity, sheet.values, each, len(self.row))
        filled = np.zeros(capacity, np.bool_)
        values[:held] = sheet.values[:held]
        filled[:held] = sheet.filled[:held]
        return Sheet(values, filled)

    # ---- all of it

    def snapshot(self) -> Any:
        """Return what all clients hold now, for `go_back` within the same stage."""
        sheets = {key: self.copied(sheet, len(sheet.filled)) for key, sheet in self.sheets.items()}
        return sheets, self.row.copy(), self.steps.copy(), self.rows

    def go_back(self, snapshot: Any) -> None:
        """Restore what all clients held at a snapshot."""
        self.sheets, self.row, self.steps, self.rows = snapshot
        self.changed = self.row >= 0
        self.version += 1

    # ---- checkpoints

    def state(self, own: Iterable[str]) -> StoreState:
        """Return the state beside the rows, for `restore`; `own` are the tensors that clients ever own.

        What they start from is among it: a network that was handed in may be another in the next process.
        """
        return StoreState({name: self.initial[name] for name in own}, self.fresh, known_of(self.row), self.steps)

    def restore(self, state: StoreState, rows: Iterable[Rows]) -> None:
        """Restore the state of a checkpoint, and the rows of all clients."""
        self.initial |= state.initial
        self.fresh = state.fresh
        self.take(state.known, state.steps, rows)
        self.saved()

    def take(self, known: NDArray[np.int64], steps: NDArray[np.int64], rows: Iterable[Rows]) -> None:
        """Hold these rows and no others; where a client has several, the last one counts."""
        self.sheets, self.row, self.rows = {}, np.full_like(self.row, -1), len(known)
        self.row[known] = np.arange(self.rows)
        for piece in rows:
            for key, (clients, values) in piece.items():
                self.save(clients, {key: values.to(self.device)}, [0] * len(clients))
        self.steps = steps.copy()

    def saved(self) -> None:
        """Note that a checkpoint has all rows as they are now."""
        self.changed = np.zeros_like(self.changed)


def known_of(row: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the clients that took part, in the order in which they first did."""
    known = np.flatnonzero(row >= 0)
    return known[np.argsort(row[known])]


def rows_of(sheets: dict[Key, Sheet], row: NDArray[np.int64], clients: NDArray[np.int64]) -> Rows:
    """Return the rows of some clients, on the host."""
    found = {}
    for key, sheet in sheets.items():
        known = row[clients] < len(sheet.filled)
        known[known] = sheet.filled[row[clients[known]]]
        if known.any():
            rows = torch.from_numpy(row[clients[known]]).to(sheet.values.device)
            found[key] = clients[known], sheet.values.index_select(0, rows).cpu()
    return found
