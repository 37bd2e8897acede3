"""Safeguards of the server against wrong updates, failing clients and means over too few clients."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from partwise.errors import PartwiseError
from partwise.rounds.acceptance import Outliers
from partwise.rounds.failures import PlayedFailures
from partwise.rounds.robust import RobustMean


class TooFew(PartwiseError):
    """Too few clients answered: the round is skipped, and the run continues."""


@dataclass(frozen=True)
class Safeguards:
    """How the server treats wrong updates and failing clients, and which failures are simulated."""

    robust: RobustMean | None = None  # in place of means
    outliers: Outliers = field(default_factory=Outliers)
    failures: PlayedFailures = field(default_factory=PlayedFailures)
    min_clients: int = 1  # usable updates, below which a round is skipped and a group keeps its copy
    min_silos: int = 1  # the same of silos: the largest `min_clients` that one of them demands
    silos: Sequence[str] = ()  # (clients,) the silo of each client; empty: there are no silos
    most_samples: int | None = None  # that a silo counts in a mean; None: all that it registered

    @property
    def need_several(self) -> bool:
        """Return whether a mean over one client alone is refused."""
        return max(self.min_clients, self.min_silos) > 1

    def shortage(self, clients: Sequence[int]) -> str:
        """Return why a mean over these clients' updates is not allowed; empty: it is."""
        if len(clients) < self.min_clients:
            return f"min_clients = {self.min_clients}"
        silos = len({self.silos[client] for client in clients}) if self.silos else len(clients)
        if silos < self.min_silos:
            return f"they come from {silos} silo{'s' * (silos != 1)}, and a silo demands min_clients = {self.min_silos}"
        return ""

    def emptied(self, matrix: Tensor, clients: Sequence[int]) -> tuple[Tensor, list[str]]:
        """Return a mixing matrix with the rows of means over too few clients set to 0, and a line for each of them."""
        result, lines = matrix.clone(), []
        for row, weights in enumerate(matrix):
            among = [clients[column] for column in weights.nonzero()[:, 0].tolist()]
            if among and (why := self.shortage(among)):
                result[row] = 0
                whose = f"group {row} keeps its copy" if len(matrix) > 1 else "the copy for all stays as it is"
                lines.append(f"{whose}: {len(among)} of {len(clients)} updates can be used for it, {why}")
        return result, lines

    def over_enough(
        self, matrices: dict[str, Tensor], means: Iterable[str], clients: Sequence[int]
    ) -> tuple[dict[str, Tensor], list[str]]:
        """Return the matrices with the rows of means over too few clients set to 0, and a line for each of these rows.

        `means` are the tensors whose matrices are means: a mix for one client alone is not one.
        """
        different = {id(matrices[name]): matrices[name] for name in means}  # many tensors have one in common
        emptied = {number: self.emptied(matrix, clients) for number, matrix in different.items()}
        kept = dict.fromkeys(line for _, lines in emptied.values() for line in lines)
        return matrices | {name: emptied[id(matrices[name])][0] for name in means}, list(kept)

    def capped(self, samples: Tensor, clients: Sequence[int]) -> Tensor:
        """Return (clients,) the samples each counts in a mean; a silo's together count at most `most_samples`.

        A silo's clients keep their proportions, so that a mean which a node made of its own clients stays right.
        """
        if self.most_samples is None:
            return samples
        number = {silo: place for place, silo in enumerate(dict.fromkeys(self.silos))}
        silo = torch.tensor([number[self.silos[client]] for client in clients], dtype=torch.long)
        total = samples.new_zeros(len(number)).index_add_(0, silo, samples)
        return samples * (self.most_samples / total.clamp(min=self.most_samples))[silo]
