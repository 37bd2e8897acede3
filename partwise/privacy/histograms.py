"""What a client tells about its labels: exact counts, counts of few bits, with noise, or presence alone."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from partwise.errors import ConfigError
from partwise.privacy.vectors import quantised

INTEGER = 4  # bytes of a label or a count on the wire
FEWEST_ON_NODES = 5  # samples of a class that is told of, where clients are people's: the mean of one sample is it
HISTOGRAM_FORMS = "exact, presence, bits:NUMBER (1 to 16) or laplace:EPSILON (above 0)"


@dataclass(frozen=True)
class HistogramForm:
    """How counts of classes are told."""

    kind: str = "exact"  # or presence, bits, laplace
    bits: int = 0
    epsilon: float = 0.0  # of one telling: adding or removing one record
    fewest: int = 1  # samples of a class, below which nothing is told of it

    @property
    def exact(self) -> bool:
        """Whether counts are told as they are."""
        return self.kind == "exact" and self.fewest <= 1

    def told(self, counts: Tensor, samples: Tensor, random: np.random.Generator) -> Tensor:
        """(classes,) what a client tells of its counts; `samples` are those that it has of each class.

        Where one record decides whether a class is told of at all, it moves the count by `fewest`: so much is the
        sensitivity of the Laplace mechanism.
        """
        shown = torch.where(samples >= self.fewest, counts, 0)
        if self.kind == "presence":
            return (shown > 0).to(counts.dtype)
        if self.kind == "bits":
            few = quantised(shown.double(), self.bits, random)
            return (few if counts.is_floating_point() else few.round()).to(counts.dtype)
        if self.kind == "laplace":
            noise = random.laplace(0, self.fewest / self.epsilon, len(counts))
            return (shown.cpu() + torch.from_numpy(noise)).round().clamp(min=0).to(counts)
        return shown

    def wire_bytes(self, classes: int) -> int:
        """Bytes of so many counts as they are told."""
        if self.kind == "presence":
            return math.ceil(classes / 8)
        return math.ceil(self.bits * classes / 8) + INTEGER if self.kind == "bits" else classes * INTEGER


def parse_histograms(text: str, fewest: int = 1) -> HistogramForm:
    """`exact`, `presence`, `bits:4` or `laplace:0.5` as a way of telling."""
    kind, colon, value = text.partition(":")
    try:
        if kind in ("exact", "presence") and not colon:
            return HistogramForm(kind, fewest=fewest)
        if kind == "bits" and 1 <= int(value) <= 16:
            return HistogramForm(kind, bits=int(value), fewest=fewest)
        if kind == "laplace" and 0 < float(value) < math.inf:
            return HistogramForm(kind, epsilon=float(value), fewest=fewest)
    except ValueError:
        pass  # no number: refused like one that is out of range
    raise ConfigError(f"histograms = '{text}' is not allowed: it takes {HISTOGRAM_FORMS}")
