"""The charts of the page as pictures for a paper, in the house's style."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from partwise.records.metrics import TITLES
from partwise.records.names import model_at
from partwise.reporting import figures
from partwise.reporting.drawing import (
    COLOURS,
    DARK,
    GREY,
    LETTER,
    LIGHT,
    MARKS,
    MUTED,
    TEXT,
    canvas,
    key,
    save,
    shown,
    tick_names,
)
from partwise.reporting.page import views
from partwise.reporting.page.charts import amount, scale
from partwise.reporting.page.series import Series, Standing
from partwise.reporting.partitions import bubbles

DASHES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (4, 1.5, 1, 1.5)), (0, (8, 2)))  # as on the page
ROW = 0.34  # inches of a row of boxes, bars or cells
SHARES = {"ALL": "#0072B2", "GROUP": "#009E73", "CLOUD": "#CC79A7", "SERVER": "#D55E00", "GUIDE": "#56B4E9"}

PALE_ONES = ("#DDCC77", "#88CCEE")  # of the muted colours, on which white letters cannot be read

Picture = tuple[str, Any]  # the name of its file, and what draws it at a path


def look(series: Series) -> dict[str, Any]:
    return {"color": COLOURS[series.number % len(COLOURS)], "linestyle": DASHES[series.number % len(DASHES)]}


def draw_all(series: Sequence[Series], rows: Sequence[Standing], out: Path, ending: str) -> list[Path]:
    """Every chart that there is something to show of; returns the files."""
    drawn = []
    for name, picture in pictures(series, rows):
        drawn.append(out / f"{figures_name(name)}.{ending}")
        picture(drawn[-1])
    return drawn


def figures_name(name: str) -> str:
    """A name that may hold anything, as that of a file."""
    return "-".join("".join(letter if letter.isalnum() else " " for letter in name).split()) or "picture"


def pictures(series: Sequence[Series], rows: Sequence[Standing]) -> Iterator[Picture]:
    metric = next((TITLES[run.metric] for each in series for run in each.runs), "accuracy")
    for moment in views.moments_over_rounds(series):
        curves = views.accuracy_curves(series, moment)
        if curves:
            yield f"rounds {moment}", partial(over_rounds, curves, f"{metric}, {model_at(moment)}", metric)
    clients = views.client_accuracies(series)
    if clients:
        ranked = {each.series.name: each.ranked for each in clients}
        looks = {each.series.name: look(each.series) for each in clients}
        yield "clients", partial(figures.sorted_curves, ranked, looks=looks)
        yield "distribution", partial(boxes, clients)
    for of, unit, title in (("bytes", "B", "bytes sent in the whole run"), ("flops", "", "FLOPs")):
        points = views.costs(rows, of)
        if len(points) > 1 and any(point.cost for point in points):
            yield of, partial(against, points, unit, title)
    for division in views.partitions(series):
        counts = np.array(division.counts)
        yield (
            f"partition {division.title}",
            partial(bubbles, counts, division.clients, division.classes, title=division.title),
        )
    sharing = views.sharing(series)
    if sharing.rows:
        yield "sharing", partial(shares, sharing)
    for found in views.groups(series):
        yield f"groups {found.series.name}", partial(grouped, found)
    yield from representations(views.representations(series))
    sent = views.ledgers(series)
    if any(each.down or each.up for each in sent):
        yield "ledger", partial(stacked, sent)


def representations(found: Sequence[views.Representation]) -> Iterator[Picture]:
    for key_, title in (("cka", "CKA between clients"), ("separation", "class separation")):
        lines = {f"{each.series.name} {each.name}": getattr(each, key_) for each in found}
        if lines:
            yield key_, partial(figures.curves, lines, title=title, quantity=title, percent=False)
    for each in found:
        name = f"{each.series.name} {each.name}"
        matrix = [[math.nan if value is None else value for value in line] for line in each.matrix]
        yield f"similarity {name}", partial(figures.heat_map, matrix, title=name, names=each.clients)
        if each.points:
            panel = {name: np.array(each.points, dtype=np.float64)}
            yield f"t-sne {name}", partial(figures.tsne_panels, panel, classes=each.classes)


def over_rounds(curves: Sequence[views.Curve], title: str, metric: str, path: Path) -> None:
    lines = {each.name: dict(zip(each.rounds, each.mean, strict=True)) for each in curves}
    bands = {
        each.name: dict(zip(each.rounds, zip(each.low, each.high, strict=True), strict=True))
        for each in curves
        if each.high != each.low
    }
    looks = {each.name: look(each.series) for each in curves}
    marked = {each.name: each.stages for each in curves}
    figures.curves(lines, path, title, quantity=metric, looks=looks, bands=bands, marked=marked)


def named_rows(path: Path, names: Sequence[str], width: float = 5.4) -> tuple[Any, Any]:
    """Axes with a row for every name, the first on top."""
    figure, axes = canvas(path, width, max(1.2, ROW * len(names)), "")
    axes.set(ylim=(len(names) - 0.5, -0.5))
    axes.set_yticks(range(len(names)), [shown(name) for name in names], **TEXT)
    axes.grid(visible=False, axis="y")
    return figure, axes


def boxes(clients: Sequence[views.Clients], path: Path) -> None:
    figure, axes = named_rows(path, [each.series.name for each in clients])
    for row, each in enumerate(clients):
        colour, (low, lower, median, upper, high) = (
            look(each.series)["color"],
            (100 * np.array(each.quartiles)).tolist(),
        )
        axes.hlines(row, low, high, color=colour, lw=1)
        axes.barh(row, upper - lower, 0.55, lower, color=colour, alpha=0.3, lw=0)
        axes.vlines(median, row - 0.275, row + 0.275, color=colour, lw=2)
    axes.set_xlabel("accuracy of clients (%)", **{**TEXT, "fontsize": 9})
    save(figure, path)


def against(points: Sequence[views.Cost], unit: str, title: str, path: Path) -> None:
    figure, axes = canvas(path, 4.6, 3.2, "")
    places, ticks = scale(points, unit)
    at = {id(point): place for point, place in zip(points, places, strict=True)}
    best = views.frontier(points)
    steps = [at[id(point)] for point in best] + [max(places)]
    heights = [100 * point.value for point in best]
    axes.step(steps, [*heights, heights[-1]], where="post", color=GREY, lw=1, ls=(0, (4, 3)), zorder=1)
    for point in points:
        style = {"color": look(point.series)["color"], "zorder": 2, "clip_on": False}
        mark = MARKS[point.series.number % len(MARKS)]
        axes.errorbar(
            at[id(point)], 100 * point.value, 100 * (point.std or 0), marker=mark, ms=7, mew=0, elinewidth=1, **style
        )
    if "tickvals" in ticks:
        axes.set_xticks(ticks["tickvals"], ticks["ticktext"])
        axes.set(xlim=ticks["range"])
    else:
        axes.set(xlim=(0, 1.06 * max(places)))
        axes.xaxis.set_major_formatter(lambda value, _: amount(value, unit) if value else "0")
    axes.set_xlabel(title, **{**TEXT, "fontsize": 9})
    axes.set_ylabel("accuracy (%)", **{**TEXT, "fontsize": 9})
    key(
        figure,
        [
            (shown(p.series.name), MARKS[p.series.number % len(MARKS)], COLOURS[p.series.number % len(COLOURS)])
            for p in points
        ],
    )
    save(figure, path)


def shares(sharing: views.Sharing, path: Path) -> None:
    """A row for every method and stage, a column for every part."""
    names = [f"{each.name}, {stage}" if stage else each.name for each, stage, _ in sharing.rows]
    width = max(0.95, LETTER * (max(map(len, sharing.parts)) + 2))
    figure, axes = named_rows(path, [shown(name, 40) for name in names], width * len(sharing.parts))
    axes.set_yticks(range(len(names)), [shown(name, 40) for name in names], **TEXT)
    axes.grid(visible=False)
    for row, (_, _, own) in enumerate(sharing.rows):
        for column, share in enumerate(own):
            colour = SHARES.get(share, LIGHT if share else "white")
            axes.barh(
                row, 0.94, 0.8, column + 0.03, color=colour, hatch="////" if share == "FROZEN" else "", ec="white"
            )
            inside = {**TEXT, "fontsize": 7, "color": "white" if share in SHARES else DARK}
            axes.text(column + 0.5, row, share, ha="center", va="center_baseline", **inside)
    axes.set(xlim=(0, len(sharing.parts)))
    axes.xaxis.tick_top()
    axes.set_xticks(np.arange(len(sharing.parts)) + 0.5, [shown(part) for part in sharing.parts], **TEXT)
    save(figure, path)


def grouped(found: views.Groups, path: Path) -> None:
    """A column for every client, a row for every round after which groups changed."""
    last = found.changes[-1][1]
    order = sorted(range(len(last)), key=lambda client: (last[client], client))
    place = min(0.3, 9 / len(order))
    figure, axes = named_rows(path, [f"round {at}" for at, _ in found.changes], place * len(order))
    axes.grid(visible=False)
    for row, (_, own) in enumerate(found.changes):
        colours = [MUTED[own[client] % len(MUTED)] for client in order]
        axes.bar(range(len(order)), 0.86, 0.9, row - 0.43, color=colours)
        for column, client in enumerate(order if place > 0.2 else ()):
            on = DARK if MUTED[own[client] % len(MUTED)] in PALE_ONES else "white"
            style = {**TEXT, "fontsize": 7, "color": on, "ha": "center", "va": "center_baseline"}
            axes.text(column, row, str(own[client]), **style)
    axes.set(xlim=(-0.5, len(order) - 0.5))
    tick_names(axes, range(len(order)), [found.clients[client] for client in order], place)
    axes.set_xlabel("client", **{**TEXT, "fontsize": 9})
    save(figure, path)


def stacked(sent: Sequence[views.Sent], path: Path) -> None:
    """A bar for every method: plain down, hatched up, a colour for every part."""
    figure, axes = named_rows(path, [each.series.name for each in sent])
    parts = list(dict.fromkeys(part for each in sent for part in (*each.down, *each.up)))
    for row, each in enumerate(sent):
        begun = 0.0
        for number, part in enumerate(parts):
            for own, hatch in ((each.down, ""), (each.up, "////")):
                size = own.get(part, 0)
                axes.barh(row, size, 0.62, begun, color=MUTED[number % len(MUTED)], hatch=hatch, ec="white", lw=0.5)
                begun += size
    axes.xaxis.set_major_formatter(lambda value, _: amount(value) if value else "0")
    axes.set_xlabel("bytes in the whole run; hatched: up", **{**TEXT, "fontsize": 9})
    key(figure, [(shown(part), "s", MUTED[number % len(MUTED)]) for number, part in enumerate(parts)])
    save(figure, path)
