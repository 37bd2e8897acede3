"""One class a sample."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from partwise.tasks.task import Task


@dataclass(frozen=True)
class Classes(Task):
    """A label is one of the classes: (samples,) int64. The network gives logits; the loss is cross-entropy."""

    kind: ClassVar[str] = "classes"
    bin_word: ClassVar[str] = "class"
    bin_words: ClassVar[str] = "classes"
    title: ClassVar[str] = "Classes"
    predicted: ClassVar[str] = "classes; predict_proba: probabilities"
    of_classes: ClassVar[bool] = True
    output_word: ClassVar[str] = "logits"

    @classmethod
    def numbered(cls, classes: int) -> "Classes":
        """Return the task of classes that have numbers for names."""
        return cls(tuple(map(str, range(classes))))

    @property
    def bins(self) -> int:
        """Return the number of classes."""
        return len(self.names)

    def binned(self, y: Tensor) -> Tensor:
        """Return the classes themselves."""
        return y

    def known(self, y: Tensor) -> Tensor:
        """Return (samples, 1) that every class is known."""
        return torch.ones(len(y), 1, dtype=torch.bool, device=y.device)

    def stand_ins(self, samples: int, places: Sequence[int]) -> Tensor:
        """Return one class after the other."""
        return torch.arange(samples) % self.outputs

    @property
    def wanted(self) -> str:
        """Return what the data need of the network's output, for an error."""
        return f"{self.outputs} classes"

    def check(self, y: Tensor) -> str:
        """Return what is wrong with the labels of a data set; '' if nothing is."""
        if (y.dtype, y.ndim) != (torch.int64, 1):
            return f"y must be {len(y):,} int64 labels, got {y.dtype} of shape {tuple(y.shape)}"
        outside = Counter(y[(y < 0) | (y >= self.bins)].tolist())
        counts = ", ".join(f"{label} ({count:,} samples)" for label, count in outside.most_common(8))
        return f"{outside.total():,} labels are not in 0..{self.bins - 1}: {counts}" if outside else ""

    def unequal_shares(self, y: Tensor) -> str:
        """Return '': every sample has an equal share in the loss."""
        return ""

    def losses(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return (rows,) softmax cross-entropy; every class is known."""
        return F.cross_entropy(output, y, reduction="none"), torch.ones_like(y, dtype=torch.bool)

    def columns(self, output: Tensor) -> dict[str, NDArray[Any]]:
        """Return the class and the probability of each class."""
        each = self.probabilities(output).numpy().round(6).T
        shares = {f"p({name})": column for name, column in zip(self.names, each, strict=True)}
        return {"class": self.predictions(output), **shares}
