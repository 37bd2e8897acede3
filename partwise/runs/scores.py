"""What is counted of answers, for every client and all together, of several moments at once, where the logits lie.

Sums are of whole numbers: on a GPU their order differs from run to run, which shows in sums of fractions, and only in
these. The launches do not grow with the clients, and nothing here waits for the device.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

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


def count(judged: Sequence[Judged]) -> Counts:
    """Count the answers of several sets, each with at least one row, over the same classes and on the same device."""
    logits, labels = torch.cat([one.logits for one in judged]), torch.cat([one.labels for one in judged])
    classes, device = logits.shape[1], logits.device
    each = [size for one in judged for size in one.sizes if size]
    whole = [len(one.labels) for one in judged]
    owner = there([number for number, one in enumerate(judged) for size in one.sizes if size], device)
    client = torch.arange(len(each), device=device).repeat_interleave(there(each, device), output_size=len(labels))

    def tally(values: Tensor, column: Tensor, columns: int) -> Tensor:
        """(stretches, columns): sums of the values of the samples that belong there."""
        sums = labels.new_zeros(len(each) * columns).index_add_(0, client * columns + column, values.long())
        sums = sums.view(-1, columns)
        return torch.cat([sums, sums.new_zeros(len(whole), columns).index_add_(0, owner, sums)])

    finite, answer = torch.isfinite(logits).all(1), logits.argmax(1)
    right = finite & (answer == labels)
    parts = logits.split(max(1, MOST // classes))
    likeliest = torch.cat([part.double().log_softmax(1).amax(1) for part in parts])
    confidence = torch.where(finite, likeliest.exp(), 1.0)
    counts = (
        tally(torch.ones_like(labels), labels, classes),
        tally(finite, answer, classes),
        tally(right, labels, classes),
        pairs_in_order(logits, labels, finite, likeliest, spans(each) + spans(whole)),
        tally(
            ((right.double() - confidence) * UNIT).round(),
            ((confidence * BINS).ceil() - 1).clamp(0, BINS - 1).long(),
            BINS,
        ),
    )
    return Counts(*(values.double() for values in counts))


def there(values: Sequence[Any], device: torch.device) -> Tensor:
    """The values on a device, which is not waited for."""
    return torch.tensor(values).to(device, non_blocking=True)


def spans(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """The first row and the size of stretches that follow one another."""
    return list(zip(accumulate(sizes, initial=0), sizes, strict=False))


def pairs_in_order(
    logits: Tensor, labels: Tensor, finite: Tensor, likeliest: Tensor, stretches: list[tuple[int, int]]
) -> Tensor:
    """(stretches, classes): `Counts.above`; `likeliest` is the log-probability of each row's answer."""
    classes, device = logits.shape[1], logits.device
    distinct = sorted(set(stretches), key=lambda span: span[1])  # a client that is alone in its set is the whole set
    place = {span: number for number, span in enumerate(distinct)}
    starts, sizes = there(distinct, device).T
    groups = list(alike([size for _, size in distinct]))
    top = logits.amax(1).double()
    if classes == 2:
        # The difference of the logits tells samples apart where both probabilities are rounded to 1.
        half = logits.double() / 2  # because the difference of the whole may be infinite
        logits, top, likeliest = half - half.flip(1), torch.zeros_like(top), torch.zeros_like(top)
    found = []
    for some in torch.arange(classes, device=device).split(max(1, MOST // len(labels))):
        values = logits[:, some].T.double() - top + likeliest  # as log_softmax has it, but of some classes alone
        values = torch.where(finite, values, torch.where(labels == some[:, None], -math.inf, math.inf))
        found.append(torch.cat([within(values, labels, some, starts[group], sizes[group], n) for group, n in groups]))
    return torch.cat(found, 1)[there([place[span] for span in stretches], device)]


def alike(sizes: Sequence[int]) -> Iterator[tuple[slice, int]]:
    """Cut ascending sizes into groups whose largest, which comes with each, is at most twice the smallest."""
    first = 0
    for last in range(1, len(sizes) + 1):
        if last == len(sizes) or sizes[last] > 2 * sizes[first]:
            yield slice(first, last), sizes[last - 1]
            first = last


def within(values: Tensor, labels: Tensor, classes: Tensor, starts: Tensor, sizes: Tensor, longest: int) -> Tensor:
    """(stretches, classes): `Counts.above` of stretches, filled up to the longest; `values` is (classes, rows).

    Pairs are counted from both sides. A sample of the class is above as many values as come before the first that
    equals its own. A value is at most as high as all samples of the class but those before the first that equals it.
    """
    column = torch.arange(longest, device=values.device)
    inside = column < sizes[:, None]
    rows = torch.where(inside, starts[:, None] + column, 0)
    own = inside & (labels[rows] == classes[:, None, None])
    # What fills a stretch up is above every sample of the class: none has an infinite value.
    ordered, order = ascending(torch.where(inside, values[:, rows], math.inf))
    own = own.gather(-1, order)
    first = torch.zeros_like(order)
    first[..., 1:] = torch.where(ordered[..., 1:] > ordered[..., :-1], column[1:], 0)
    first = first.cummax(-1).values
    less = (own.cumsum(-1) - own.long()).gather(-1, first)
    number = own.sum(-1)
    above, at_least = torch.where(own, first, 0).sum(-1), longest * number - less.sum(-1)
    return (above + at_least - number.square()).T  # without the pairs within the class


def ascending(values: Tensor) -> tuple[Tensor, Tensor]:
    """The values in ascending order along the last axis, and where they were."""
    if values.device.type == "cpu":  # numpy's is several times faster than torch's
        order = torch.from_numpy(values.numpy().argsort(-1))
        return values.gather(-1, order), order
    return torch.sort(values)
