"""Pictures of points, bubbles, bars and maps."""

import math
from typing import Any

import numpy as np

from partwise.errors import needed
from partwise.reporting.amounts import amount, with_unit
from partwise.reporting.drawing import (
    DARK,
    GREY,
    LETTER,
    LIGHT,
    LINE_HEIGHT,
    PALE,
    TEXT_STYLE,
    Style,
    canvas,
    draw_legend,
    every,
    mark,
    name_axes,
    quiet_axes,
    round_numbers,
    short_text,
    tick_names,
)
from partwise.reporting.style import MARKS, look
from partwise.reporting.views.kinds import Bars, Clouds, Points, SampleCounts, Similarity

MOST_WRITTEN = 12  # clients of a heat map whose cells have room for a number
KEYED = 60  # classes that a key can tell apart
BUBBLE_PLACE, LONGEST_SIDE = 0.42, 14.0  # inches: of a bubble's place at most, and of a side of the axes


def draw_points(view: Points) -> Any:
    """Return a figure of what ranks against cost, with a dashed line through the Pareto front."""
    figure, axes = canvas(4.6, 3.2)
    scale = view.scale
    at = {id(point): place for point, place in zip(view.points, scale.places, strict=True)}
    steps = [at[id(point)] for point in view.frontier] + [max(scale.places)]
    factor = 100 if view.percent else 1
    heights = [factor * point.value for point in view.frontier]
    axes.step(steps, [*heights, heights[-1]], where="post", color=GREY, lw=1, ls=(0, (4, 3)), zorder=1)
    for point in view.points:
        style: Style = {"color": point.look.ink, "marker": mark(point.look), "zorder": 2, "clip_on": False}
        style |= {"ms": 7, "mew": 0, "elinewidth": 1}
        axes.errorbar(at[id(point)], factor * point.value, factor * (point.deviation or 0), **style)
    axes.set(xlim=scale.ends)
    if scale.ticks:
        axes.set_xticks(list(scale.ticks), list(scale.ticks.values()))
    else:
        axes.xaxis.set_major_formatter(lambda value, _: amount(value, view.tick_unit) if value else "0")
    name_axes(axes, view.across, with_unit(view.quantity, view.percent))
    draw_legend(figure, {point.name: point.look for point in view.points})
    return figure


def draw_clouds(view: Clouds) -> Any:
    """Return a figure of planes side by side, coloured by class (Fed3+2p Fig. 3)."""
    side, gap = 2.7, 0.18
    width = max(1, len(view.panels)) * (side + gap) - gap
    figure, axes = canvas(width, side, view.title, pad=26)
    axes.set_axis_off()
    looks = view.labels
    for number, (name, rows) in enumerate(view.panels.items()):
        panel = quiet_axes(figure.add_axes((number * (side + gap) / width, 0, side / width, 1), facecolor=PALE))
        panel.grid(visible=False)
        panel.set(xticks=[], yticks=[])
        panel.set_aspect("equal", adjustable="datalim")
        panel.set_title(short_text(name, 40), loc="left", **{**TEXT_STYLE, "fontsize": 9})
        known = rows[np.isfinite(rows).all(axis=1)]
        size = float(np.clip(6000 / max(1, len(known)), 3, 24))
        marks = np.array([looks[int(label)].mark for label in known[:, 2]])
        for name, own in MARKS.items():  # in the order of samples, not of classes: none covers all others
            x, y, labels = known[marks == name].T
            colours = [looks[int(label)].ink for label in labels]
            panel.scatter(x, y, size, colours, marker=own.matplotlib, alpha=0.8, lw=0, rasterized=len(known) > 10_000)
    if len(looks) <= KEYED:
        draw_legend(figure, {view.name_of(label): own for label, own in looks.items()})
    return figure


def draw_bars(view: Bars) -> Any:
    """Return a figure of groups of bars with their numbers."""
    factor, digits = (100, 1) if view.percent else (1, 2)
    names = list(dict.fromkeys(name for values in view.groups.values() for name in values))
    wide, gap = 0.42, 0.32  # inches: a bar's place, and the room between groups
    named = LETTER * (max((len(short_text(name, 18)) for name in view.groups), default=0) + 2)
    step = max(len(names) * wide + gap, named)
    figure, axes = canvas(max(1.2, len(view.groups) * step), 2.6, view.title)
    axes.grid(visible=False, axis="x")
    for number, name in enumerate(names):
        for group, values in enumerate(view.groups.values()):
            place, value = (group + 0.5) * step + (number + 0.5 - len(names) / 2) * wide, values.get(name)
            height = factor * value if value is not None and math.isfinite(value) else math.nan
            axes.bar(place, height, 0.86 * wide, color=look(number).ink)
            text = f"{height:.{digits}f}" if math.isfinite(height) else "-"
            above, up = ("top", -3) if height < 0 else ("bottom", 2)
            at: Style = {"xytext": (0, up), "textcoords": "offset points", "ha": "center", "va": above}
            axes.annotate(text, (place, np.nan_to_num(height)), **at, **TEXT_STYLE)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.margins(y=0.1)
    axes.set(xlim=(0, max(1.2, len(view.groups) * step)))
    if not any(bar.get_height() for bar in axes.patches if math.isfinite(bar.get_height())):
        axes.set(ylim=(0, factor))
    tick_names(axes, [(group + 0.5) * step for group in range(len(view.groups))], list(view.groups), step)
    name_axes(axes, "", with_unit(view.quantity, view.percent))
    if len(names) > 1:
        draw_legend(figure, {name: look(number)._replace(mark="square") for number, name in enumerate(names)})
    return figure


