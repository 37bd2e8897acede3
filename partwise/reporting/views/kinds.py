"""The kinds of views: frozen numbers with names, without a word on who draws them.

Shares are fractions, shown in percent; other numbers are shown as they are. NaN is a number that does not exist: it
leaves a gap.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from partwise.reporting.amounts import amount
from partwise.reporting.style import Look, look, muted

FAR_APART = 20  # from this ratio on costs are compared by their logarithms
MOST_TICKS = 5  # powers of ten that are named

Values = Mapping[float, float | None]


# ---- lines


@dataclass(frozen=True)
class Line:
    """Numbers along an axis."""

    name: str
    look: Look
    x: Sequence[float]
    y: Sequence[float]
    deviations: Sequence[float] = ()  # half the height of a band around it, at each x; empty: there is no band
    starts: Sequence[float] = ()  # the x of its points at which a stage begins
    texts: Sequence[str] = ()  # what its points are called

    @property
    def known(self) -> list[float]:
        """Return the numbers that exist."""
        return [value for value in self.y if math.isfinite(value)]


@dataclass(frozen=True)
class Curves:
    """Lines over the same axis; beside the name of each stands its last number, or the mean of all."""

    lines: Sequence[Line]
    title: str = ""
    across: str = "round"
    quantity: str = "accuracy"
    percent: bool = True
    beside: Literal["last", "mean"] = "last"

    def number_of(self, line: Line) -> float:
        """Return the number that stands beside a line's name; NaN where it has none."""
        if not line.known:
            return math.nan
        return line.known[-1] if self.beside == "last" else math.fsum(line.known) / len(line.known)


def line_of(name: str, own: Look, values: Values) -> Line:
    """Return a line through the values that were measured, by x; None was not measured."""
    points = sorted((x, y) for x, y in values.items() if y is not None)
    return Line(name, own, [x for x, _ in points], [y for _, y in points])


def mean_line(name: str, own: Look, seeds: Sequence[Mapping[int, float]], starts: Iterable[int] = ()) -> Line | None:
    """Return the mean over seeds by round, in a band of their standard deviation; None where nothing was measured.

    A stage is marked in its first round that was measured.
    """
    rounds = sorted({number for values in seeds for number in values})
    if not rounds:
        return None
    means, deviations = [], []
    for number in rounds:
        found = [values[number] for values in seeds if not math.isnan(values.get(number, math.nan))]
        means.append(statistics.fmean(found) if found else math.nan)
        deviations.append(statistics.stdev(found) if len(found) > 1 else 0.0)
    measured = [next((number for number in rounds if number >= begun), None) for begun in starts]
    known = [number for number in measured if number is not None]
    return Line(name, own, rounds, means, deviations if any(deviations) else (), known)


def curves_of(
    values: Mapping[str, Values],
    title: str = "",
    *,
    across: str = "round",
    quantity: str = "accuracy",
    percent: bool = True,
) -> Curves:
    """Return a line for every name, each in a look of its own."""
    own = [line_of(name, look(number), each) for number, (name, each) in enumerate(values.items())]
    return Curves(own, title, across, quantity, percent)


def ranked_line(name: str, own: Look, values: Sequence[float | None], texts: Sequence[str] = ()) -> Line:
    """Return values of clients in ascending order, by rank from 1; those that do not exist are left out."""
    known = sorted(value for value in values if value is not None and math.isfinite(value))
    return Line(name, own, range(1, len(known) + 1), known, texts=texts)


def ranked_lines(each: Sequence[Line], title: str = "", *, quantity: str = "accuracy", percent: bool = True) -> Curves:
    """Return the view of some lines of ranks; beside each stands its mean (scheduling Fig. 5)."""
    return Curves(each, title, "clients in ascending order", quantity, percent, beside="mean")


# ---- a row for every method


@dataclass(frozen=True)
class Box:
    """Numbers whose distribution is shown."""

    name: str
    look: Look
    values: Sequence[float]

    @property
    def quartiles(self) -> list[float]:
        """Return least, lower quartile, median, upper quartile, greatest."""
        own = sorted(self.values)
        cuts = statistics.quantiles(own, n=4, method="inclusive") if len(own) > 1 else own * 3
        return [own[0], *cuts, own[-1]]


@dataclass(frozen=True)
class Boxes:
    """Distributions one below the other."""

    boxes: Sequence[Box]
    quantity: str = "accuracy of clients"
    percent: bool = True


@dataclass(frozen=True)
class Stack:
    """Bytes by part, down and up."""

    name: str
    look: Look
    down: Mapping[str, float]
    up: Mapping[str, float]


