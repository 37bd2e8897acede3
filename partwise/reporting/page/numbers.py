"""The table below a chart: the numbers of a view as text, the first row the header."""

from collections.abc import Callable
from typing import Any

from partwise.reporting.amounts import amount, decimals, measured, with_unit
from partwise.reporting.views import kinds

TextTable = list[list[str]]


def numbers(view: kinds.View) -> TextTable:
    """Return the numbers of a view."""
    return TABULATORS[type(view)](view)


def line_table(view: kinds.Curves) -> TextTable:
    """Return a column for every line, with its deviation where it has a band."""
    places = sorted({x for each in view.lines for x in each.x})
    columns = []
    for each in view.lines:
        apart = each.deviations or [0.0] * len(each.x)
        columns.append({x: (y, deviation) for x, y, deviation in zip(each.x, each.y, apart, strict=True)})
    rows = []
    for x in places:
        cells = [column.get(x, (None, 0.0)) for column in columns]
        texts = [measured(y, view.percent) + (f" ± {measured(d, view.percent, y)}" if d > 0 else "") for y, d in cells]
        rows.append([f"{x:g}", *texts])
    return [[view.across, *(each.name for each in view.lines)], *rows]


def box_table(view: kinds.Boxes) -> TextTable:
    """Return the quartiles of every box."""
    rows = [[each.name, *(measured(value, view.percent) for value in each.quartiles)] for each in view.boxes]
    return [["method", "least", "lower quartile", "median", "upper quartile", "greatest"], *rows]


def stack_table(view: kinds.Stacks) -> TextTable:
    """Return the bytes of every method and part."""
    rows = [
        [each.name, part, *(amount(own.get(part, 0)) for own in (each.down, each.up))]
        for each in view.stacks
        for part in view.parts
        if part in each.down or part in each.up
    ]
    return [["method", "part", "down", "up"], *rows]


def group_table(view: kinds.GroupChanges) -> TextTable:
    """Return the group of every client, a column for every change."""
    rows = [[view.clients[c], *(str(own[c]) for own in view.changes.values())] for c in view.order]
    return [["client", *(f"round {at}" for at in view.changes)], *rows]


def point_table(view: kinds.Points) -> TextTable:
    """Return cost and value of every method."""
    rows = [[each.name, amount(each.cost, view.unit), measured(each.value, view.percent)] for each in view.points]
    return [["method", view.across, with_unit(view.quantity, view.percent)], *rows]


def count_table(view: kinds.SampleCounts) -> TextTable:
    """Return samples by client and class."""
    rows = [[name, *map(str, own)] for name, own in zip(view.clients, view.counts, strict=True)]
    return [["client", *view.classes], *rows]


def matrix_table(view: kinds.Similarity) -> TextTable:
    """Return the matrix with its names."""
    own = zip(view.names, view.values, strict=True)
    return [["client", *view.names], *([name, *(decimals(value, digits=3) for value in row)] for name, row in own)]


def cloud_table(view: kinds.Clouds) -> TextTable:
    """Return every sample with its class."""
    rows = [row for panel in view.panels.values() for row in panel.tolist()]
    return [["x", "y", "class"], *([decimals(x), decimals(y), view.name_of(int(label))] for x, y, label in rows)]


TABULATORS: dict[type[kinds.View], Callable[[Any], TextTable]] = {
    kinds.Curves: line_table,
    kinds.Boxes: box_table,
    kinds.Stacks: stack_table,
    kinds.GroupChanges: group_table,
    kinds.Points: point_table,
    kinds.SampleCounts: count_table,
    kinds.Similarity: matrix_table,
    kinds.Clouds: cloud_table,
}
