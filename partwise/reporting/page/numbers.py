"""The table below a chart: the numbers of a view as text, the first row the header."""

from collections.abc import Callable
from typing import Any

from partwise.reporting.amounts import amount, decimals
from partwise.reporting.views import kinds

Table = list[list[str]]


def numbers(view: kinds.View) -> Table:
    """Return the numbers of a view."""
    return TABLES[type(view)](view)


def lines(view: kinds.Lines) -> Table:
    """Return a column for every line, with its deviation where it has a band."""
    factor, digits = (100, 2) if view.percent else (1, 4)
    places = sorted({x for each in view.lines for x in each.x})
    columns = []
    for each in view.lines:
        apart = each.deviations or [0.0] * len(each.x)
        columns.append({x: (y, deviation) for x, y, deviation in zip(each.x, each.y, apart, strict=True)})
    rows = []
    for x in places:
        cells = [column.get(x, (None, 0.0)) for column in columns]
        texts = [decimals(y, factor, digits) + (f" ± {decimals(d, factor, digits)}" if d > 0 else "") for y, d in cells]
        rows.append([f"{x:g}", *texts])
    return [[view.across, *(each.name for each in view.lines)], *rows]


def boxes(view: kinds.Boxes) -> Table:
    """Return the quartiles of every box."""
    rows = [[each.name, *(decimals(value, 100) for value in each.quartiles)] for each in view.boxes]
    return [["method", "least", "lower quartile", "median", "upper quartile", "greatest"], *rows]


def stacks(view: kinds.Stacks) -> Table:
    """Return the bytes of every method and part."""
    rows = [
        [each.name, part, *(amount(own.get(part, 0)) for own in (each.down, each.up))]
        for each in view.stacks
        for part in view.parts
        if part in each.down or part in each.up
    ]
    return [["method", "part", "down", "up"], *rows]


def groups(view: kinds.Groups) -> Table:
    """Return the group of every client, a column for every change."""
    rows = [[view.clients[c], *(str(own[c]) for own in view.changes.values())] for c in view.order]
    return [["client", *(f"round {at}" for at in view.changes)], *rows]


def points(view: kinds.Points) -> Table:
    """Return cost and accuracy of every method."""
    rows = [[each.name, amount(each.cost, view.unit), decimals(each.value, 100)] for each in view.points]
    return [["method", view.across, "accuracy (%)"], *rows]


def counts(view: kinds.Counts) -> Table:
    """Return samples by client and class."""
    rows = [[name, *map(str, own)] for name, own in zip(view.clients, view.counts, strict=True)]
    return [["client", *view.classes], *rows]


def matrix(view: kinds.Matrix) -> Table:
    """Return the matrix with its names."""
    own = zip(view.names, view.values, strict=True)
    return [["client", *view.names], *([name, *(decimals(value, digits=3) for value in row)] for name, row in own)]


def clouds(view: kinds.Clouds) -> Table:
    """Return every sample with its class."""
    rows = [row for panel in view.panels.values() for row in panel.tolist()]
    return [["x", "y", "class"], *([decimals(x), decimals(y), view.name_of(int(label))] for x, y, label in rows)]


TABLES: dict[type[kinds.View], Callable[[Any], Table]] = {
    kinds.Lines: lines,
    kinds.Boxes: boxes,
    kinds.Stacks: stacks,
    kinds.Groups: groups,
    kinds.Points: points,
    kinds.Counts: counts,
    kinds.Matrix: matrix,
    kinds.Clouds: clouds,
}
