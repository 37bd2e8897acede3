"""The table of metrics: a metric is a function of counts or sums of a task's answers, and one field of `Score`.

A row of logits that is not finite is wrong in every way: no class was answered, the confidence was full, and in AUROC
every comparison with it is lost. A number that does not exist is None, never 0.
"""

from __future__ import annotations  # the command line reads this table without torch

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

METRIC = "metric"  # the key of a field's metadata
IN_UNIT = "in the label's unit"
UNIT = 2.0**40  # fractions are summed in parts of 1 / UNIT: those of 8 million samples fit into 64 bits


@dataclass(frozen=True)
class ScoreCounts:
    """Whole numbers, as float64: a row for each client with samples, set after set, and then one for each set."""

    samples: Tensor  # (spans, classes): how many are of the class
    answers: Tensor  # (spans, classes): how many got the class as their answer
    right: Tensor  # (spans, classes): how many are of the class and got it as their answer
    above: Tensor  # (spans, classes): 2 for a sample of the class and another of less of the class; 1 if of as much
    precision: Tensor  # (spans, classes): share of the class among samples of as much of it or more, over its samples
    distance: Tensor  # (spans, 1): half the squared distances of probabilities from labels; both in parts of 1 / UNIT
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
class NumberSums:
    """Of predicted numbers, over the labels that are known: (spans, numbers) float64, in the label's own unit."""

    total: Tensor  # (spans,) how many samples
    nonfinite: Tensor  # (spans,) how many of them got a prediction that is not finite
    known: Tensor  # how many labels
    absolute: Tensor  # the sum of absolute errors; nan where a prediction is not finite
    squared: Tensor  # the sum of squared errors, likewise
    spread: Tensor  # the sum of squared distances of the labels from their mean
    rank_correlation: Tensor  # Spearman's; nan where labels or predictions do not vary


@dataclass(frozen=True)
class LabelSums:
    """Of predicted yes-or-no labels, over those that are known: (spans, labels) float64."""

    total: Tensor  # (spans,) how many samples
    nonfinite: Tensor  # (spans,) how many of them got a prediction that is not finite
    known: Tensor  # how many labels
    positive: Tensor  # how many are 1
    answers: Tensor  # how many got 1 as their answer
    right: Tensor  # how many are 1 and got 1
    auroc: Tensor  # nan without both a 0 and a 1
    average_precision: Tensor  # nan without a 1


@dataclass(frozen=True)
class PlaceCounts:
    """Of predicted places that have a class: whole numbers as float64, and a sum of logarithms."""

    total: Tensor  # (spans,) how many samples
    nonfinite: Tensor  # (spans,) how many of them got a prediction that is not finite
    samples: Tensor  # (spans, classes): how many are of the class
    answers: Tensor  # (spans, classes): how many got the class as their answer
    right: Tensor  # (spans, classes): how many are of the class and got it
    surprise: Tensor  # (spans,): the sum of -log of the class's probability; nan where a prediction is not finite


@dataclass(frozen=True)
class Metric:
    """What `metric` declares of a field of `Score`."""

    title: str
    compute: Callable[[Any], Tensor]
    about: str
    of_two: str
    chooses: bool
    task: str
    lower: bool
    percent: bool
    power: int

    @property
    def sign(self) -> int:
        """Return 1 where higher is better, -1 where lower is."""
        return -1 if self.lower else 1


# ---- the metrics: a number for each span; nan where there is no such number, and a mean over classes passes over it


def metric(
    title: str,
    compute: Callable[[Any], Tensor],
    about: str = "",
    of_two: str = "",
    chooses: bool = True,
    task: str = "classes",
    lower: bool = False,
    percent: bool = True,
    power: int = 1,
) -> Any:
    """Declare a field of `Score`: its title, and its computation, which returns (spans,) numbers.

    `about` explains it below a table, `of_two` where there are two classes; `{}` stands for the second. `chooses`: it
    may choose rounds and rank methods. `lower`: it is better when lower. `percent`: a share, shown in %. `power`: of
    values whose mean over samples joins those of clients. The first metric of a task ranks unless a user names another.
    """
    declared = Metric(title, compute, about, of_two or about, chooses, task, lower, percent, power)
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


def average_precision(counts: ScoreCounts) -> Tensor:
    """Return average precision: of class 1 for two classes; for more, the mean over classes that occur."""
    values = counts.precision / UNIT / counts.samples
    return values[:, 1] if values.shape[1] == 2 else values.nanmean(1)


def brier(counts: ScoreCounts) -> Tensor:
    """Return the Brier score: half the squared distance of probabilities from the label, (p - y)^2 of two classes."""
    return counts.distance[:, 0] / UNIT / counts.total


def calibration_error(counts: ScoreCounts) -> Tensor:
    """Return the expected calibration error: |accuracy - mean top probability| per bin, weighted by samples."""
    return counts.surplus.abs().sum(1) / UNIT / counts.total


def over_numbers(values: Tensor, sums: NumberSums) -> Tensor:
    """Return (spans,) the mean over numbers that have a value; nan where a prediction of any number is not finite."""
    return values.nanmean(1).where(sums.absolute.isfinite().all(1), math.nan)


def rmse(sums: NumberSums) -> Tensor:
    """Return the root of the mean squared error, averaged over the numbers."""
    return over_numbers((sums.squared / sums.known).sqrt(), sums)


def absolute_error(sums: NumberSums) -> Tensor:
    """Return the mean absolute error, averaged over the numbers."""
    return over_numbers(sums.absolute / sums.known, sums)


def r2(sums: NumberSums) -> Tensor:
    """Return the share of the labels' variance that is explained, averaged over the numbers that vary."""
    spread = sums.spread.where(sums.spread > 0, math.nan)
    return over_numbers(1 - sums.squared / spread, sums)


