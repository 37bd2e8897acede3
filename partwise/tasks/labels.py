"""Several labels at once, each yes, no or unknown, such as diagnoses."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from partwise.tasks.task import Task

EVERY_PATTERN = 5  # labels of which all patterns are bins; those of more labels are chosen by the data
PATTERNS = 50  # of more labels the most frequent patterns are bins of their own; the others are one more


@dataclass(frozen=True)
class Labels(Task):
    """A label is a row of zeros and ones: (samples, labels) float64, NaN where one is unknown.

    The network gives a logit for each; the loss is sigmoid cross-entropy.
    """

    patterns: tuple[tuple[int, ...], ...] = ()  # the bins: rows of labels, -1 where one is unknown

    kind: ClassVar[str] = "labels"
    bin_word: ClassVar[str] = "pattern"
    bin_words: ClassVar[str] = "patterns"
    bins_are: ClassVar[str] = "the labels that a sample has, with ? where unknown; rare ones are together"
    title: ClassVar[str] = "Labels"
    predicted: ClassVar[str] = "1 or 0 for each label; predict_proba: probabilities"
    output_word: ClassVar[str] = "logits"
    name_word: ClassVar[str] = "label"
    every_name: ClassVar[bool] = True

    @classmethod
    def of(cls, y: Tensor, names: tuple[str, ...]) -> "Labels":
        """Return the task of these labels, with a bin for each pattern, or of many labels for the most frequent."""
        if len(names) <= EVERY_PATTERN:
            return cls.of_names(names)
        rows, counts = y.nan_to_num(nan=-1).long().unique(dim=0, return_counts=True)
        order = sorted(range(len(rows)), key=lambda row: (-int(counts[row]), rows[row].tolist()))[:PATTERNS]
        return cls(names, tuple(tuple(rows[row].tolist()) for row in sorted(order)))

    @classmethod
    def of_names(cls, names: tuple[str, ...]) -> "Labels":
        """Return the task of labels with these names: with bins if there are few, in any data the same."""
        every = itertools.product((0, 1), repeat=len(names)) if len(names) <= EVERY_PATTERN else ()
        return cls(names, tuple(every))

    @property
    def bins(self) -> int:
        """Return the number of bins: the patterns, and all others."""
        return len(self.patterns) + 1

    @property
    def bin_names(self) -> tuple[str, ...]:
        """Return the name of each bin: its labels that are 1, and with a question mark those that are unknown."""
        marks = {1: "", -1: "?"}
        named = (
            [name + marks[value] for name, value in zip(self.names, row, strict=True) if value] for row in self.patterns
        )
        return (*(" + ".join(own) or "none" for own in named), "others")

    def binned(self, y: Tensor) -> Tensor:
        """Return the pattern of each row of labels; others, such as rows with unknown labels, share the last bin."""
        result = torch.full((len(y),), len(self.patterns), device=y.device)
        rows = y.nan_to_num(nan=-1).long()
        for number, pattern in enumerate(self.patterns):
            result[(rows == torch.tensor(pattern, device=y.device)).all(1)] = number
        return result

    @property
    def bins_wanted(self) -> str:
        """Return what a run must say so that labels have bins."""
        many = f"patterns of {self.outputs} labels are chosen by the data, which stay on nodes; over nodes, "
        return "" if self.patterns else f"{many}predict at most {EVERY_PATTERN} labels"

    def known(self, y: Tensor) -> Tensor:
        """Return (samples, labels) which labels are known."""
        return ~y.isnan()

    def stand_ins(self, samples: int, places: Sequence[int]) -> Tensor:
        """Return labels of which every second one is 1."""
        return ((torch.arange(samples)[:, None] + torch.arange(self.outputs)) % 2).double()

    @property
    def wanted(self) -> str:
        """Return what the data need of the network's output, for an error."""
        return f"{self.outputs} labels ({', '.join(self.names[:4])})"

    def check(self, y: Tensor) -> str:
        """Return what is wrong with the labels of a data set; '' if nothing is."""
        if y.dtype != torch.float64 or y.shape[1:] != (self.outputs,):
            return f"y must be ({len(y):,}, {self.outputs}) float64 labels, got {y.dtype} of shape {tuple(y.shape)}"
        for name, column in zip(self.names, y.unbind(1), strict=True):
            known = column[~column.isnan()]
            odd = known[(known != 0) & (known != 1)]
            if len(odd):
                return f"label '{name}' is {odd[0].item():g} in a sample; it must be 0, 1 or unknown"
            if not len(known):
                return f"label '{name}' is unknown in every sample"
        return ""

    def losses(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return (rows, labels) sigmoid cross-entropy, and which labels are known."""
        known = self.known(y)
        return F.binary_cross_entropy_with_logits(output, y.nan_to_num(), reduction="none"), known

    def probabilities(self, output: Tensor) -> Tensor:
        """Return (rows, labels) the probability that each label is 1."""
        return output.sigmoid()

    def predictions(self, output: Tensor) -> NDArray[Any]:
        """Return (rows, labels) 1 where a label is more probable than not, else 0."""
        return (output > 0).long().numpy()

    def columns(self, output: Tensor) -> dict[str, NDArray[Any]]:
        """Return each label, 0 or 1, and its probability."""
        chosen, probable = self.predictions(output).T, self.probabilities(output).numpy().round(6).T
        titles = [f"p({name})" for name in self.names]
        return {**dict(zip(self.names, chosen, strict=True)), **dict(zip(titles, probable, strict=True))}
