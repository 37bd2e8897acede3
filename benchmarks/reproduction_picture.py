"""The pictures of docs/reproduction.md: published numbers and ours, the papers' figures, and what decides a claim."""

import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import choosing
from benchmarks.lines import lines
from benchmarks.reproduction_page import DOCS, PICTURE, TITLES, Table, is_drawn, place_of
from partwise.papers.recorded import records_of
from partwise.papers.tables import TableColumn, TableRow
from partwise.reporting.drawing import GREY, TEXT_STYLE, canvas, draw_legend, mark, quiet_axes, save_figure
from partwise.reporting.figures import draw_view as draw_view
from partwise.reporting.style import look
from partwise.reporting.views import kinds
from partwise.reporting.views.kinds import Bars, Curves

FAR = 15  # points above or below training alone, from which on the colour stays
# Of readings: who should lie above whom, by which value, as the paper claims.
MARGINS = {
    "fedtc/readings": [("FedTC", "FedPer", "received"), ("FedTC", "FedPer", "trained")],
    "scheduling/readings": [("Anti", "FedBABU", "adapted"), ("Vanilla", "FedBABU", "adapted")],
}


def draw(tables: dict[str, Table]) -> None:
    """Every picture of the page."""
    draw_all(tables, DOCS / PICTURE)
    draw_schedules(tables["scheduling/table2"], DOCS / place_of("schedules"))
    for name, margins in MARGINS.items():
        draw_margins(tables[name], margins, DOCS / place_of(name))
    draw_choosing(choosing.whole_situations(lines(choosing.RUNS)), DOCS / place_of("choosing"))
    for table in tables.values():
        if table.filled and is_drawn(table.paper):
            draw_figure(table, DOCS / place_of(table.paper.name))


def draw_all(tables: dict[str, Table], path: Path) -> None:
    """Published against ours: a dot a value, a colour and a mark a paper."""
    figure, axes = canvas(5, 5, "published, and ours, in %")
    axes.plot((0, 100), (0, 100), color=GREY, lw=0.8, zorder=1)
    shown = list(dict.fromkeys(name.partition("/")[0] for name, table in tables.items() if any(dots(table))))
    looks = {paper: look(at) for at, paper in enumerate(TITLES)}
    for table in tables.values():
        own = looks[table.paper.name.partition("/")[0]]
        for published, ours, copied in dots(table):
            inside = "none" if copied else own.ink
            axes.scatter(published, ours, 16, inside, marker=mark(own), edgecolors=own.ink, lw=0.8, zorder=2)
    axes.set(xlim=(0, 100), ylim=(0, 100), aspect="equal")
    axes.set_xlabel("published", **TEXT_STYLE)
    axes.set_ylabel("ours", **TEXT_STYLE)
    axes.text(12, 14, "as published", rotation=45, rotation_mode="anchor", **TEXT_STYLE)
    draw_legend(figure, {TITLES[paper]: looks[paper] for paper in shown})
    save_figure(figure, path)


def dots(table: Table) -> Iterator[tuple[float, float, bool]]:
    """What is in percent, and no single client's: which client has which data is drawn by lot."""
    for row in table.paper.rows:
        for column in table.paper.columns:
            for value, path in column.show.items():
                found = table.cells[row.label, column.name].values[value]
                printed = row.published.get((column.name, value))
                if found and printed and table.paper.factor(value) == 100 and not path.startswith("clients."):
                    yield printed.value, 100 * sum(found) / len(found), row.copied


def draw_figure(table: Table, path: Path) -> None:
    """A figure of a paper: accuracy over rounds of its first recorded column, or bars of those with all rows."""
    paper = table.narrowed
    title = paper.title.partition(":")[0]
    if "rounds" in paper.pictures:
        column, *_ = (
            each for each in paper.columns if any(table.is_filled(row.label, each.name) for row in paper.rows)
        )
        rows = [row for row in paper.rows if table.is_filled(row.label, column.name)]
        values = {row.label: over_rounds(table, row, column) for row in rows}
        draw_view(kinds.curves_of(values, f"{title}: {column.name}"), path)
        return
    groups: dict[str, dict[str, float | None]] = {}
    for column in table.whole_columns(row.label for row in paper.rows) or paper.columns:
        [value, *_] = column.show
        group = groups[column.name] = {}
        for row in paper.rows:
            place = row.label, column.name, value
            if table.values(*place):
                group[row.label] = ours(table, *place)
            if (column.name, value) in row.published:
                group[f"{row.label}, published"] = published(table, *place)
    draw_view(Bars(groups, title), path)