def spearman(sums: NumberSums) -> Tensor:
    """Return Spearman's rank correlation, averaged over the numbers."""
    return over_numbers(sums.rank_correlation, sums)


def mean_auroc(sums: LabelSums) -> Tensor:
    """Return AUROC, averaged over labels that have both a 0 and a 1."""
    return sums.auroc.nanmean(1)


def mean_average_precision(sums: LabelSums) -> Tensor:
    """Return average precision, averaged over labels that have a 1."""
    return sums.average_precision.nanmean(1)


def micro_f1(sums: LabelSums) -> Tensor:
    """Return F1 over all known labels together."""
    return 2 * sums.right.sum(1) / (sums.positive + sums.answers).sum(1)


def macro_f1(sums: LabelSums) -> Tensor:
    """Return the mean of the labels' F1, where a label or an answer is 1."""
    return (2 * sums.right / (sums.positive + sums.answers)).nanmean(1)


def place_accuracy(counts: PlaceCounts) -> Tensor:
    """Return the share of places with the right class."""
    return counts.right.sum(1) / counts.samples.sum(1)


def perplexity(counts: PlaceCounts) -> Tensor:
    """Return the exponential of the mean -log of the true class's probability."""
    return (counts.surprise / counts.samples.sum(1)).exp()


def dice(counts: PlaceCounts) -> Tensor:
    """Return the Dice coefficient, the mean over classes among the labels or the answers."""
    return (2 * counts.right / (counts.samples + counts.answers)).nanmean(1)


def intersection_over_union(counts: PlaceCounts) -> Tensor:
    """Return intersection over union, the mean over classes among the labels or the answers."""
    return (counts.right / (counts.samples + counts.answers - counts.right)).nanmean(1)


@dataclass(frozen=True)
class Score:
    """How one model (or each client's own) does on one set of samples."""

    samples: int | None  # None where a file does not say
    accuracy: float | None = metric("accuracy", accuracy)
    balanced: float | None = metric("balanced accuracy", balanced_accuracy, about="mean over classes")
    f1: float | None = metric("F1", f1, about="mean over classes", of_two="of class '{}'")
    auroc: float | None = metric("AUROC", auroc, about="mean over classes", of_two="of class '{}'")
    ece: float | None = metric("ECE", calibration_error, about="calibration error", chooses=False)
    average_precision: float | None = metric(
        "AP", average_precision, about="mean average precision", of_two="average precision of class '{}'"
    )
    brier: float | None = metric("Brier", brier, about="squared error of probabilities", lower=True, percent=False)
    mean_auroc: float | None = metric("mean AUROC", mean_auroc, about="mean over labels", task="labels")
    mean_ap: float | None = metric("mAP", mean_average_precision, about="mean average precision", task="labels")
    micro_f1: float | None = metric("micro F1", micro_f1, about="over all labels together", task="labels")
    macro_f1: float | None = metric("macro F1", macro_f1, about="mean over labels", task="labels")
    rmse: float | None = metric("RMSE", rmse, IN_UNIT, task="numbers", lower=True, percent=False, power=2)
    mae: float | None = metric("MAE", absolute_error, IN_UNIT, task="numbers", lower=True, percent=False)
    r2: float | None = metric("R2", r2, about="share of variance explained", task="numbers", percent=False)
    spearman: float | None = metric("Spearman", spearman, about="rank correlation", task="numbers", percent=False)
    place_accuracy: float | None = metric("accuracy of places", place_accuracy, task="places")
    perplexity: float | None = metric("perplexity", perplexity, task="places", lower=True, percent=False)
    dice: float | None = metric("Dice", dice, about="mean over classes", task="places")
    iou: float | None = metric("IoU", intersection_over_union, about="mean over classes", task="places")
    task: str = "classes"

    @property
    def ranking(self) -> float | None:
        """Return the value of the metric that ranks by default."""
        return self.value(RANKING[self.task])

    def value(self, metric: str) -> float | None:
        """Return the value of a metric by its name."""
        return getattr(self, metric)


FIELDS: dict[str, Metric] = {entry.name: entry.metadata[METRIC] for entry in fields(Score) if entry.metadata}
TITLES = {name: entry.title for name, entry in FIELDS.items()}
CHOOSING = tuple(name for name, entry in FIELDS.items() if entry.chooses)  # may choose rounds and rank methods
METRICS_OF: dict[str, tuple[str, ...]] = {  # by task
    task: tuple(name for name, entry in FIELDS.items() if entry.task == task)
    for task in dict.fromkeys(entry.task for entry in FIELDS.values())
}
WEIGHT = "known"  # beside the metrics that a node tells: how many labels or places they are about
RANKING = {task: names[0] for task, names in METRICS_OF.items()}  # what ranks where a user names no metric
if TYPE_CHECKING:
    ChoosingMetric = str
else:
    ChoosingMetric = Literal[CHOOSING]  # the type of the setting, which follows from the table


def best(values: Iterable[float | None], metric: str) -> float | None:
    """Return the best value of a metric; None where there is none."""
    return max((value for value in values if value is not None), key=lambda v: FIELDS[metric].sign * v, default=None)


def metrics_legend(names: Iterable[str], positive: str | None) -> str:
    """Return what some metrics mean, those of one meaning together; `positive` names the second of two classes."""
    groups: dict[str, list[str]] = {}
    for name in names:
        own = FIELDS[name]
        about = own.about if positive is None else own.of_two.format(positive)
        about = ", ".join(filter(None, [about, "lower is better" if own.lower else ""]))
        if about:
            groups.setdefault(about, []).append(TITLES[name].removesuffix(" accuracy"))
    return "; ".join(f"{', '.join(titles)}: {about}" for about, titles in groups.items())
