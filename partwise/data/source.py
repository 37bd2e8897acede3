"""What a data set is to the rest of partwise."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Source:
    """A data set as it lies on disk: nothing is normalised, nothing is split among clients."""

    name: str
    x: Tensor  # (samples, channels, height, width) uint8, or (samples, features) float32
    y: Tensor  # (samples,) int64, labels 0 .. classes-1
    classes: int
    train: int  # the first `train` samples are the original training set, the others the original test set
    centre: tuple[float, ...]  # per channel and in the units of x: the network sees (x - centre) / scale
    scale: tuple[float, ...]
    model: str = "cnn"  # what `--model auto` means for this data set


@dataclass(frozen=True)
class Federation:
    """A source divided among clients: the indices into `source.x` that each client trains, validates and tests on."""

    source: Source
    train: list[Tensor]
    test: list[Tensor]
    global_test: Tensor  # the whole original test set, or every client's test samples where the two sets were merged
    validation: list[Tensor] = field(default_factory=list)  # empty tensors where no validation share is set

    @property
    def clients(self) -> int:
        return len(self.train)

    def class_counts(self) -> Tensor:
        """(clients, classes) int64: how many training samples of each class every client holds."""
        rows = [torch.bincount(self.source.y[index], minlength=self.source.classes) for index in self.train]
        return torch.stack(rows)