def over_rounds(table: Table, row: TableRow, column: TableColumn) -> dict[float, float | None]:
    """What clients received, by round; the mean of the seeds."""
    runs = records_of(table.records, table.paper, row, column).values()
    points = [dict(run.curve) for run in runs if not run.superseded]
    return {at: statistics.fmean(own[at] for own in points) for at in points[0] if all(at in own for own in points)}


def draw_schedules(table: Table, path: Path) -> None:
    """How far the schedules lie above FedBABU at every T; published and ours."""
    cases = [(order, name) for name in ("CIFAR-10", "CIFAR-100") for order in ("Vanilla", "Anti")]
    lines = []
    for colour, (order, name) in enumerate(cases):
        [column] = [column for column in table.paper.columns if column.name == name]
        for dash, accuracy in (("solid", ours), ("dash", published)):
            values: dict[float, float | None] = {
                int(value.removeprefix("T=")): accuracy(table, order, name, value)
                - accuracy(table, "FedBABU", name, value)
                for value in column.show
            }
            label = f"{order} {name} {'ours' if accuracy is ours else 'paper'}"
            lines.append(kinds.line_of(label, look(colour)._replace(dash=dash), values))
    title = "Layer scheduling, Table 2: schedules and their host"
    draw_view(Curves(lines, title, across="rounds of training (T)", quantity="above FedBABU"), path)


def draw_margins(table: Table, margins: Sequence[tuple[str, str, str]], path: Path) -> None:
    """How far one method lies above another in each reading: a dot a seed, right of the line where the claim holds."""
    columns = [column.name for column in table.whole_columns(row for *pair, _ in margins for row in pair)]
    figure, axes = canvas(5, 0.4 * len(columns) + 0.4, table.paper.title.partition(":")[0])
    axes.axvline(0, color=GREY, lw=0.8, zorder=1)
    looks = {}
    for number, (above, below, value) in enumerate(margins):
        own = looks[f"{above} above {below}, {value}"] = look(number)
        for height, column in enumerate(columns):
            pairs = [[table.values(row, column, value, seed) for row in (above, below)] for seed in table.paper.seeds]
            apart = [100 * (one[0] - other[0]) for one, other in pairs if one and other]
            axes.scatter(apart, [height] * len(apart), 24, own.ink, marker=mark(own), lw=0, zorder=2)
    axes.set_yticks(range(len(columns)), columns, **TEXT_STYLE)
    axes.set_ylim(len(columns) - 0.5, -0.5)
    axes.set_xlabel("points of accuracy", **TEXT_STYLE)
    draw_legend(figure, looks)
    save_figure(figure, path)


def draw_choosing(situations: dict[str, choosing.Runs], path: Path) -> None:
    """Accuracy of every method in every situation, coloured by how far it lies above training alone."""
    methods, tall = (choosing.REFERENCE, *choosing.METHODS), 0.28 * len(situations)
    figure, first = canvas(4.2, tall, f"{choosing.MOMENTS[0]}: accuracy in %", pad=8)
    second = quiet_axes(figure.add_axes((1.04, 0, 1, 1)))
    second.set_title(f"{choosing.MOMENTS[1]}: accuracy in %", loc="left", pad=8, **{**TEXT_STYLE, "fontsize": 10})
    for axes, moment in zip((first, second), choosing.MOMENTS, strict=True):
        axes.grid(False)
        for height, here in enumerate(situations.values()):
            best = choosing.chosen(here, moment)
            own = [choosing.accuracy(best[name], moment) if name in best else math.nan for name in methods]
            above = [[each - own[0] for each in own]]
            edges = (-0.5, len(methods) - 0.5, height + 0.5, height - 0.5)
            axes.imshow(above, cmap="BrBG", vmin=-FAR, vmax=FAR, alpha=0.5, extent=edges, aspect="auto")
            for across, each in enumerate(own):
                weight = "bold" if each == max(own) else "normal"
                axes.text(across, height, f"{each:.1f}", ha="center", va="center", weight=weight, **TEXT_STYLE)
        axes.set_xticks(range(len(methods)), methods, **TEXT_STYLE)
        axes.set_yticks(range(len(situations)), situations if axes is first else [""] * len(situations), **TEXT_STYLE)
        axes.set(xlim=(-0.5, len(methods) - 0.5), ylim=(len(situations) - 0.5, -0.5))
    save_figure(figure, path)


def ours(table: Table, row: str, column: str, value: str) -> float:
    return statistics.fmean(table.values(row, column, value))


def published(table: Table, row: str, column: str, value: str) -> float:
    [own] = [each for each in table.paper.rows if each.label == row]
    return own.published[column, value].value / table.paper.factor(value)
