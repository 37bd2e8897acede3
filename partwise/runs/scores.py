"""What is counted of answers, for every client and all together, of several moments at once, where the logits lie.

Sums are of whole numbers: on a GPU their order differs from run to run, which shows in sums of fractions, and only in
these. The launches do not grow with the clients, and nothing here waits for the device.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BINS = 15  # of equal width, in which confidence is compared with accuracy
UNIT = 2.0**40  # confidence is summed in parts of 1 / UNIT: those of 8 million samples fit into 64 bits
MOST = 2**22  # numbers to work on at once: a few hundred megabytes while they are sorted


@dataclass(frozen=True)
class Judged:
    """What clients answered at one moment, client after client, and what is true."""

    logits: Tensor  # (rows, classes)
    labels: Tensor  # (rows,), on the same device
    clients: Sequence[int]
    sizes: Sequence[int]  # how many of the rows are of each client


@dataclass(frozen=True)
class Counts:
    """Whole numbers, as float64: a row for each client with samples, set after set, and then one for each set."""

    samples: Tensor  # (stretches, classes): how many are of the class
    answers: Tensor  # (stretches, classes): how many got the class as their answer
    right: Tensor  # (stretches, classes): how many are of the class and got it as their answer
    above: Tensor  # (stretches, classes): 2 for a sample of the class and another of less of the class; 1 if of as much
    surplus: Tensor  # (stretches, BINS): right answers less confidence, in parts of 1 / UNIT

    @property
    def total(self) -> Tensor:
        """(stretches,): how many samples there are."""
        return self.samples.sum(1)

    @property
    def nonfinite(self) -> Tensor:
        """(stretches,): how many samples got no answer, because their logits are not finite."""
        return self.total - self.answers.sum(1)


class Stretches:
    """Rows that belong together follow one another: the first `sizes[0]` of them, the next `sizes[1]`, and so on."""

    def __init__(self, sizes: Sequence[int], device: torch.device):
        lengths = torch.tensor(sizes).to(device, non_blocking=True)
        self.number = len(sizes)
        self.first = lengths.cumsum(0) - lengths
        self.of = torch.arange(self.number, device=device).repeat_interleave(lengths, output_size=sum(sizes))  # (rows,)

    def tally(self, values: Tensor, column: Tensor, columns: int) -> Tensor:
        """(stretches, columns): sums of the values, whole numbers, of the rows that belong there."""
        sums = values.new_zeros(self.number * columns).index_add_(0, self.of * columns + column, values)
        return sums.view(-1, columns)

    def above(self, level: Tensor, own: Tensor) -> Tensor:
        """(stretches, classes): `Counts.above` by the level of each class in each row; `own` are the rows' classes.

        `level` is (classes, rows), of whole numbers below the number of rows. A class out of its range is passed over.
        """
        classes, rows = level.shape
        number = torch.arange(classes, device=own.device)[:, None]
        keys = (number * self.number + self.of) * rows + level  # they order by class, then by stretch, then by level
        line = ascending(keys).flatten()
        known = (own >= 0) & (own < classes)
        wanted = keys.gather(0, own.clamp(0, classes - 1)[None])[0].where(known, self.number * classes * rows)
        wanted = ascending(wanted)  # neighbours are found faster than strangers
        found = torch.searchsorted(line, torch.stack([wanted, wanted + 1])).sum(0)  # before it, and up to its equals
        sums, samples = (
            values.new_zeros(classes * self.number + 1).index_add_(0, wanted // rows, values)[:-1].view(classes, -1)
            for values in (found, torch.ones_like(found))
        )
        before = number * rows + self.first  # in the line, of other classes and stretches
        return (sums - 2 * before * samples - samples.square()).T  # nor does the class count against itself


def count(judged: Sequence[Judged]) -> Counts:
    """Count the answers of several sets, each with at least one row, over the same classes and on the same device."""
    logits, labels = torch.cat([one.logits for one in judged]), torch.cat([one.labels for one in judged])
    classes, device = logits.shape[1], logits.device
    clients = Stretches([size for one in judged for size in one.sizes if size], device)
    wholes = Stretches([len(one.labels) for one in judged], device)

    def tally(values: Tensor, column: Tensor, columns: int) -> Tensor:
        return torch.cat([stretches.tally(values.long(), column, columns) for stretches in (clients, wholes)])

    finite, answer = torch.isfinite(logits).all(1), logits.argmax(1)
    right = finite & (answer == labels)
    parts = logits.split(max(1, MOST // classes))
    likeliest = torch.cat([part.double().log_softmax(1).amax(1) for part in parts])
    confidence = torch.where(finite, likeliest.exp(), 1.0)
    place = ((confidence * BINS).ceil() - 1).clamp(0, BINS - 1).long()

    above = []
    width = max(1, MOST // len(labels))
    for first in range(0, classes, width):
        level = levels(evidence(logits, labels, finite, likeliest, slice(first, first + width)))
        above.append(torch.cat([stretches.above(level, labels - first) for stretches in (clients, wholes)]))

    counts = (
        tally(torch.ones_like(labels), labels, classes),
        tally(finite, answer, classes),
        tally(right, labels, classes),
        torch.cat(above, 1),
        tally(((right.double() - confidence) * UNIT).round(), place, BINS),
    )
    return Counts(*(values.double() for values in counts))


def evidence(logits: Tensor, labels: Tensor, finite: Tensor, likeliest: Tensor, some: slice) -> Tensor:
    """(classes, rows): the log-probability of some classes; `likeliest` is each row's highest."""
    chosen = logits[:, some].T.contiguous()
    if logits.shape[1] == 2:
        # The difference of the logits tells samples apart where both probabilities are rounded to 1.
        values = chosen.double() - logits.flip(1)[:, some].T
    else:
        values = chosen - logits.amax(1).double() + likeliest  # as log_softmax computes it
    number = torch.arange(logits.shape[1], device=logits.device)[some, None]
    return torch.where(finite, values, torch.where(labels == number, -math.inf, math.inf))


def levels(values: Tensor) -> Tensor:
    """How many different values of its row are below each value: whole numbers of the same order and ties."""
    order = torch.from_numpy(values.numpy().argsort(1)) if values.device.type == "cpu" else values.argsort(1)
    ordered = values.gather(1, order)
    level = torch.zeros_like(order)
    level[:, 1:] = (ordered[:, 1:] > ordered[:, :-1]).cumsum(1)
    return torch.empty_like(level).scatter_(1, order, level)


def ascending(values: Tensor) -> Tensor:
    """The values in order along the last axis; on the CPU by numpy, which is several times faster than torch there."""
    return torch.from_numpy(np.sort(values.numpy())) if values.device.type == "cpu" else values.sort().values
