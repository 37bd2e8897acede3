"""The base of tasks: what a label may hold, what the network gives for it, the loss, and what a label counts as."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

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
    bin_word: ClassVar[str] = "bin"  # what a bin is called, ...
    bin_words: ClassVar[str] = "bins"  # ... several of them are, ...
    bins_are: ClassVar[str] = ""  # ... and what they are; empty: the classes
    of_classes: ClassVar[bool] = False  # a label is one class: `b.ce`, `b.one_hot` and `me.counts` exist

    @property
    def outputs(self) -> int:
        """Return how many numbers the network gives for a sample, or for each of its places."""
        return len(self.names)

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

    @abstractmethod
    def check(self, y: Tensor) -> str:
        """Return what is wrong with the labels of a data set; '' if nothing is."""

    def require_classes(self, what: str, remedy: str = f"methods that take it: {TAKE_ANY_TASK}") -> None:
        """Refuse what needs one class a sample, where labels are something else."""
        if not self.of_classes:
            raise ConfigError(f"{what} needs one class a sample, but the task is {self.kind}; {remedy}")

    def unequal_shares(self, y: Tensor) -> str:
        """Return why samples do not all have an equal share in the loss, as DP-SGD needs; '' if they have."""
        return f"the task is {self.kind}"

    def output_shape(self, label: torch.Size) -> tuple[int, ...]:
        """Return the shape of the network's output for a sample, from the shape of its label."""
        return (self.outputs,)

    def misfit(self, output: torch.Size, label: torch.Size, inputs: str) -> str:
        """Return what the network gives for a sample, what the data need and how to mend it, for an error.

        `label` is the shape of a sample's label, `inputs` how many the network's last layer has, as in code.
        """
        given, needed = ("x".join(map(str, shape)) for shape in (output, self.output_shape(label)))
        return (
            f"the network gives {given} {self.output_word} for a sample, but the data have {self.wanted}; it must "
            f"give {needed}: {self.remedy(inputs)}"
        )

    def remedy(self, inputs: str) -> str:
        """Return how to make a network's output fit, for an error."""
        return f"end it with nn.Linear({inputs}, {self.outputs}), or ask for the number, def __init__(self, outputs)"

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
