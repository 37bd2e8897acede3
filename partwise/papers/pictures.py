"""The pictures of a figure that was run again, from what its runs left in their folders."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from partwise.papers.reproduce import TableCell, TableRun
from partwise.papers.tables import Paper, TableColumn, TableRow, slug, tsne_file
from partwise.papers.values import client_values, read_features, read_rounds, read_text
from partwise.records.features import FeatureMetrics
from partwise.reporting import partitions, style
from partwise.reporting.amounts import existing
from partwise.reporting.figures import draw_view
from partwise.reporting.reading import read_points
from partwise.reporting.views.kinds import Bars, Clouds, Similarity, View, curves_of, ranked_line, ranked_lines
from partwise.runs.partitioning import partitioned
from partwise.studies.leaderboard import mean_of_present

DRAWN_AS = ("png", "svg")  # to look at, and to print

NamedView = tuple[str, View]  # its name, and what it shows


@dataclass(frozen=True)
class Runs:
    """The finished runs of a figure."""

    paper: Paper
    cells: dict[tuple[str, str], TableCell]
    scale: str
    seeds: tuple[int, ...]
    out: Path

    def rows(self, column: TableColumn) -> list[TableRow]:
        """Return the rows for which every seed gave all values."""
        whole = len(self.seeds)
        values = {row.label: self.cells[row.label, column.name].values.values() for row in self.paper.rows}
        return [row for row in self.paper.rows if all(len(each) == whole for each in values[row.label])]

    def table_runs(self, row: TableRow, column: TableColumn) -> list[TableRun]:
        """Return the runs of a cell, seed by seed."""
        return [TableRun(self.paper, row, column, self.scale, seed, self.out) for seed in self.seeds]

    def features(self, row: TableRow, column: TableColumn) -> dict[str, dict[int, FeatureMetrics]]:
        """Return the first seed's metrics of each representation, by round."""
        return read_features(self.table_runs(row, column)[0].place)

    def title(self, column: TableColumn) -> str:
        """Return the title of a picture."""
        return f"{self.paper.title.partition(':')[0]}: {column.name}"


def draw_pictures(runs: Runs) -> list[Path]:
    """Draw every picture that the figure's file asks for, and return the files; single runs are of the first seed."""
    drawn = []
    for kind in runs.paper.pictures:
        for name, view in PICTURES[kind](runs):
            for ending in DRAWN_AS:
                drawn.append(runs.out / runs.paper.name / runs.scale / f"{slug(f'{kind} {name}')}.{ending}")
                draw_view(view, drawn[-1])
    return drawn


def rounds(runs: Runs) -> Iterator[NamedView]:
    """Yield the rows' pooled accuracy over rounds, the mean of the seeds."""
    for column in runs.paper.columns:
        values = {row.label: mean_by_round(runs.table_runs(row, column)) for row in runs.rows(column)}
        if values:
            yield column.name, curves_of(values, runs.title(column))


def mean_by_round(runs: list[TableRun]) -> dict[float, float | None]:
    """Return the mean of the seeds by round."""
    judged = runs[0].row.judged
    of_seeds = [
        {each.round: each.at(judged).accuracy for each in read_rounds(run.place) if judged in each.moments}
        for run in runs
    ]
    return {number: mean_of_present([own[number] for own in of_seeds]) for number in of_seeds[0]}


def clients_in_order(runs: Runs) -> Iterator[NamedView]:
    """Yield the accuracies of the clients in ascending order."""
    for column in runs.paper.columns:
        own = {row.label: client_values(runs.table_runs(row, column)[0].place, row.judged) for row in runs.rows(column)}
        ranked = [ranked_line(name, style.look(number), own[name]) for number, name in enumerate(own)]
        if ranked:
            yield column.name, ranked_lines(ranked, runs.title(column))


def grouped_bars(runs: Runs) -> Iterator[NamedView]:
    """Yield a group for every column: a bar for every row, beside it the published one."""
    paper, groups = runs.paper, dict[str, dict[str, float | None]]()
    for column in paper.columns:
        group: dict[str, float | None] = {}
        for row in runs.rows(column):
            [value, *_] = column.show
            group[row.label] = statistics.fmean(runs.cells[row.label, column.name].values[value])
            if (column.name, value) in row.published and runs.scale != "smoke":
                group[f"{row.label}, published"] = row.published[column.name, value].value / paper.factor(value)
        groups[column.name] = group
    if any(groups.values()):
        yield "", Bars(groups, paper.title.partition(":")[0])


def class_bubbles(runs: Runs) -> Iterator[NamedView]:
    """Yield the class counts of clients. A partition is made anew: it depends on its settings alone."""
    for column in runs.paper.columns:
        for row in runs.rows(column):
            run = runs.table_runs(row, column)[0]
            yield row.label, partitions.view(partitioned(run.config, run.data))


def planes(runs: Runs) -> Iterator[NamedView]:
    """Yield samples on planes by t-SNE, coloured by class."""
    for column in runs.paper.columns:
        panels = {
            title: read_points(read_text(runs.table_runs(row, column)[0].place, tsne_file(name)))
            for row in runs.rows(column)
            for title, name in row.panels.items()
        }
        panels = dict(sorted(panels.items()))
        if panels:
            yield column.name, Clouds(panels, title=runs.title(column))


def similarity(runs: Runs) -> Iterator[NamedView]:
    """Yield the similarity (CKA) of the representations of every two clients."""
    for column in runs.paper.columns:
        for row in runs.rows(column):
            for name, measured in runs.features(row, column).items():
                title = f"{row.label}, {column.name}, {name}"
                *_, last = measured.values()
                matrix = [list(map(existing, line)) for line in last.cka]
                yield title, Similarity(matrix, list(map(str, last.clients)), title)


def feature_lines(runs: Runs) -> Iterator[NamedView]:
    """Yield the separation of classes and the similarity of clients over rounds, of the first seed."""
    for column in runs.paper.columns:
        for mean, quantity in (("separation_mean", "class separation (R2)"), ("cka_mean", "similarity (CKA)")):
            values: dict[str, dict[float, float | None]] = {
                name if len(runs.paper.rows) == 1 else f"{row.label}: {name}": {
                    at: getattr(own, mean) for at, own in measured.items()
                }
                for row in runs.rows(column)
                for name, measured in runs.features(row, column).items()
            }
            if values:
                view = curves_of(values, runs.title(column), quantity=quantity, percent=False)
                yield f"{quantity.partition(' (')[0]} {column.name}", view


PICTURES: dict[str, Callable[[Runs], Iterator[NamedView]]] = {
    "rounds": rounds,
    "clients": clients_in_order,
    "bars": grouped_bars,
    "classes": class_bubbles,
    "t-sne": planes,
    "similarity": similarity,
    "metrics": feature_lines,
}
