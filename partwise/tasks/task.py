"""The base of tasks: what a label may hold, what the network gives for it, the loss, and what a label counts as."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partwise.errors import ConfigError

TAKE_ANY_TASK = "local, fedavg, fedprox, ditto, fedper, fedrep, fedtc, fed3p2p, vanilla"  # some of the methods


@dataclass(frozen=True)
class Task(ABC):
    """What the label of a sample is, and what follows from it.

    Others ask for the kind only where numbers are standardised, answers are summed, or nodes report labels.
    """

    names: tuple[str, ...]  # of the classes, the labels or the numbers

    kind: ClassVar[str]  # as users write it: classes, labels, numbers or places
    title: ClassVar[str]  # of the names
    predicted: ClassVar[str]  # what a loaded model predicts
    output_word: ClassVar[str] = "numbers"  # what the network gives
    bin_word: ClassVar[str] = "bin"  # what a bin is called, ...
    bin_words: ClassVar[str] = "bins"  # ... several of them are, ...
    bins_are: ClassVar[str] = ""  # ... and what they are; empty: the classes
    of_classes: ClassVar[bool] = False  # a label is one class: `b.ce`, `b.one_hot` and `me.counts` exist
    at_places: ClassVar[bool] = False  # a label is a class for each place: a pixel, a step
    name_word: ClassVar[str] = "class"  # what a name is of
    every_name: ClassVar[bool] = False  # each data set has labels for all names
    result_names: ClassVar[tuple[str, ...]] = ("logits", "probabilities")  # what an exported model gives
    result_type: ClassVar[str] = "float32"  # of what it gives, in words

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

    # ---- what is predicted, from what the network gives: for classes, also those of places

    def probabilities(self, output: Tensor) -> Tensor:
        """Return (rows, classes, ...) the probability of each class."""
        return output.softmax(1)

    def predictions(self, output: Tensor) -> NDArray[Any]:
        """Return (rows, ...) the name of the most probable class."""
        return np.array(self.names)[self.probabilities(output).argmax(1).numpy()]

    def results(self, output: Tensor) -> tuple[Tensor, ...]:
        """Return what an exported model gives, in the order of `result_names`."""
        return output, self.probabilities(output)

    def columns(self, output: Tensor) -> dict[str, NDArray[Any]]:
        """Return the columns of a table of predictions, (rows,) each; none where they do not fit into a table."""
        return {}

    # ---- data that were read by themselves, of clients that join a run

    def strangeness(self, given: "Task") -> str:
        """Return what labels with a task of their own have that does not fit this task; '' if all fits."""
        if given.kind != self.kind:
            return f"labels that are {given.kind}, the run's are {self.kind}"
        strange = [f"the {self.name_word} '{name}'" for name in given.names if name not in self.names]
        lacks = [f"no {self.name_word} '{name}'" for name in self.names if self.every_name and name not in given.names]
        return f"{[*strange, *lacks][0]}; the run knows {', '.join(self.names)}" if strange or lacks else ""

    def loss(self, output: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        """Return the mean loss over everything that is known in the real rows of a mini-batch."""
        if output.dtype is torch.bfloat16:
            output = output.float()
        losses, known = self.losses(output, y)
        counted = known & mask.view(-1, *[1] * (known.dim() - 1))
        return torch.where(counted, losses, torch.zeros_like(losses)).sum() / counted.sum().clamp(min=1)
