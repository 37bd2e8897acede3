"""The pictures of a figure that was run again, from what its runs left in their folders."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partwise.papers.representations import read_tsne
from partwise.papers.reproduce import Cell, Trial
from partwise.papers.tables import Column, Paper, Row, client_values, features, metrics, slug, tsne_file
from partwise.reporting import figures, partitions
from partwise.runs.divide import divide

ENDINGS = ("png", "svg")  # to look at, and to print

Picture = tuple[str, Callable[..., object], Any, dict[str, Any]]  # its name, what draws it, what it shows, and how


@dataclass(frozen=True)
class Runs:
    """The finished runs of a figure."""

    paper: Paper
    cells: dict[tuple[str, str], Cell]
    scale: str
    seeds: tuple[int, ...]
    out: Path

    def rows(self, column: Column) -> list[Row]:
        """Those of which every seed gave what was asked."""
        whole = len(self.seeds)
        values = {row.label: self.cells[row.label, column.name].values.values() for row in self.paper.rows}
        return [row for row in self.paper.rows if all(len(each) == whole for each in values[row.label])]

    def trials(self, row: Row, column: Column) -> list[Trial]:
        return [Trial(self.paper, row, column, self.scale, seed, self.out) for seed in self.seeds]

    def title(self, column: Column) -> str:
        return f"{self.paper.title.partition(':')[0]}: {column.name}"


def draw(runs: Runs) -> list[Path]:
    """Every picture that the figure's file asks for. Those of single runs show the first seed."""
    drawn = []
    for kind in runs.paper.pictures:
        for name, picture, shown, how in PICTURES[kind](runs):
            for ending in ENDINGS:
                drawn.append(runs.out / runs.paper.name / runs.scale / f"{slug(f'{kind} {name}')}.{ending}")
                picture(shown, drawn[-1], **how)
    return drawn


def rounds(runs: Runs) -> Iterator[Picture]:
    """Lines: the rows' pooled accuracy over rounds, the mean of the seeds."""
    for column in runs.paper.columns:
        lines = {row.label: over_rounds(runs.trials(row, column)) for row in runs.rows(column)}
        if lines:
            yield column.name, figures.curves, lines, {"title": runs.title(column)}


def over_rounds(trials: list[Trial]) -> dict[int, float]:
    judged = trials[0].row.judged
    of_seeds = [
        {line["round"]: line[judged]["acc_pooled"] for line in metrics(trial.place) if line.get(judged)}
        for trial in trials
    ]
    return {number: statistics.fmean(own[number] for own in of_seeds) for number in of_seeds[0]}


def clients(runs: Runs) -> Iterator[Picture]:
    """Lines: the accuracies of the clients in ascending order."""
    for column in runs.paper.columns:
        own = {row.label: client_values(runs.trials(row, column)[0].place, row.judged) for row in runs.rows(column)}
        if own:
            yield column.name, figures.sorted_curves, own, {"title": runs.title(column)}


def bars(runs: Runs) -> Iterator[Picture]:
    """A group for every column: a bar for every row, beside it the published one."""
    paper, groups = runs.paper, {}
    for column in paper.columns:
        group: dict[str, float | None] = {}
        for row in runs.rows(column):
            [value, *_] = column.show
            group[row.label] = statistics.fmean(runs.cells[row.label, column.name].values[value])
            if (column.name, value) in row.published and runs.scale != "smoke":
                group[f"{row.label}, published"] = row.published[column.name, value].value / paper.factor(value)
        groups[column.name] = group
    if any(groups.values()):
        yield "", figures.bars, groups, {"title": paper.title.partition(":")[0]}


def classes(runs: Runs) -> Iterator[Picture]:
    """Bubbles: who has how many samples of which class. A partition is made anew: it depends on its settings alone."""
    for column in runs.paper.columns:
        for row in runs.rows(column):
            trial = runs.trials(row, column)[0]
            yield row.label, partitions.plot, divide(trial.config, trial.data), {}


def planes(runs: Runs) -> Iterator[Picture]:
    """Points: samples by t-SNE, coloured by class."""
    for column in runs.paper.columns:
        panels = {
            title: read_tsne(runs.trials(row, column)[0].place / tsne_file(name))
            for row in runs.rows(column)
            for title, name in row.panels.items()
        }
        panels = dict(sorted(panels.items()))
        if panels:
            yield column.name, figures.tsne_panels, panels, {"title": runs.title(column)}


def similarity(runs: Runs) -> Iterator[Picture]:
    """Maps: how alike the representations of every two clients are (CKA)."""
    for column in runs.paper.columns:
        for row in runs.rows(column):
            for name, measured in features(runs.trials(row, column)[0].place).items():
                title = f"{row.label}, {column.name}, {name}"
                yield title, figures.heat_map, measured[-1]["cka"], {"title": title, "names": measured[-1]["clients"]}


def representations(runs: Runs) -> Iterator[Picture]:
    """Lines: how well the classes are separated and how alike the clients are, over rounds; of the first seed."""
    for column in runs.paper.columns:
        for key, quantity in (("separation_mean", "class separation (R2)"), ("cka_mean", "similarity (CKA)")):
            lines = {
                name if len(runs.paper.rows) == 1 else f"{row.label}: {name}": {
                    each["round"]: each[key] for each in measured
                }
                for row in runs.rows(column)
                for name, measured in features(runs.trials(row, column)[0].place).items()
            }
            how = {"title": runs.title(column), "quantity": quantity, "percent": False}
            if lines:
                yield f"{quantity.partition(' (')[0]} {column.name}", figures.curves, lines, how


PICTURES: dict[str, Callable[[Runs], Iterator[Picture]]] = {
    "rounds": rounds,
    "clients": clients,
    "bars": bars,
    "classes": classes,
    "t-sne": planes,
    "similarity": similarity,
    "metrics": representations,
}
