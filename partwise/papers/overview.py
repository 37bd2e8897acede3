"""List the papers' tables and figures, and how much of each can run here: only their files are read."""

from pathlib import Path

from partwise.data import CATALOGUE
from partwise.papers.tables import Paper, papers, read_paper
from partwise.reporting.amounts import in_columns


def tables_overview() -> str:
    """Return a line for every table: its name, its size, how much of it can run here, and what it shows."""
    every = [read_paper(name) for name in papers()]
    lines = [("table", "rows x columns", "cells that can run here", "")]
    for paper in every:
        rows, columns = len(paper.rows), len(paper.columns)
        lines.append((paper.name, f"{rows} x {columns}", f"{runnable(paper)} of {rows * columns}", paper.title))
    text = in_columns(lines)
    data = {paper.common(column).data for paper in every for column in paper.columns}
    missing = sorted(name for name in data if not is_here(name))
    if missing:
        text += ["", f"data that are missing here: {', '.join(missing)} (partwise data NAME tells how to get them)"]
    return "\n".join(text)


def runnable(paper: Paper) -> int:
    """Return how many cells have their data here."""
    settings = [paper.common(column) for column in paper.columns]
    here = [is_here(each.data) and Path(each.weights).exists() for each in settings]  # Path("") is this folder
    return sum(here) * len(paper.rows)


def is_here(data: str) -> bool:
    """Return whether a named data set is found on this machine."""
    return CATALOGUE[data].find(None)[0] is not None
