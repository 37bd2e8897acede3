"""Pictures with a row for every method: distributions, bytes, shares and groups."""

from typing import Any

import numpy as np

from partwise.reporting.amounts import amount, with_unit
from partwise.reporting.drawing import (
    DARK,
    LETTER,
    LIGHT,
    TEXT_STYLE,
    draw_legend,
    name_axes,
    named_rows,
    short_text,
    tick_names,
)
from partwise.reporting.methods import share_kind
from partwise.reporting.style import PALE_MUTED, SHARES, muted
from partwise.reporting.views.kinds import Boxes, GroupChanges, Sharing, Stacks

HATCH = "////"
SMALL_TEXT = {**TEXT_STYLE, "fontsize": 7, "ha": "center", "va": "center_baseline"}  # letters inside a cell
WIDEST, ROOM = 9, 0.2  # inches: of all clients side by side, and of a client whose group is written down


def draw_boxes(view: Boxes) -> Any:
    """Return a figure of boxes that hold the middle half, with lines to the least and the greatest."""
    figure, axes = named_rows([short_text(each.name) for each in view.boxes])
    for row, each in enumerate(view.boxes):
        low, lower, median, upper, high = ((100 if view.percent else 1) * np.array(each.quartiles)).tolist()
        axes.hlines(row, low, high, color=each.look.ink, lw=1)
        axes.barh(row, upper - lower, 0.55, lower, color=each.look.ink, alpha=0.3, lw=0)
        axes.vlines(median, row - 0.275, row + 0.275, color=each.look.ink, lw=2)
    name_axes(axes, with_unit(view.quantity, view.percent))
    return figure


def draw_stacks(view: Stacks) -> Any:
    """Return a figure of a bar for every method: plain down, hatched up, a colour for every part."""
    figure, axes = named_rows([short_text(each.name) for each in view.stacks])
    for row, each in enumerate(view.stacks):
        begun = 0.0
        for part, look in view.parts.items():
            for own, hatch in ((each.down, ""), (each.up, HATCH)):
                size = own.get(part, 0)
                axes.barh(row, size, 0.62, begun, color=look.ink, hatch=hatch, ec="white", lw=0.5)
                begun += size
    axes.xaxis.set_major_formatter(lambda value, _: amount(value) if value else "0")
    name_axes(axes, f"{view.quantity}; hatched: up")
    draw_legend(figure, {part: look._replace(mark="square") for part, look in view.parts.items()})
    return figure


def draw_shares(view: Sharing) -> Any:
    """Return a figure with a row for every method and stage, a column for every part."""
    names = [f"{row.name}, {row.stage}" if row.stage else row.name for row in view.rows]
    width = max(0.95, LETTER * (max(map(len, view.parts)) + 2))
    figure, axes = named_rows([short_text(name, 40) for name in names], width * len(view.parts))
    axes.grid(visible=False)
    for number, row in enumerate(view.rows):
        for column, share in enumerate(row.shares):
            back, ink = SHARES.get(share_kind(share), (LIGHT if share else "white", DARK))
            hatch = HATCH if share_kind(share) == "frozen" else ""
            axes.barh(number, 0.94, 0.8, column + 0.03, color=back, hatch=hatch, ec="white")
            axes.text(column + 0.5, number, share, **{**SMALL_TEXT, "color": ink})
    axes.set(xlim=(0, len(view.parts)))
    axes.xaxis.tick_top()
    axes.set_xticks(np.arange(len(view.parts)) + 0.5, [short_text(part) for part in view.parts], **TEXT_STYLE)
    return figure


def draw_groups(view: GroupChanges) -> Any:
    """Return a figure with a column for every client, a row for every round after which groups changed."""
    place = min(0.3, WIDEST / len(view.order))
    figure, axes = named_rows([f"round {at}" for at in view.changes], place * len(view.order))
    axes.grid(visible=False)
    for row, groups in enumerate(view.changes.values()):
        looks = [muted(groups[client]) for client in view.order]
        axes.bar(range(len(looks)), 0.86, 0.9, row - 0.43, color=[look.ink for look in looks])
        for column, client in enumerate(view.order if place > ROOM else ()):
            ink = DARK if looks[column].colour in PALE_MUTED else "white"
            axes.text(column, row, str(groups[client]), **{**SMALL_TEXT, "color": ink})
    axes.set(xlim=(-0.5, len(view.order) - 0.5))
    tick_names(axes, range(len(view.order)), [view.clients[client] for client in view.order], place)
    name_axes(axes, "client")
    return figure
