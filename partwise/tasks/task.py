"""The base of tasks: what a label may hold, what the network gives for it, the loss, and what a label counts as."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from partwise.errors import ConfigError

TAKE_ANY_TASK = "local, fedavg, fedprox, ditto, fedper, fedrep, fedtc, fed3p2p, vanilla"  # some of the methods


@dataclass(frozen=True)
class Task(ABC):
    """What the label of a sample is, and what follows from it. Nothing else in partwise asks for the kind of task."""

    names: tuple[str, ...]  # of the classes, the labels or the numbers

    kind: ClassVar[str]  # as users write it: classes, labels, numbers or places
    output_word: ClassVar[str] = "numbers"  # what the network gives
    of_classes: ClassVar[bool] = False  # a label is one class: `b.ce`, `b.one_hot` and `me.counts` exist

    @property
    def outputs(self) -> int:
        """Return how many numbers the network gives for a sample, or for each of its places."""
        return len(self.names)

    @classmethod
    def of_names(cls, names: tuple[str, ...]) -> Self:
        """Return the task of which the names alone are known: several owners' labels have them in common."""
        return cls(names)

    def with_edges(self, edges: tuple[float, ...]) -> Self:
        """Return the task with these edges of bins; refused where labels are no numbers."""
        raise ConfigError(f"bins are edges between numbers, but the task is {self.kind}; leave out bins")

    @property
    @abstractmethod
    def bins(self) -> int:
        """Return how many bins there are."""

    @property
    def bin_names(self) -> tuple[str, ...]:
        """Return the name of each bin."""
        return self.names

    @abstractmethod
    def binned(self, y: Tensor) -> Tensor:
        """Return (samples,) int64: the bin that each label counts as where data are partitioned or clients grouped."""

    @property
    def bins_wanted(self) -> str:
        """Return what a run must say so that labels have bins; '' where they have some."""
        return ""

    def require_bins(self, what: str) -> None:
        """Refuse what needs bins, where nobody has said which there are."""
        if self.bins_wanted:
            raise ConfigError(f"{what} needs bins of the labels: {self.bins_wanted}")

    @abstractmethod
    def known(self, y: Tensor) -> Tensor:
        """Return (samples, labels) which labels of a sample are known."""

    def weight(self, y: Tensor) -> int:
        """Return how many labels are known: what a mean over several owners' samples weighs them by."""
        return int(self.known(y).sum())

    def enough_known(self, y: Tensor, fewest: int) -> bool:
        """Return whether each label is known in `fewest` samples or in none, and one of them is known."""
        counts = self.known(y).sum(0)
        return bool(((counts == 0) | (counts >= fewest)).all() and counts.max() >= fewest)

    @abstractmethod
    def stand_ins(self, samples: int, places: Sequence[int]) -> Tensor:
        """Return made-up labels, where the real ones are elsewhere; `places` is the shape of a sample's places."""

    @abstractmethod
    def check(self, y: Tensor) -> str:
        """Return what is wrong with the labels of a data set; '' if nothing is."""

    def require_classes(self, what: str) -> None:
        """Refuse what needs one class a sample, where labels are something else."""
        if not self.of_classes:
            raise ConfigError(
                f"{what} needs one class a sample, but the task is {self.kind}; methods that take it: {TAKE_ANY_TASK}"
            )

    def output_shape(self, label: torch.Size) -> tuple[int, ...]:
        """Return the shape of the network's output for a sample, from the shape of its label."""
        return (self.outputs,)

    def misfit(self, output: tuple[int, ...]) -> str:
        """Return what the network gives for a sample and what the data need, for an error."""
        given = "x".join(map(str, output))
        return f"the network gives {given} {self.output_word} for a sample, but the data have {self.wanted}"

    @property
    @abstractmethod
    def wanted(self) -> str:
        """Return what the data need of the network's output, for an error."""

    @abstractmethod
    def losses(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each label that a row holds, and which of them are known: (rows, ...) both."""

    def loss(self, output: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Return the mean loss over everything that is known in the real rows of a mini-batch."""
        if output.dtype is torch.bfloat16:
            output = output.float()
        losses, known = self.losses(output, y)
        counted = known & mask.view(-1, *[1] * (known.dim() - 1))
        return torch.where(counted, losses, torch.zeros_like(losses)).sum() / counted.sum().clamp(min=1)
