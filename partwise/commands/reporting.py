"""`partwise report` and `partwise plot`."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from partwise.records.lock import Lock
from partwise.reporting.figures.charts import draw_all
from partwise.reporting.page.page import render
from partwise.reporting.reading import find_runs
from partwise.reporting.series import ranked_series, series_of
from partwise.reporting.views.charts import charts_of
from partwise.writing import make_folder, write

REFRESH_INTERVAL = 5.0  # seconds between two looks at runs that go on
IDLE_POLLS = 6  # looks without a run that goes on, after which none is waited for: a comparison may begin its next one


def report(runs: Sequence[str], out: str, live: bool) -> None:
    """Write the page of some runs; `live`: again and again, until they are finished."""
    if live:
        watch(runs, out)
    else:
        write(out, render(find_runs(runs)).encode())
    click.echo(f"report: {out}")


def watch(places: Sequence[str], out: str, wait: Callable[[float], None] = time.sleep) -> None:
    """Rewrite the page whenever the runs progress; at the end, on any error too, as a page that is not live."""
    quiet, before = 0, None
    try:
        while quiet < IDLE_POLLS:
            found = find_runs(places)
            now = [(run.folder, len(run.rounds), run.finished) for run in found]
            if now != before:
                write(out, render(found, live=True).encode())
            going_on = any(Lock(run.folder).in_use for run in found)
            quiet, before = 0 if going_on else quiet + 1, now
            wait(REFRESH_INTERVAL)
        for run in found:
            if who := Lock(run.folder).died:
                click.echo(f"'{run.folder}' stopped before its end: {who}, died; --resume continues it", err=True)
    finally:
        write(out, render(find_runs(places)).encode())


def plot_charts(runs: Sequence[str], out: str, ending: str) -> None:
    """Draw the charts of some runs, a file each."""
    series = series_of(find_runs(runs))
    make_folder(out)
    charts = charts_of(series, ranked_series(series))
    for path in draw_all((chart for own in charts.values() for chart in own), Path(out), ending):
        click.echo(path)
