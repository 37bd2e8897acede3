"""What was handed in to be predicted, as the run's data set would hold it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partwise.errors import DataError
from partwise.records.manifest import ArrayInput, NamedInput
from partwise.trees import Samples, tensors_of


@dataclass(frozen=True)
class GivenSamples:
    """Samples as the data set holds them, and the name of each."""

    x: Samples
    names: Sequence[str]

    def __post_init__(self) -> None:
        if not self.names:
            raise DataError("there are no samples to predict")


def without_names(x: Samples) -> GivenSamples:
    """Return samples that have no names but their numbers, from 0."""
    return GivenSamples(x, list(map(str, range(len(tensors_of(x)[0])))))


@dataclass(frozen=True)
class Arrays:
    """Reads numbers as they are."""

    input: ArrayInput

    def __call__(self, samples: Any) -> GivenSamples:
        """Return the samples of an array, a tensor or lists of numbers."""
        wanted = f"(samples, {', '.join(map(str, self.input.shape))})"
        if isinstance(samples, str | Path):
            raise DataError(f"this model takes arrays {wanted}, not a file")
        x = self.input.transform.apply(samples)
        if list(x.shape[1:]) != self.input.shape:
            raise DataError(f"samples must be {wanted}, got {tuple(x.shape)}")
        known = self.input.vocabulary
        if known is not None and x.numel() and not 0 <= int(x.min()) <= int(x.max()) < known:
            raise DataError(f"samples hold {int(x.min())}..{int(x.max())}; the model knows tokens 0..{known - 1}")
        return without_names(x)


@dataclass(frozen=True)
class NamedArrays:
    """Reads several arrays by name as they are."""

    input: NamedInput

    def __call__(self, samples: Any) -> GivenSamples:
        """Return the samples of a dict of arrays."""
        x = self.input.transform.apply(samples)
        for name, own in x.items():
            if list(own.shape[1:]) != self.input.shapes[name] or len(own) != len(tensors_of(x)[0]):
                wanted = f"(samples, {', '.join(map(str, self.input.shapes[name]))})"
                raise DataError(f"{name} must be {wanted}, got {tuple(own.shape)}")
        return without_names(x)
