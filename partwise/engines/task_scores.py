"""Sums of predicted numbers, labels and places for every client and all together, in float64 on the host.

Fractions are added in the order of the samples, so that sums are the same in all engines.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import log_softmax

from partwise.engines.scores import Judged, count
from partwise.records.metrics import LabelSums, NumberSums, PlaceCounts
from partwise.tasks import Numbers, Task

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


class RowSpans:
    """The span that each row belongs to, and sums over spans."""

    def __init__(self, of: Whole, number: int):
        self.of, self.number = of, number  # (rows,) the span of each row; how many spans there are

    def sums(self, values: NDArray[Any]) -> Floats:
        """Return (spans, columns) sums of (rows, columns) values."""
        columns = [np.bincount(self.of, own, self.number) for own in values.T]
        return np.stack(columns, 1) if columns else np.zeros((self.number, 0))

    def ranks(self, values: Floats) -> Floats:
        """Return (rows,) twice the rank of each value in its span, from 0; equal values share their mean rank."""
        order = np.lexsort((values, self.of))
        first, last = ties(self.of[order], values[order])
        result = np.empty(len(values))
        result[order] = first + last - 2 * self.starts()[self.of[order]]
        return result

    def starts(self) -> Whole:
        """Return (spans,) the number of rows in the spans before each."""
        sizes = np.bincount(self.of, minlength=self.number)
        return np.asarray(sizes.cumsum() - sizes, np.int64)


def ties(*keys: NDArray[Any]) -> tuple[Whole, Whole]:
    """Return the first and the last place of the rows with the same keys as each row; they follow one another."""
    changes = np.zeros(len(keys[0]), np.bool_)
    changes[:1] = True
    for key in keys:
        changes[1:] |= key[1:] != key[:-1]
    begins = np.flatnonzero(changes)
    ends = np.append(begins[1:], len(changes)) - 1
    group = changes.cumsum() - 1
    return begins[group], ends[group]


def count_answers(judged: Sequence[Judged], task: Task) -> Any:
    """Count or sum the answers of several sets, each with at least one row, as the metrics of the task take them."""
    if task.of_classes:
        return count(judged)
    kind, sums = SUMS[task.kind]
    given = torch.cat([one.logits for one in judged]).cpu()
    labels = torch.cat([one.labels for one in judged]).cpu()
    if isinstance(task, Numbers):
        given, labels = (task.in_own_unit(each.double()) for each in (given, labels))
    sizes = [size for one in judged for size in one.sizes if size]
    owner = np.repeat(np.arange(len(judged)), [sum(one.sizes) for one in judged])
    spans_of_rows = [RowSpans(np.repeat(np.arange(len(sizes)), sizes), len(sizes)), RowSpans(owner, len(judged))]
    finite = np.isfinite(given.flatten(1).numpy()).all(1, keepdims=True)
    every = [
        [*spans.sums(np.concatenate([np.ones_like(finite), ~finite], 1)).T, *sums(given, labels, spans)]
        for spans in spans_of_rows
    ]
    return kind(*(torch.from_numpy(np.concatenate(columns)) for columns in zip(*every, strict=True)))


def number_sums(given: Tensor, labels: Tensor, spans: RowSpans) -> tuple[Floats, ...]:
    """Return the fields of NumberSums behind the first two."""
    own, true = given.numpy(), labels.numpy()
    known = ~np.isnan(true)
    error = np.where(known, own - true, 0.0)
    error[~np.isfinite(error)] = np.nan
    filled, counts = np.where(known, true, 0.0), spans.sums(known)
    mean = spans.sums(filled) / np.maximum(counts, 1)
    distance = np.where(known, filled - mean[spans.of], 0.0)
    correlations = [
        rank_correlation(a[rows], b[rows], RowSpans(spans.of[rows], spans.number))
        for a, b, rows in zip(own.T, true.T, known.T, strict=True)
    ]
    spread = spans.sums(np.square(distance)) * varies(true, known, spans)
    with np.errstate(over="ignore"):  # an infinite sum is no score
        squared = spans.sums(np.square(error))
    return counts, spans.sums(abs(error)), squared, spread, np.stack(correlations, 1)


def varies(true: Floats, known: NDArray[np.bool_], spans: RowSpans) -> NDArray[np.bool_]:
    """Return (spans, numbers) whether the known labels differ: the rounding of their mean would look like a spread."""
    result = np.zeros((spans.number, true.shape[1]), np.bool_)
    for column, (values, rows) in enumerate(zip(true.T, known.T, strict=True)):
        low, high = np.full(spans.number, np.inf), np.full(spans.number, -np.inf)
        np.minimum.at(low, spans.of[rows], values[rows])
        np.maximum.at(high, spans.of[rows], values[rows])
        result[:, column] = high > low
    return result


def rank_correlation(own: Floats, true: Floats, spans: RowSpans) -> Floats:
    """Return (spans,) Spearman's correlation; nan where either does not vary, or a prediction is not finite."""
    ranks = np.stack([spans.ranks(own), spans.ranks(true)], 1)
    sizes = spans.sums(np.ones((len(own), 1)))
    centred = ranks - (sizes - 1)[spans.of]  # twice the ranks: their mean is size - 1
    products = spans.sums(np.stack([centred[:, 0] * centred[:, 1], *np.square(centred).T], 1))
    finite = spans.sums(~np.isfinite(own)[:, None])[:, 0] == 0
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(finite, products[:, 0] / np.sqrt(products[:, 1] * products[:, 2]), np.nan)


