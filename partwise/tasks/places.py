"""A class for every place of a sample: a pixel, a token, a time step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from partwise.tasks.task import Task

NONE = -1  # the label of a place that has no class


@dataclass(frozen=True)
class Places(Task):
    """A label is a class for each place: (samples, places...) int64, -1 where a place has none.

    The network gives (rows, classes, places...) logits, as torch's cross_entropy takes them; the loss is cross-entropy.
    """

    kind: ClassVar[str] = "places"
    at_places: ClassVar[bool] = True
    bin_word: ClassVar[str] = "class"
    bin_words: ClassVar[str] = "classes"
    bins_are: ClassVar[str] = "the most frequent class of a sample's places"
    title: ClassVar[str] = "Classes of places"
    predicted: ClassVar[str] = "a class for each place; predict_proba: probabilities"
    output_word: ClassVar[str] = "logits"

    @property
    def bins(self) -> int:
        """Return the number of classes."""
        return len(self.names)

    def binned(self, y: Tensor) -> Tensor:
        """Return the most frequent class of each sample's places, the first of equally frequent ones."""
        flat, best, most = y.flatten(1), torch.zeros_like(y.flatten(1)[:, 0]), torch.zeros_like(y.flatten(1)[:, 0])
        for label in range(self.bins):  # one class at a time: an image has many places
            count = (flat == label).sum(1)
            best, most = torch.where(count > most, label, best), torch.maximum(count, most)
        return best

    def known(self, y: Tensor) -> Tensor:
        """Return (samples, 1) which samples have a place with a class."""
        return (y != NONE).flatten(1).any(1, keepdim=True)

    def weight(self, y: Tensor) -> int:
        """Return how many places have a class."""
        return int((y != NONE).sum())

    def stand_ins(self, samples: int, places: Sequence[int]) -> Tensor:
        """Return one class after the other, at all places of a sample."""
        return (torch.arange(samples) % self.outputs).view(-1, *[1] * len(places)).expand(-1, *places)

    def output_shape(self, label: torch.Size) -> tuple[int, ...]:
        """Return the shape of the network's output for a sample, from the shape of its label."""
        return (self.outputs, *label)

    @property
    def wanted(self) -> str:
        """Return what the data need of the network's output, for an error."""
        return f"{self.outputs} classes at each place"

    def remedy(self, inputs: str) -> str:
        """Return how to make a network's output fit, for an error."""
        return f"end it with nn.Conv2d({inputs}, {self.outputs}, 1), or move the classes behind the rows in forward"

    def check(self, y: Tensor) -> str:
        """Return what is wrong with the labels of a data set; '' if nothing is."""
        if y.dtype != torch.int64 or y.ndim < 2:
            return f"y must be ({len(y):,}, places...) int64 classes, got {y.dtype} of shape {tuple(y.shape)}"
        below, above = y[y < NONE], y[y >= self.bins]
        if len(below):
            return f"{len(below):,} places have labels such as {int(below[0])}; a place without a class has {NONE}"
        if len(above):
            return f"{len(above):,} places have labels such as {int(above[0])}, but classes are 0..{self.bins - 1}"
        if (y == NONE).all():
            return "no place has a class"
        return "" if self.bins > 1 else "places need at least two classes"

    def losses(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return (rows, places...) softmax cross-entropy, and which places have a class."""
        known = y != NONE
        return F.cross_entropy(output, y.clamp(min=0), reduction="none"), known
