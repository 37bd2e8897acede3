"""Pictures for papers: accuracy over rounds and over clients, features on a plane, metrics of representations.

Every function takes plain numbers, writes a .png, .svg or .pdf and returns the figure. Accuracies are fractions, shown
in percent. What does not exist, None or NaN, leaves a gap.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from partwise.errors import needed
from partwise.reporting.drawing import (
    COLOURS,
    DARK,
    GREY,
    LETTER,
    LIGHT,
    MARKS,
    MUTED,
    NAME,
    PALE,
    STYLES,
    TEXT,
    Line,
    canvas,
    key,
    name_lines,
    quiet,
    save,
    shown,
    tick_names,
)

MOST_MARKED = 30  # points of a line that are marked one by one
ROOMY = 12  # clients of a heat map whose cells have room for a number
KEYED = 60  # classes that a key can tell apart

Numbers = NDArray[np.float64]
Values = Mapping[Any, float | None]
Looks = Mapping[str, dict[str, Any]]  # colour and dash of each line, where they are not given in turn


def curves(
    lines: Mapping[str, Values],
    path: str | Path,
    title: str = "",
    *,
    across: str = "round",
    quantity: str = "accuracy",
    percent: bool = True,
    looks: Looks | None = None,
    bands: Mapping[str, Mapping[Any, tuple[float, float]]] | None = None,
    marked: Mapping[str, Sequence[float]] | None = None,
) -> Any:
    """A line for every method: its values by round, or by whatever number `across` names; beside it the last value.

    None is a round that was not measured: the line goes on. NaN breaks it. `bands` are the lowest and highest value
    around a line, `marked` the rounds at which it has a diamond.
    """
    measured = {name: [(x, y) for x, y in sorted(values.items()) if y is not None] for name, values in lines.items()}
    points = {name: np.array(pairs, dtype=np.float64).reshape(-1, 2).T for name, pairs in measured.items()}
    last = {name: y[np.isfinite(y)][-1] for name, (_, y) in points.items() if np.isfinite(y).any()}
    return _lines(points, last, "last", path, title, across, quantity, percent, looks, bands or {}, marked or {})


def sorted_curves(
    accuracies: Mapping[str, Sequence[float | None]], path: str | Path, title: str = "", *, looks: Looks | None = None
) -> Any:
    """A line for every method: its clients' accuracies in ascending order, beside it their mean (scheduling Fig. 5)."""
    known = {
        name: sorted(value for value in own if value is not None and math.isfinite(value))
        for name, own in accuracies.items()
    }
    points = {name: np.array([range(1, len(own) + 1), own], dtype=np.float64) for name, own in known.items()}
    mean = {name: math.fsum(own) / len(own) for name, own in known.items() if own}
    return _lines(points, mean, "mean", path, title, "clients in ascending order", "accuracy", True, looks)


def _lines(
    points: Mapping[str, Numbers],
    told: Mapping[str, float],
    what: str,
    path: str | Path,
    title: str,
    across: str,
    quantity: str,
    percent: bool,
    looks: Looks | None = None,
    bands: Mapping[str, Mapping[Any, tuple[float, float]]] | None = None,
    marked: Mapping[str, Sequence[float]] | None = None,
) -> Any:
    """Lines, and right of them their names, each at the height of the number that is told of it, if there is one."""
    factor, digits = (100, 1) if percent else (1, 3)
    figure, axes = canvas(path, 5.4, max(3.2, NAME * (len(points) + 1)), title)
    usual = [{"linestyle": style, "color": colour} for style, colour in product(STYLES, COLOURS)]
    lines = []
    for number, (name, (x, y)) in enumerate(points.items()):
        known = np.isfinite(y)
        alone = known & ~np.append(False, known[:-1]) & ~np.append(known[1:], False)
        single = np.flatnonzero(known if known.sum() <= MOST_MARKED else alone).tolist()
        style = {
            "lw": 1.6 if known.sum() <= MOST_MARKED else 1.2,
            "marker": "o",
            "ms": 3.5,
            "mew": 0,
            "markevery": single,
        }
        look = looks[name] if looks else usual[number % len(usual)]
        values = factor * np.where(known, y, np.nan)
        axes.plot(x, values, clip_on=False, **style, **look)
        lines.append(Line(name, look, x[known], values[known], factor * told.get(name, math.nan)))
        around = np.array([(at, *edges) for at, edges in sorted((bands or {}).get(name, {}).items())]).reshape(-1, 3)
        if len(around):
            low, high = factor * around[:, 1:].T
            axes.fill_between(around[:, 0], low, high, color=look["color"], alpha=0.12, lw=0, clip_on=False)
        at = np.isin(x, list((marked or {}).get(name, ()))) & known
        axes.scatter(x[at], values[at], 36, "white", marker="D", edgecolors=look["color"], zorder=3, clip_on=False)
    scale = np.concatenate([[], *(line.x for line in lines)])
    ticker = needed("matplotlib.ticker", "plots")
    axes.xaxis.set_major_locator(
        ticker.MaxNLocator(8, steps=[1, 2, 5, 10], integer=bool((scale % 1 == 0).all()), min_n_ticks=1)
    )
    if len({*scale}) < 2:  # nothing to make a scale of
        axes.set(xlim=(min(scale, default=0) - 1, max(scale, default=0) + 1), xticks=[*{*scale}])
    if not len(scale):
        axes.set(ylim=(0, factor))
    axes.set_xlabel(shown(across, 80), **{**TEXT, "fontsize": 9})
    axes.set_ylabel(shown(quantity, 80) + " (%)" * percent, **{**TEXT, "fontsize": 9})
    name_lines(axes, lines, what, digits)
    return save(figure, path)


