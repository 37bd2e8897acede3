"""Lines as a picture, with their names beside them."""

import math
from typing import Any

import numpy as np

from partwise.errors import needed
from partwise.reporting.amounts import measured, with_unit
from partwise.reporting.drawing import (
    GREY,
    LETTER,
    NAME_HEIGHT,
    TEXT_STYLE,
    Style,
    canvas,
    name_axes,
    short_text,
    spread_out,
    stroke,
)
from partwise.reporting.views.kinds import Curves, Line

MOST_MARKED = 30  # points of a line that are marked one by one


def draw_lines(view: Curves) -> Any:
    """Return a figure of lines; right of them their names, each at the height of its number, if there is one."""
    figure, axes = canvas(5.4, max(3.2, NAME_HEIGHT * (len(view.lines) + 1)), view.title)
    for each in view.lines:
        plot_line(axes, each, view.percent)
    scale_rounds(axes, view)
    name_axes(axes, view.across, with_unit(view.quantity, view.percent))
    name_lines(axes, view)
    return figure


def plot_line(axes: Any, line: Line, percent: bool) -> Any:
    """Draw a line with its band and the points at which a stage begins; return its artist.

    Of a short line every point is marked, of a long one those that stand alone between two gaps.
    """
    x, y = np.array(line.x, dtype=np.float64), np.array(line.y, dtype=np.float64) * (100 if percent else 1)
    known = np.isfinite(y)
    y = np.where(known, y, np.nan)
    alone = known & ~np.append(False, known[:-1]) & ~np.append(known[1:], False)
    short = known.sum() <= MOST_MARKED
    marked = np.flatnonzero(known if short else alone).tolist()
    style: Style = {"lw": 1.6 if short else 1.2, "marker": "o", "ms": 3.5, "mew": 0, "markevery": marked}
    [drawn] = axes.plot(x, y, label=short_text(line.name), clip_on=False, **style, **stroke(line.look))
    if len(line.deviations):
        apart = np.array(line.deviations) * (100 if percent else 1)
        axes.fill_between(x, y - apart, y + apart, color=line.look.ink, alpha=0.12, lw=0, clip_on=False)
    at = np.isin(x, list(line.starts)) & known
    if at.any():
        axes.scatter(x[at], y[at], 36, "white", marker="D", edgecolors=line.look.ink, zorder=3, clip_on=False)
    return drawn


def scale_rounds(axes: Any, view: Curves) -> None:
    """Choose ticks, whole ones for whole numbers; scales that no numbers give are made up."""
    known = [x for line in view.lines for x, y in zip(line.x, line.y, strict=True) if math.isfinite(y)]
    ticker = needed("matplotlib.ticker", "plots")
    whole = all(float(x).is_integer() for x in known)
    axes.xaxis.set_major_locator(ticker.MaxNLocator(8, steps=[1, 2, 5, 10], integer=whole, min_n_ticks=1))
    if len({*known}) < 2:  # nothing to make a scale of
        axes.set(xlim=(min(known, default=0) - 1, max(known, default=0) + 1), xticks=[*{*known}])
    if not known:
        axes.set(ylim=(0, 100 if view.percent else 1))


def name_lines(axes: Any, view: Curves) -> None:
    """Write names right of the axes, each as high as its number: at a line's end, if it is its last."""
    factor = 100 if view.percent else 1
    width, height = axes.figure.get_size_inches()
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    numbers = {id(line): factor * view.number_of(line) for line in view.lines}
    lines = sorted(view.lines, key=lambda line: -math.inf if math.isnan(numbers[id(line)]) else numbers[id(line)])
    wanted = [0.0 if math.isnan(own := numbers[id(line)]) else (own - bottom) / (top - bottom) for line in lines]
    places = spread_out(wanted, NAME_HEIGHT / height, 1 - NAME_HEIGHT / height)
    column = 1.09 + LETTER * (max((len(short_text(line.name)) for line in lines), default=0) + 6) / width
    beside: Style = {"transform": axes.transAxes, "clip_on": False}
    text: Style = {"transform": axes.transAxes, "va": "center_baseline", **TEXT_STYLE}
    for line, at, place in zip(lines, wanted, places, strict=True):
        number = numbers[id(line)]
        if number in [factor * value for value in line.known[-1:]]:
            end = [x for x, y in zip(line.x, line.y, strict=True) if math.isfinite(y)][-1]
            across = (end - left) / (right - left)
            axes.plot((across, 1.03), (at, place), color=line.look.ink, lw=0.6, alpha=0.5, zorder=1, **beside)
        axes.plot((1.03, 1.075), (place, place), lw=1.6, **stroke(line.look), **beside)
        axes.text(1.09, place, short_text(line.name), **text)
        axes.text(column, place, measured(number / factor, view.percent, digits=1), ha="right", **text)
    axes.text(column, max(places, default=1) + NAME_HEIGHT / height, view.beside, ha="right", **{**text, "color": GREY})


def draw_on(axes: Any, view: Curves) -> None:
    """Draw lines on axes of a notebook, with a legend where there are several."""
    drawn = [plot_line(axes, each, view.percent) for each in view.lines]
    name_axes(axes, view.across, view.quantity)
    if len(drawn) > 1:
        legend = axes.legend(handles=drawn, frameon=False, fontsize=8, labelcolor=TEXT_STYLE["color"])
        for text in legend.get_texts():
            text.set_parse_math(False)
