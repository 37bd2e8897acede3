"""Count answers for every client and all together, of several moments at once, on the device of the logits.

Sums are of whole numbers: on a GPU their order differs from run to run, which shows in sums of fractions, and only in
these. The launches do not grow with the clients, and nothing here waits for the device.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from partwise.devices import on_device
from partwise.records.metrics import UNIT, ScoreCounts

BINS = 15  # of equal width, in which confidence is compared with accuracy
SORTED_AT_ONCE = 2**22  # numbers to work on at once: a few hundred megabytes while they are sorted


@dataclass(frozen=True)
class Judged:
    """What clients' models gave at one moment, client after client, and the true labels."""

    logits: Tensor  # (rows, classes); for other tasks what the network gives, (rows, ...)
    labels: Tensor  # (rows, ...), on the same device
    clients: Sequence[int]
    sizes: Sequence[int]  # how many of the rows are of each client


class Spans:
    """Rows that belong together follow one another: the first `sizes[0]` of them, the next `sizes[1]`, and so on."""

    def __init__(self, sizes: Sequence[int], device: torch.device):
        lengths = on_device(torch.tensor(sizes), device)
        self.number = len(sizes)
        self.last = lengths.cumsum(0)
        self.first = self.last - lengths
        self.of = torch.arange(self.number, device=device).repeat_interleave(lengths, output_size=sum(sizes))  # (rows,)

    def ranked(self, level: Tensor, own: Tensor, samples: Tensor) -> Tensor:
        """Return (2, spans, classes) `ScoreCounts.above` and `.precision`, by the level of each class in each row.

        `level` is (classes, rows), of whole numbers below the number of rows; `own` are the rows' classes; `samples` is
        as in `ScoreCounts`. Rows of none of these classes are only what the others are compared with.
        """
        classes, rows = level.shape
        number = torch.arange(classes, device=own.device)[:, None]
        # Whole numbers that order by class, then by span, then by level
        keys = level + self.of * rows + number * self.number * rows
        line = ascending(keys).flatten()
        known = (own >= 0) & (own < classes)
        wanted = keys.gather(0, own.clamp(0, classes - 1)[None])[0].where(known, self.number * classes * rows)
        wanted = ascending(wanted)  # so that those of a class and a span follow one another
        found = torch.searchsorted(line, torch.stack([wanted, wanted + 1]))  # before it, and up to its equals
        ends = samples.T.flatten().cumsum(0)
        place = torch.arange(rows, device=own.device)
        group = torch.searchsorted(ends, place, right=True).clamp(max=len(ends) - 1)
        fresh = torch.nn.functional.pad(wanted[1:] != wanted[:-1], (1, 0), value=True)
        hits = ends[group] - torch.where(fresh, place, 0).cummax(0).values  # of as much of the class or more
        among = (number * rows + self.last).flatten()[group] - found[0]
        share = torch.where(wanted < self.number * classes * rows, hits / among.double(), 0.0)
        values = torch.stack([found.sum(0), (share * UNIT).round().long()])
        until = torch.nn.functional.pad(values.cumsum(1), (1, 0))
        sums = (until[:, ends] - until[:, ends - samples.T.flatten()]).view(2, classes, -1).mT
        before = (number * rows + self.first).T  # in the line, of other classes and spans
        sums[0] -= 2 * before * samples + samples.square()  # nor does a class count against itself
        return sums


def count(judged: Sequence[Judged]) -> ScoreCounts:
    """Count the answers of several sets, each with at least one row, over the same classes and on the same device."""
    logits, labels = torch.cat([one.logits for one in judged]), torch.cat([one.labels for one in judged])
    classes, device = logits.shape[1], logits.device
    sizes = [[size for size in one.sizes if size] for one in judged]
    clients = Spans([size for own in sizes for size in own], device)
    wholes = Spans([sum(own) for own in sizes], device)
    owner = Spans([len(own) for own in sizes], device).of  # the set of each client

    def tally(values: Tensor, column: Tensor, columns: int) -> Tensor:
        """Return (spans, columns) sums of the values, whole numbers, of the rows that belong there."""
        each = labels.new_zeros(clients.number * columns)
        each = each.index_add_(0, clients.of * columns + column, values.long()).view(-1, columns)
        return torch.cat([each, each.new_zeros(wholes.number, columns).index_add_(0, owner, each)])

    some = max(1, SORTED_AT_ONCE // classes)
    parts = map(row_by_row, logits.split(some), labels.split(some))
    finite, top, answer, likeliest, distance = (torch.cat(values) for values in zip(*parts, strict=True))
    right = finite & (answer == labels)
    confidence = torch.where(finite, likeliest.exp(), 1.0)
    place = ((confidence * BINS).ceil() - 1).clamp(0, BINS - 1).long()
    samples = tally(torch.ones_like(labels), labels, classes)

    if classes == 2:
        # The difference of the logits tells samples apart where both probabilities are rounded to 1.
        logits, top, likeliest = logits - logits.double().flip(1), torch.zeros_like(top), torch.zeros_like(likeliest)
    ranked = []
    width = max(1, SORTED_AT_ONCE // len(labels))
    numbers = torch.arange(classes, device=device)
    for chosen, some, own in zip(logits.T.split(width), numbers.split(width), samples.split(width, 1), strict=True):
        values = chosen.contiguous() - top.double() + likeliest  # as log_softmax computes it
        level = levels(torch.where(finite, values, torch.where(labels == some[:, None], -math.inf, math.inf)))
        kinds = zip((clients, wholes), own.split([clients.number, wholes.number]), strict=True)
        ranked.append(torch.cat([spans.ranked(level, labels - some[0], number) for spans, number in kinds], 1))
    above, precision = torch.cat(ranked, 2)

    counts = {
        "samples": samples,
        "answers": tally(finite, answer, classes),
        "right": tally(right, labels, classes),
        "above": above,
        "precision": precision,
        "distance": tally((torch.where(finite, distance, 1.0) * UNIT).round(), torch.zeros_like(labels), 1),
        "surplus": tally(((right.double() - confidence) * UNIT).round(), place, BINS),
    }
    return ScoreCounts(**{name: values.double() for name, values in counts.items()})


def row_by_row(logits: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Return for each row: whether it is finite, its highest logit, the class of that, and its log-probability.

    Also half the squared distance of its probabilities from its label.
    """
    logs = logits.double().log_softmax(1)
    true = logs.gather(1, labels[:, None])[:, 0].exp()
    distance = (logs.exp().square().sum(1) + 1) / 2 - true
    return torch.isfinite(logits).all(1), *logits.max(1), logs.amax(1), distance


def levels(values: Tensor) -> Tensor:
    """Return how many different values of its row are below each value: whole numbers of the same order and ties."""
    order = torch.from_numpy(values.numpy().argsort(1)) if values.device.type == "cpu" else values.argsort(1)
    ordered = values.gather(1, order)
    level = torch.zeros_like(order)
    level[:, 1:] = (ordered[:, 1:] > ordered[:, :-1]).cumsum(1)
    return torch.empty_like(level).scatter_(1, order, level)


def ascending(values: Tensor) -> Tensor:
    """Return the values in order along the last axis; on the CPU by numpy, several times faster than torch."""
    return torch.from_numpy(np.sort(values.numpy())) if values.device.type == "cpu" else values.sort().values