def tsne_panels(panels: Mapping[str, Numbers], path: str | Path, title: str = "", classes: Sequence[str] = ()) -> Any:
    """Side by side what `tsne_rows` gives, coloured by class (Fed3+2p Fig. 3)."""
    side, gap = 2.7, 0.18
    width = max(1, len(panels)) * (side + gap) - gap
    figure, axes = canvas(path, width, side, title, pad=26)
    axes.set_axis_off()
    labels = sorted({int(label) for rows in panels.values() for label in rows[:, 2]})
    looks = list(product(MARKS, MUTED))
    look = {label: looks[number % len(looks)] for number, label in enumerate(labels)}
    for number, (name, rows) in enumerate(panels.items()):
        panel = quiet(figure.add_axes((number * (side + gap) / width, 0, side / width, 1), facecolor=PALE))
        panel.grid(visible=False)
        panel.set(xticks=[], yticks=[])
        panel.set_aspect("equal", adjustable="datalim")
        panel.set_title(shown(name, 40), loc="left", **{**TEXT, "fontsize": 9})
        known = rows[np.isfinite(rows).all(axis=1)]
        size = float(np.clip(6000 / max(1, len(known)), 3, 24))
        marks = np.array([look[int(label)][0] for label in known[:, 2]])
        for mark in MARKS:  # in the order of samples, not of classes: none covers all others
            x, y, own = known[marks == mark].T
            colours = [look[int(label)][1] for label in own]
            panel.scatter(x, y, size, colours, marker=mark, alpha=0.8, lw=0, rasterized=len(known) > 10_000)
    names = [shown(classes[label]) if label < len(classes) else str(label) for label in labels]
    if len(labels) <= KEYED:
        key(figure, [(name, *look[label]) for name, label in zip(names, labels, strict=True)])
    return save(figure, path)


def bars(
    groups: Mapping[str, Values], path: str | Path, title: str = "", *, quantity: str = "accuracy", percent: bool = True
) -> Any:
    """Groups of bars with their numbers: a group for every data set, a bar for every method (FedTC Fig. 3)."""
    factor, digits = (100, 1) if percent else (1, 2)
    series = list(dict.fromkeys(name for values in groups.values() for name in values))
    wide, gap = 0.42, 0.32  # inches: a bar's place, and the room between groups
    named = LETTER * (max((len(shown(name, 18)) for name in groups), default=0) + 2)
    step = max(len(series) * wide + gap, named)
    figure, axes = canvas(path, max(1.2, len(groups) * step), 2.6, title)
    axes.grid(visible=False, axis="x")
    for number, name in enumerate(series):
        for group, values in enumerate(groups.values()):
            place, value = (group + 0.5) * step + (number + 0.5 - len(series) / 2) * wide, values.get(name)
            height = factor * value if value is not None and math.isfinite(value) else math.nan
            axes.bar(place, height, 0.86 * wide, color=COLOURS[number % len(COLOURS)])
            text = f"{height:.{digits}f}" if math.isfinite(height) else "-"
            above, up = ("top", -3) if height < 0 else ("bottom", 2)
            at = {"xytext": (0, up), "textcoords": "offset points", "ha": "center", "va": above}
            axes.annotate(text, (place, np.nan_to_num(height)), **at, **TEXT)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.margins(y=0.1)
    axes.set(xlim=(0, max(1.2, len(groups) * step)))
    if not any(bar.get_height() for bar in axes.patches if math.isfinite(bar.get_height())):
        axes.set(ylim=(0, factor))
    tick_names(axes, [(group + 0.5) * step for group in range(len(groups))], list(groups), step)
    axes.set_ylabel(shown(quantity, 80) + " (%)" * percent, **{**TEXT, "fontsize": 9})
    if len(series) > 1:
        key(figure, [(shown(name), "s", COLOURS[number % len(COLOURS)]) for number, name in enumerate(series)])
    return save(figure, path)


def heat_map(matrix: ArrayLike, path: str | Path, title: str = "", names: Sequence[object] = ()) -> Any:
    """The CKA of every two clients, 0 .. 1: the darker, the more alike. Where there is none, the cell is pale grey."""
    clients = len(np.asarray(matrix))
    values = np.asarray(matrix, dtype=np.float64) if clients else np.full((1, 1), np.nan)
    place = min(0.42, 7 / len(values))
    side = place * len(values)
    figure, axes = canvas(path, side, side, title)
    axes.grid(visible=False)
    blues = needed("matplotlib", "plots").colormaps["Blues"].with_extremes(bad=LIGHT)
    image = axes.imshow(values, blues, vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    if clients <= ROOMY:
        for (row, column), value in np.ndenumerate(values):
            colour = "white" if value > 0.5 else DARK
            text = f"{value:.2f}" if math.isfinite(value) else "-"
            style = {**TEXT, "fontsize": 7, "color": colour, "ha": "center", "va": "center_baseline"}
            axes.text(column, row, text, **style)
    tick_names(axes, range(clients), names or range(clients), place, both=True)
    bar = quiet(figure.add_axes((1 + 0.15 / side, 0, 0.1 / side, 1)))
    figure.colorbar(image, cax=bar, ticks=(0, 0.5, 1)).outline.set_visible(False)
    bar.tick_params(length=0)
    bar.set_xlabel("CKA", **TEXT)  # not above, where a long title of the map goes on
    return save(figure, path)
