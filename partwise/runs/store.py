"""The personal state of clients: an entry after the first participation, until then what everybody starts from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch.utils._pytree import tree_map

from partwise.net import Tensors
from partwise.parts import Parts
from partwise.updates import Copies


@dataclass
class Entry:
    """What one client keeps between rounds."""

    own: Tensors = field(default_factory=dict)
    keep: Tensors = field(default_factory=dict)
    slots: dict[str, Tensors] = field(default_factory=dict)  # the optimiser's, where they persist
    steps: int = 0  # that it took in all its rounds


class Store:
    """The entries of all clients, and what a client without an entry starts from."""

    def __init__(self, initial: dict[str, Copies], keep: Tensors, parts: Parts, seed: int):
        self.entries: dict[int, Entry] = {}
        self.initial = dict(initial)
        self.keep = keep
        self.parts, self.seed = parts, seed
        self.fresh: dict[str, int] = {}  # tensors drawn anew, one draw a client: the stage in which that was last done

    def enter(self, handed: dict[str, Copies], fresh: Sequence[str], stage: int) -> None:
        """A new stage: what becomes the client's own starts from the last server copy; `fresh` is drawn anew."""
        self.initial.update(handed)
        left = {*handed, *fresh}
        for entry in self.entries.values():
            entry.own = {name: value for name, value in entry.own.items() if name not in left}
            entry.slots = {name: value for name, value in entry.slots.items() if name not in left}
        self.fresh = {name: last for name, last in self.fresh.items() if name not in left} | dict.fromkeys(fresh, stage)

    def own(self, client: int, names: Sequence[str]) -> Tensors:
        """A client's own tensors."""
        held = dict(self.entries[client].own) if client in self.entries else {}
        missing = [name for name in names if name not in held]
        held |= {name: self.initial[name].of([client])[0] for name in missing if name not in self.fresh}
        for stage in set(self.fresh.values()):  # drawn when it is asked for: a client that never comes costs nothing
            drawn = [name for name in missing if self.fresh.get(name) == stage]
            values = self.parts.draw(drawn, self.seed, "fresh", stage, "client", client)
            held |= {name: value.to(self.initial[name].values) for name, value in values.items()}
        return {name: held[name] for name in names}

    def stacked(self, clients: Sequence[int], names: Sequence[str]) -> Tensors:
        """(clients, ...) the own tensors of several clients."""
        rows = [self.own(client, names) for client in clients]
        return {name: torch.stack([row[name] for row in rows]) for name in names}

    def remembered(self, clients: Sequence[int]) -> Tensors:
        """(clients, ...) what several clients remember."""
        rows = [self.entries[client].keep if client in self.entries else self.keep for client in clients]
        return {name: torch.stack([row[name] for row in rows]) for name in self.keep}

    def slots(self, client: int) -> dict[str, Tensors]:
        """What a client's optimiser remembers."""
        return self.entries[client].slots if client in self.entries else {}

    def save(self, client: int, entry: Entry) -> None:
        """Keep what a client has after a round; what it does not bring stays as it was."""
        before = self.entries.get(client, Entry())
        own, slots = {**before.own, **entry.own}, {**before.slots, **entry.slots}
        own, keep, slots = tree_map(lambda tensor: tensor.detach().clone(), (own, entry.keep, slots))  # of no block
        self.entries[client] = Entry(own, keep, slots, before.steps + entry.steps)

    def average(self, names: Sequence[str], weights: Mapping[int, float]) -> Tensors:
        """The weighted mean of some clients' own tensors."""
        total = sum(weights.values())
        result: Tensors = {}
        for client, weight in weights.items():
            for name, value in self.own(client, names).items():
                result[name] = result.get(name, torch.zeros_like(value)) + value * (weight / total)
        return result

    def stepped(self, client: int) -> bool:
        """Whether a client ever took a step."""
        return client in self.entries and self.entries[client].steps > 0
