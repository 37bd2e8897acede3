"""Real numbers, such as a length of stay."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from partwise.errors import ConfigError
from partwise.tasks.task import Task

QUANTILES = 10  # bins of equally many samples, by the first number


@dataclass(frozen=True)
class Numbers(Task):
    """A label is one or more real numbers: (samples, numbers) float64, NaN where one is unknown.

    The network gives standardised numbers; the loss is their squared error.
    """

    edges: tuple[float, ...] | None = ()  # of the bins of the first number, in its own unit; None: nobody said them
    centre: tuple[float, ...] = ()  # of each number, where labels are standardised: label = centre + scale x number
    scale: tuple[float, ...] = ()

    kind: ClassVar[str] = "numbers"
    bins_are: ClassVar[str] = "a range of the first number; unknown ones are in the first"
    title: ClassVar[str] = "Numbers"
    predicted: ClassVar[str] = "numbers in the label's own unit"
    name_word: ClassVar[str] = "label"
    every_name: ClassVar[bool] = True
    result_names: ClassVar[tuple[str, ...]] = ("numbers",)
    result_type: ClassVar[str] = "in the label's own unit, float64"

    @classmethod
    def of(cls, y: Tensor, names: tuple[str, ...]) -> "Numbers":
        """Return the task of these labels, with bins of equally many of them."""
        known = y[:, 0][y[:, 0].isfinite()]
        if not len(known):
            return cls(names)
        inner = torch.linspace(0, 1, QUANTILES + 1, dtype=torch.float64)[1:-1]
        edges = torch.quantile(known.double(), inner, interpolation="higher").unique()
        return cls(names, tuple(edges[edges > known.min()].tolist()))

    @classmethod
    def of_names(cls, names: tuple[str, ...]) -> "Numbers":
        """Return the task of numbers with these names; the edges of their bins are still to be said."""
        return cls(names, None)

    def with_edges(self, edges: tuple[float, ...]) -> "Numbers":
        """Return the task with these edges of bins."""
        return replace(self, edges=edges)

    def standardised_by(self, centre: Tensor, scale: Tensor) -> "Numbers":
        """Return the task of labels that are standardised; both are (numbers,)."""
        return replace(self, centre=tuple(centre.tolist()), scale=tuple(scale.tolist()))

    def standardised(self, y: Tensor) -> Tensor:
        """Return labels in units of their deviation from the clients' mean."""
        return (y - y.new_tensor(self.centre)) / y.new_tensor(self.scale) if self.centre else y

    def in_own_unit(self, y: Tensor) -> Tensor:
        """Return labels or predictions in the label's own unit, (..., numbers)."""
        return y * y.new_tensor(self.scale) + y.new_tensor(self.centre) if self.centre else y

    @property
    def bins(self) -> int:
        """Return the number of bins."""
        return len(self.edges or ()) + 1

    @property
    def bin_names(self) -> tuple[str, ...]:
        """Return the name of each bin, by its edges."""
        marks = [f"{edge:g}" for edge in self.edges or ()]
        between = [f"{low} to {high}" for low, high in pairwise(marks)]
        return (f"below {marks[0]}", *between, f"from {marks[-1]}") if marks else ("all",)

    def binned(self, y: Tensor) -> Tensor:
        """Return the bin of each first number; an unknown one is in the first."""
        first = y[:, 0].contiguous().nan_to_num(nan=-torch.inf)
        edges = torch.tensor(self.edges or (), dtype=y.dtype, device=y.device)
        if self.centre:  # by the same arithmetic as the labels, so that no label moves over an edge
            edges = (edges - y.new_tensor(self.centre[0])) / y.new_tensor(self.scale[0])
        return torch.searchsorted(edges, first, right=True)

    @property
    def bins_wanted(self) -> str:
        """Return what a run must say so that labels have bins."""
        return "state their edges, as bins = [2, 5, 9] in [data] of the run" if self.edges is None else ""

    def known(self, y: Tensor) -> Tensor:
        """Return (samples, numbers) which numbers are known."""
        return ~y.isnan()

    def stand_ins(self, samples: int, places: Sequence[int]) -> Tensor:
        """Return standardised numbers, from small to large."""
        return torch.linspace(-1, 1, samples, dtype=torch.float64)[:, None].repeat(1, self.outputs)

    @property
    def wanted(self) -> str:
        """Return what the data need of the network's output, for an error."""
        return f"{self.outputs} number{'s' * (self.outputs > 1)} ({', '.join(self.names[:4])})"

    def check(self, y: Tensor) -> str:
        """Return what is wrong with the labels of a data set; '' if nothing is."""
        if y.dtype != torch.float64 or y.shape[1:] != (self.outputs,):
            return f"y must be ({len(y):,}, {self.outputs}) float64 numbers, got {y.dtype} of shape {tuple(y.shape)}"
        for name, column in zip(self.names, y.unbind(1), strict=True):
            if column.isinf().any():
                return f"label '{name}' is infinite in {int(column.isinf().sum()):,} samples"
            if column.isnan().all():
                return f"label '{name}' is unknown in every sample"
        return ""

    def unequal_shares(self, y: Tensor) -> str:
        """Return whether samples have unknown numbers, and so another share in the loss; '' if none has."""
        unknown = int(y.isnan().any(1).sum())
        return f"{unknown:,} samples have an unknown number" if unknown else ""

    def losses(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return (rows, numbers) squared errors, and which numbers are known."""
        known = self.known(y)
        return (output - torch.where(known, y, output.detach())).square(), known

    def probabilities(self, output: Tensor) -> Tensor:
        """Refuse: a number has no probability."""
        raise ConfigError(f"a model of numbers ({', '.join(self.names)}) gives no probabilities; use predict")

    def predictions(self, output: Tensor) -> NDArray[Any]:
        """Return (rows,) predictions in the label's own unit, or (rows, numbers) of several."""
        numbers = self.in_own_unit(output.double()).numpy()
        return numbers[:, 0] if self.outputs == 1 else numbers

    def results(self, output: Tensor) -> tuple[Tensor, ...]:
        """Return (rows, numbers) in the label's own unit, as float64: a small scale may stand beside a large centre."""
        return (self.in_own_unit(output.double()),)

    def columns(self, output: Tensor) -> dict[str, NDArray[Any]]:
        """Return each number in its own unit."""
        return dict(zip(self.names, self.in_own_unit(output.double()).numpy().T, strict=True))