@dataclass(frozen=True)
class Stacks:
    """Stacked bars one below the other: a colour for every part."""

    stacks: Sequence[Stack]
    quantity: str = "bytes in the whole run"

    @property
    def parts(self) -> dict[str, Look]:
        """Return how each part looks."""
        names = dict.fromkeys(part for each in self.stacks for part in (*each.down, *each.up))
        return {part: muted(number) for number, part in enumerate(names)}


@dataclass(frozen=True)
class ShareRow:
    """The share of each part, empty where there is none, in the stages that `stage` names."""

    name: str
    look: Look
    stage: str
    shares: Sequence[str]


@dataclass(frozen=True)
class Sharing:
    """Who shares each part, a row for every method and stage."""

    parts: Sequence[str]
    rows: Sequence[ShareRow]

    @property
    def kinds(self) -> list[str]:
        """Return the shares that occur."""
        return list(dict.fromkeys(share for row in self.rows for share in row.shares if share))


@dataclass(frozen=True)
class GroupChanges:
    """The group of every client in the rounds after which groups changed."""

    clients: Sequence[str]
    changes: Mapping[int, Sequence[int]]  # by round

    @cached_property
    def order(self) -> list[int]:
        """Return the clients by their last group."""
        *_, last = self.changes.values()
        return sorted(range(len(last)), key=lambda client: (last[client], client))


# ---- the others


@dataclass(frozen=True)
class Point:
    """What a method costs, and how well it does."""

    name: str
    look: Look
    cost: float
    value: float
    deviation: float | None = None


@dataclass(frozen=True)
class CostScale:
    """Where costs lie on their axis; `ticks` are names by place, empty where an axis of plain numbers does."""

    places: Sequence[float]
    ticks: Mapping[float, str]
    ends: tuple[float, float]


@dataclass(frozen=True)
class Points:
    """How well methods do against what they cost."""

    points: Sequence[Point]
    across: str
    unit: str
    quantity: str = "accuracy"
    percent: bool = True
    lower: bool = False  # a lower value is better

    @property
    def frontier(self) -> list[Point]:
        """Return the points that no other beats: whatever costs no more does worse."""
        best: list[Point] = []
        sign = -1 if self.lower else 1
        for point in sorted(self.points, key=lambda point: (point.cost, -sign * point.value)):
            if not best or sign * point.value > sign * best[-1].value:
                best.append(point)
        return best

    @property
    def scale(self) -> CostScale:
        """Return the scale of costs: logarithms where they are far apart, with a place for 0."""
        known = [point.cost for point in self.points if point.cost > 0]
        if max(known) / min(known) < FAR_APART:
            return CostScale([point.cost for point in self.points], {}, (0, 1.06 * max(known)))
        low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
        nothing = low - 1
        places = [math.log10(point.cost) if point.cost > 0 else nothing for point in self.points]
        decades = list(range(low, high + 1, math.ceil((high - low + 1) / MOST_TICKS)))
        ticks = {float(nothing): "0"} if nothing in places else {}
        ticks |= {float(decade): amount(10.0**decade, self.tick_unit) for decade in decades}
        return CostScale(places, ticks, (min(ticks) - 0.3, high + 0.2))

    @property
    def tick_unit(self) -> str:
        """Return the unit at the ticks of the axis, whose title names all but bytes."""
        return self.unit if self.unit == "B" else ""


@dataclass(frozen=True)
class SampleCounts:
    """How many training samples of each class every client has, or of each bin of other labels."""

    clients: Sequence[str]
    classes: Sequence[str]
    counts: Sequence[Sequence[int]]  # client x class
    title: str = ""
    what: str = "class"  # what a class is called


@dataclass(frozen=True)
class Bars:
    """Groups of bars with their numbers: a group for every data set, a bar for every method (FedTC Fig. 3)."""

    groups: Mapping[str, Mapping[str, float | None]]
    title: str = ""
    quantity: str = "accuracy"
    percent: bool = True


@dataclass(frozen=True)
class Similarity:
    """The CKA of every two clients, 0 .. 1."""

    values: Sequence[Sequence[float]]
    names: Sequence[str]
    title: str = ""


@dataclass(frozen=True)
class Clouds:
    """Samples on planes, (samples, 3) x, y and class each; `classes` are the names of the first ones."""

    panels: Mapping[str, NDArray[np.float64]]
    classes: Sequence[str] = ()
    title: str = ""

    @property
    def labels(self) -> dict[int, Look]:
        """Return how each class looks, the same in every panel."""
        found = sorted({int(label) for rows in self.panels.values() for label in rows[:, 2]})
        return {label: muted(number) for number, label in enumerate(found)}

    def name_of(self, label: int) -> str:
        """Return the name of a class; its number where it has none."""
        return self.classes[label] if label < len(self.classes) else str(label)


View = Curves | Boxes | Stacks | Sharing | GroupChanges | Points | SampleCounts | Bars | Similarity | Clouds
