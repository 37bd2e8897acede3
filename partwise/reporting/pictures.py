"""The pictures of a figure that was run again, from what its runs left in their folders."""

import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partwise.reporting import figures, partitions
from partwise.representations import read_tsne
from partwise.runs.papers import FEATURES, Column, Paper, Row, client_values, metrics, slug, tsne_file
from partwise.runs.prepare import divide
from partwise.runs.reproduce import Cell, place_of, settled

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
        return [row for row in self.paper.rows if all(map(len, self.cells[row.label, column.name].values.values()))]

    def folders(self, row: Row, column: Column) -> list[Path]:
        return [place_of(self.paper, row, column, self.scale, seed, self.out) for seed in self.seeds]

    def title(self, column: Column) -> str:
        return f"{self.paper.title.partition(':')[0]}: {column.name}"


def draw(runs: Runs) -> list[Path]:
    """Every picture that the figure's file asks for. Those of single runs show the first seed."""
    drawn = []
    for kind in runs.paper.pictures:
        for name, picture, shown, how in KINDS[kind](runs):
            for ending in ENDINGS:
                drawn.append(runs.out / runs.paper.name / runs.scale / f"{slug(f'{kind} {name}')}.{ending}")
                picture(shown, drawn[-1], **how)
    return drawn


def rounds(runs: Runs) -> Iterator[Picture]:
    """Lines: the rows' pooled accuracy over rounds, the mean of the seeds."""
    for column in runs.paper.columns:
        lines = {row.label: over_rounds(runs.folders(row, column), row.judged) for row in runs.rows(column)}
        yield column.name, figures.curves, lines, {"title": runs.title(column)}


def over_rounds(folders: list[Path], judged: str) -> dict[int, float]:
    of_seeds = [
        {row["round"]: row[judged]["acc_pooled"] for row in metrics(folder) if row.get(judged)} for folder in folders
    ]
    return {number: statistics.fmean(own[number] for own in of_seeds) for number in of_seeds[0]}


def clients(runs: Runs) -> Iterator[Picture]:
    """Lines: the accuracies of the clients in ascending order."""
    for column in runs.paper.columns:
        own = {row.label: client_values(runs.folders(row, column)[0], row.judged) for row in runs.rows(column)}
        yield column.name, figures.sorted_curves, own, {"title": runs.title(column)}


def bars(runs: Runs) -> Iterator[Picture]:
    """A group for every column: a bar for every row, beside it the published one; of one row for every value."""
    paper, groups = runs.paper, {}
    for column in paper.columns:
        group: dict[str, float | None] = {}
        for row in runs.rows(column):
            for value in column.show:
                name = row.label if len(column.show) == 1 else value
                group[name] = statistics.fmean(runs.cells[row.label, column.name].values[value])
                if (column.name, value) in row.published and runs.scale != "smoke":
                    group[f"{name}, published"] = row.published[column.name, value].value / paper.factor(value)
        groups[column.name] = group
    percent = all(paper.factor(value) == 100 for column in paper.columns for value in column.show)
    how = {"quantity": "accuracy" if percent else "", "percent": percent}
    yield "", figures.bars, groups, {"title": paper.title.partition(":")[0], **how}


def classes(runs: Runs) -> Iterator[Picture]:
    """Bubbles: who has how many samples of which class. A partition is made anew: it depends on its settings alone."""
    for column in runs.paper.columns:
        for row in runs.rows(column):
            federation = divide(*settled(runs.paper, row, column, runs.scale, runs.seeds[0]))
            yield row.label, partitions.plot, federation, {}


def planes(runs: Runs) -> Iterator[Picture]:
    """Points: samples by t-SNE, coloured by class, a panel for every row and representation."""
    for column in runs.paper.columns:
        panels = {
            f"{row.label}: {name}": read_tsne(runs.folders(row, column)[0] / tsne_file(name))
            for row in runs.rows(column)
            for name in runs.paper.representations
        }
        yield column.name, figures.tsne_panels, panels, {"title": runs.title(column)}


def similarity(runs: Runs) -> Iterator[Picture]:
    """Maps: how alike the representations of every two clients are (CKA)."""
    for column in runs.paper.columns:
        for row in runs.rows(column):
            measured = json.loads((runs.folders(row, column)[0] / FEATURES).read_text(encoding="utf-8"))
            for name, own in measured.items():
                title = f"{row.label}, {column.name}, {name}"
                yield title, figures.heat_map, own["cka"], {"title": title, "names": own["clients"]}


KINDS: dict[str, Callable[[Runs], Iterator[Picture]]] = {
    "rounds": rounds,
    "clients": clients,
    "bars": bars,
    "classes": classes,
    "t-sne": planes,
    "similarity": similarity,
}
