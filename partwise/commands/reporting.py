"""What `partwise report` and `partwise plot` do."""

import time
from collections.abc import Callable, Sequence

import click

from partwise.reporting.page.page import render
from partwise.reporting.page.records import Run, find_runs
from partwise.runs.lock import HOLDER
from partwise.writing import write

LOOK = 5.0  # seconds between two looks at runs that go on
PATIENCE = 60.0  # seconds without a run that goes on, after which none is waited for


def report(runs: Sequence[str], out: str, live: bool) -> None:
    """Write the page of some runs; `live`: again and again, until they are finished."""
    if live:
        watch(runs, out)
    else:
        write(out, render(find_runs(runs)).encode())
    click.echo(f"report: {out}")


def watch(places: Sequence[str], out: str, wait: Callable[[float], None] = time.sleep) -> None:
    """Rewrite the page whenever the runs have got further; the last time, it does not load itself again."""
    quiet, before = 0.0, None
    try:
        while quiet < PATIENCE:
            found = find_runs(places)
            if all(run.finished for run in found) and not going_on(found):
                quiet += PATIENCE / 4  # a comparison may be about to begin its next run
            else:
                quiet = 0.0 if going_on(found) else quiet + LOOK
            now = [(run.folder, len(run.rows), run.finished) for run in found]
            if now != before:
                write(out, render(found, live=True).encode())
            before = now
            wait(LOOK)
    finally:
        write(out, render(find_runs(places)).encode())


def going_on(runs: Sequence[Run]) -> bool:
    """Whether a process holds one of the folders."""
    return any((run.folder / HOLDER).exists() for run in runs)
