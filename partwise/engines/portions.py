"""Divide independent work into portions as large as memory allows."""

from collections.abc import Hashable, Iterator

import torch

from partwise.devices import free_memory

PORTION_SHARE = 0.3  # of a GPU's free memory for one portion
PORTION_BYTES = 2**33  # for one portion at most: a larger one is no faster


class Portions:
    """Cuts lists of items into portions: on a GPU the first tells how much memory an item takes."""

    def __init__(self, device: torch.device):
        self.device = device
        self.bytes: dict[Hashable, int] = {}  # that an item of each kind of work takes for a while

    def of(self, work: Hashable, items: int, few: int) -> "Iterator[slice[int, int, None]]":
        """Yield spans of items: `few` on a CPU and at first, then as many as fit into a GPU's free memory.

        The caller works on each span before it requests the next: the first one is measured.
        """
        begin = 0
        while begin < items:
            end = min(items, begin + self.size(work, few))
            if self.device.type == "cpu" or work in self.bytes:
                yield slice(begin, end)
            else:
                torch.cuda.reset_peak_memory_stats(self.device)
                before = torch.cuda.memory_allocated(self.device)
                yield slice(begin, end)
                taken = torch.cuda.max_memory_allocated(self.device) - before
                self.bytes[work] = max(1, taken // (end - begin))
            begin = end

    def forget(self) -> None:
        """Start small again: other work may have the same name, or memory did not suffice."""
        self.bytes = {}

    def size(self, work: Hashable, few: int) -> int:
        """Return how many items the next portion has."""
        if work not in self.bytes:
            return few
        room = min(PORTION_BYTES, int(PORTION_SHARE * free_memory(self.device)))
        return max(few, room // self.bytes[work])