def draw_matrix(view: Similarity) -> Any:
    """Return a figure of a map; darker cells are more similar, cells without a number pale grey."""
    clients = len(view.values)
    values = np.array(view.values, dtype=np.float64) if clients else np.full((1, 1), np.nan)
    place = min(0.42, 7 / len(values))
    side = place * len(values)
    figure, axes = canvas(side, side, view.title)
    axes.grid(visible=False)
    blues = needed("matplotlib", "plots").colormaps["Blues"].with_extremes(bad=LIGHT)
    image = axes.imshow(values, blues, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    if clients <= MOST_WRITTEN:
        for (row, column), value in np.ndenumerate(values):
            colour = "white" if value > 0.5 else DARK
            text = f"{value:.2f}" if math.isfinite(value) else "-"
            style = {**TEXT_STYLE, "fontsize": 7, "color": colour, "ha": "center", "va": "center_baseline"}
            axes.text(column, row, text, **style)
    tick_names(axes, range(clients), view.names, place, both=True)
    bar = quiet_axes(figure.add_axes((1 + 0.15 / side, 0, 0.1 / side, 1)))
    figure.colorbar(image, cax=bar, ticks=(0, 0.5, 1)).outline.set_visible(False)
    bar.tick_params(length=0)
    bar.set_xlabel("CKA", **TEXT_STYLE)  # not above, where a long title of the map goes on
    return figure


def draw_counts(view: SampleCounts) -> Any:
    """Return a figure of bubbles, class x client, whose areas are the numbers of training samples."""
    counts = np.array(view.counts)
    places = [min(BUBBLE_PLACE, LONGEST_SIDE / number) for number in counts.shape]
    width, height = (place * number for place, number in zip(places, counts.shape, strict=True))
    figure, axes = canvas(width, height, view.title, pad=6)

    diameter = max(6.0, 0.95 * 72 * min(places))  # points, of the largest bubble
    area = diameter**2 / max(1, counts.max())
    # Where there are so many places that bubbles may touch, they shine through.
    alpha = 1.0 if diameter < 72 * min(places) else 0.7
    style: Style = {"color": look(0).ink, "linewidths": 0, "alpha": alpha, "clip_on": False}
    client, label = counts.nonzero()
    axes.scatter(client, label, area * counts[client, label], zorder=2, rasterized=len(client) > 10_000, **style)

    classes = [short_text(name) for name in view.classes]
    tick_names(axes, range(len(view.clients)), view.clients, places[0])
    step = every(LINE_HEIGHT / places[1])
    axes.set_yticks(range(0, len(classes), step), classes[::step], **TEXT_STYLE)
    axes.set(xlim=(-0.5, len(view.clients) - 0.5), ylim=(len(classes) - 0.5, -0.5))
    name_axes(axes, "client", view.what)

    # The key, laid out in points: matplotlib's legends are made for small marks.
    sizes = round_sizes(int(counts.max()))
    wide, tall = diameter + 40, 26 + len(sizes) * (diameter + 4)
    legend = figure.add_axes((1 + 0.25 / width, 1 - tall / 72 / height, wide / 72 / width, tall / 72 / height))
    legend.set(xlim=(0, wide), ylim=(tall, 0))
    legend.set_axis_off()
    legend.text(0, 0, "training\nsamples", va="top", **TEXT_STYLE)
    for number, size in enumerate(sizes):
        down = 26 + (number + 0.5) * (diameter + 4)
        legend.scatter(diameter / 2, down, area * size, **style)
        legend.text(diameter + 6, down, f"{size:,}", va="center_baseline", **TEXT_STYLE)
    return figure


def round_sizes(largest: int) -> list[int]:
    """Return sizes to compare bubbles with: round numbers at or below the largest, its quarter and its sixteenth."""
    parts = [max(1, largest // part) for part in (1, 4, 16)]
    return sorted({max(size for size in round_numbers() if size <= part) for part in parts}, reverse=True)
