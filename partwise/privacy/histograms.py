"""How clients report label counts: exact, with few bits, with noise, or only which classes are present."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from partwise.errors import ConfigError
from partwise.privacy.vectors import quantised

INTEGER = 4  # bytes of a label or a count on the wire
FEWEST_ON_NODES = 5  # samples of a class that a silo reports: the mean of one sample is the sample
HISTOGRAM_FORMS = "exact, presence, bits:NUMBER (1 to 16) or laplace:EPSILON (above 0)"


@dataclass(frozen=True)
class HistogramForm:
    """How counts of classes are reported."""

    kind: str = "exact"  # or presence, bits, laplace
    bits: int = 0
    epsilon: float = 0.0  # of one report: adding or removing one record
    fewest: int = 1  # samples that a class needs to be reported

    @property
    def exact(self) -> bool:
        """Return whether counts are reported as they are."""
        return self.kind == "exact" and self.fewest <= 1

    def reported(self, counts: Tensor, samples: Tensor, random: np.random.Generator) -> Tensor:
        """Return (classes,) the reported counts; `samples` are the client's samples of each class.

        A single record can decide whether a class is reported at all, which changes its count by `fewest`: the
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
        """Return the bytes of the reported counts."""
        if self.kind == "presence":
            return math.ceil(classes / 8)
        return math.ceil(self.bits * classes / 8) + INTEGER if self.kind == "bits" else classes * INTEGER


def parse_histograms(text: str, fewest: int = 1) -> HistogramForm:
    """Return the form that `exact`, `presence`, `bits:4` or `laplace:0.5` names."""
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
