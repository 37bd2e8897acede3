"""The table of metrics: a metric is a function of counted answers and one field of `Score`.

A row of logits that is not finite is wrong in every way: no class was answered, the confidence was full, and in AUROC
every comparison with it is lost. A number that does not exist is None, never 0.
"""

from __future__ import annotations  # the command line reads this table without torch

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

METRIC = "metric"  # the key of a field's metadata
UNIT = 2.0**40  # confidence is summed in parts of 1 / UNIT: those of 8 million samples fit into 64 bits


@dataclass(frozen=True)
class ScoreCounts:
    """Whole numbers, as float64: a row for each client with samples, set after set, and then one for each set."""

    samples: Tensor  # (spans, classes): how many are of the class
    answers: Tensor  # (spans, classes): how many got the class as their answer
    right: Tensor  # (spans, classes): how many are of the class and got it as their answer
    above: Tensor  # (spans, classes): 2 for a sample of the class and another of less of the class; 1 if of as much
    surplus: Tensor  # (spans, bins of confidence): right answers less confidence, in parts of 1 / UNIT

    @property
    def total(self) -> Tensor:
        """Return (spans,) the number of samples."""
        return self.samples.sum(1)

    @property
    def nonfinite(self) -> Tensor:
        """Return (spans,) the number of samples that got no answer, because their logits are not finite."""
        return self.total - self.answers.sum(1)


@dataclass(frozen=True)
class Metric:
    """What `metric` declares of a field of `Score`."""

    title: str
    compute: Callable[[ScoreCounts], Tensor]
    about: str
    of_two: str
    chooses: bool


# ---- the metrics: a number for each span; nan where there is no such number, and a mean over classes passes over it


def metric(
    title: str, compute: Callable[[ScoreCounts], Tensor], about: str = "", of_two: str = "", chooses: bool = True
) -> Any:
    """Declare a field of `Score`: its title, and its computation, which returns (spans,) numbers.

    `about` explains it below a table, `of_two` where there are two classes; `{}` stands for the second. Rounds are
    chosen by the highest value, so a metric that is better when lower has `chooses=False`.
    """
    declared = Metric(title, compute, about, of_two or about, chooses)
    return field(default=None, metadata={METRIC: declared})  # older files and checkpoints lack a new metric


def accuracy(counts: ScoreCounts) -> Tensor:
    """Return the share of right answers."""
    return counts.right.sum(1) / counts.total


def balanced_accuracy(counts: ScoreCounts) -> Tensor:
    """Return the mean recall of the classes that occur."""
    return (counts.right / counts.samples).nanmean(1)


def f1(counts: ScoreCounts) -> Tensor:
    """Return F1: of class 1 for two classes; for more, the mean over classes among the labels or the answers."""
    values = 2 * counts.right / (counts.samples + counts.answers)
    return values[:, 1] if values.shape[1] == 2 else values.nanmean(1)


def auroc(counts: ScoreCounts) -> Tensor:
    """Return AUROC: one class against the rest, averaged over classes that have both."""
    others = counts.total[:, None] - counts.samples
    return (counts.above / 2 / (counts.samples * others)).nanmean(1)


def calibration_error(counts: ScoreCounts) -> Tensor:
    """Return the expected calibration error: |accuracy - mean top probability| per bin, weighted by samples."""
    return counts.surplus.abs().sum(1) / UNIT / counts.total


@dataclass(frozen=True)
class Score:
    """How one model (or each client's own) does on one set of samples."""

    samples: int | None  # None where a file does not say
    accuracy: float | None = metric("accuracy", accuracy)
    balanced: float | None = metric("balanced accuracy", balanced_accuracy, about="mean over classes")
    f1: float | None = metric("F1", f1, about="mean over classes", of_two="of class '{}'")
    auroc: float | None = metric("AUROC", auroc, about="mean over classes", of_two="of class '{}'")
    ece: float | None = metric("ECE", calibration_error, about="calibration error", chooses=False)

    def value(self, metric: str) -> float | None:
        """Return the value of a metric by its name."""
        return getattr(self, metric)


FIELDS: dict[str, Metric] = {entry.name: entry.metadata[METRIC] for entry in fields(Score) if entry.metadata}
TITLES = {name: entry.title for name, entry in FIELDS.items()}
CHOOSING = tuple(name for name, entry in FIELDS.items() if entry.chooses)  # may choose rounds and rank methods
if TYPE_CHECKING:
    ChoosingMetric = str
else:
    ChoosingMetric = Literal[CHOOSING]  # the type of the setting, which follows from the table
OTHER_SCORES = tuple(name for name in FIELDS if name != "accuracy")


def metrics_legend(names: Iterable[str], positive: str | None) -> str:
    """Return what some metrics mean, those of one meaning together; `positive` names the second of two classes."""
    groups: dict[str, list[str]] = {}
    for name in names:
        about = FIELDS[name].about if positive is None else FIELDS[name].of_two.format(positive)
        if about:
            groups.setdefault(about, []).append(TITLES[name].removesuffix(" accuracy"))
    return "; ".join(f"{', '.join(titles)}: {about}" for about, titles in groups.items())