def label_sums(given: Tensor, labels: Tensor, spans: RowSpans) -> tuple[Floats, ...]:
    """Return those of LabelSums. A row that is not finite is wrong, and loses every comparison."""
    own, true = given.double().numpy(), labels.double().numpy()
    finite = np.isfinite(own).all(1, keepdims=True)
    own = np.where(finite, own, np.where(true == 1, -np.inf, np.inf))
    known, positive, answer = ~np.isnan(true), true == 1, own > 0
    answer &= known
    areas, precisions = [], []
    for values, yes, rows in zip(own.T, positive.T, known.T, strict=True):
        area, precision = ranking_quality(values[rows], yes[rows], RowSpans(spans.of[rows], spans.number))
        areas.append(area)
        precisions.append(precision)
    counts = (spans.sums(each) for each in (known, positive, answer, answer & positive))
    return *counts, np.stack(areas, 1), np.stack(precisions, 1)


def ranking_quality(values: Floats, positive: NDArray[np.bool_], spans: RowSpans) -> tuple[Floats, Floats]:
    """Return (spans,) AUROC, nan without both kinds of rows, and average precision, nan without positive ones."""
    sizes = spans.sums(np.stack([positive, ~positive], 1).astype(np.float64))
    yes, no = sizes.T
    above = spans.sums((spans.ranks(values) * positive)[:, None])[:, 0] / 2 - yes * (yes - 1) / 2
    order = np.lexsort((-values, spans.of))
    of, hit = spans.of[order], positive[order]
    _, last = ties(of, values[order])
    starts = spans.starts()
    hits = np.append(0, hit.cumsum())
    found = hits[last + 1] - hits[starts[of]]
    precision = found / (last + 1 - starts[of])
    total = RowSpans(of, spans.number).sums((precision * hit)[:, None])[:, 0]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(yes * no > 0, above / (yes * no), np.nan), np.where(yes > 0, total / yes, np.nan)


def place_counts(given: Tensor, labels: Tensor, spans: RowSpans) -> tuple[Floats, ...]:
    """Return those of PlaceCounts. A place that is not finite got no answer."""
    classes = given.shape[1]
    known = labels >= 0
    finite = torch.isfinite(given).all(1)
    answer = torch.where(finite, given.argmax(1), -1)
    logs = log_softmax(given.double(), 1).gather(1, labels.clamp(min=0)[:, None])[:, 0]
    surprise = torch.where(known, torch.where(finite, -logs, torch.nan), 0.0)
    cells = [(labels, known), (answer, known & (answer >= 0)), (labels, known & (answer == labels))]
    counts = []
    rows = torch.from_numpy(spans.of).view(-1, *[1] * (labels.dim() - 1)).expand(labels.shape)
    for column, chosen in cells:
        index = rows[chosen] * classes + column[chosen]
        counts.append(torch.bincount(index, minlength=spans.number * classes).view(-1, classes).double().numpy())
    return *counts, np.bincount(rows.flatten().numpy(), surprise.flatten().numpy(), spans.number)


SUMS: dict[str, tuple[type, Callable[..., tuple[Floats, ...]]]] = {  # by task
    "numbers": (NumberSums, number_sums),
    "labels": (LabelSums, label_sums),
    "places": (PlaceCounts, place_counts),
}
