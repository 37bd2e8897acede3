"""`partwise run` and `partwise compare`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from partwise.commands.options import CommandLine
from partwise.errors import one_line
from partwise.reporting import network, tables
from partwise.reporting.progress import displays
from partwise.reporting.tensorboard import in_run_folder
from partwise.runs.config import Config, label
from partwise.runs.folder import RunFolder, folder_inside
from partwise.runs.prepare import prepare
from partwise.studies.jobs import ComparisonJobs, KeptRun, jobs_of
from partwise.studies.leaderboard import parse_seeds
from partwise.studies.seeds import Show, Tell, run_seeds, unseen

if TYPE_CHECKING:
    from partwise.runs.result import Result

NOT_KEPT = "nothing was written; --out DIR keeps the results"


def run(
    asked: CommandLine,
    out: str | None,
    overwrite: bool,
    resume: bool,
    force: bool,
    dry_run: bool,
    quiet: bool,
    tensorboard: bool,
    **options: Any,
) -> None:
    """Run one method and show its results; with --dry-run show what is known before round 0."""
    if len(asked.named) > 1:
        asked.problems.add(f"run takes one method, not {len(asked.named)}; compare takes several")
    check_tensorboard(asked, tensorboard, out)
    [made] = asked.configs(options)
    place = folder_inside(out) if out is not None else None
    folder = RunFolder(place, made, overwrite, resume, force) if place else None
    if dry_run:
        show_dry_run(made)
        return
    finished: list[Result | KeptRun] = []
    jobs = jobs_of(label(made.name), made, folder, finished.append, in_run_folder if tensorboard else None)
    for error in run_seeds(jobs, progress_of(quiet), telling(quiet)).values():
        raise error
    tables.print_table(tables.one_run(finished[0].summary))
    click.echo(f"results: {out}" if out else NOT_KEPT)


def compare(
    asked: CommandLine,
    out: str | None,
    overwrite: bool,
    resume: bool,
    force: bool,
    dry_run: bool,
    quiet: bool,
    tensorboard: bool,
    seeds: str | None,
    **options: Any,
) -> None:
    """Run every method with every seed and show who did best."""
    every = read_seeds(asked, seeds, options["seed"] is not None)
    check_tensorboard(asked, tensorboard, out)
    configs = asked.configs(options, every)
    curves = in_run_folder if tensorboard else None
    runs = ComparisonJobs(configs, out, overwrite, resume, force, curves=curves)
    if dry_run:
        for made in configs:
            show_dry_run(made, quiet=made.run.seed != configs[0].run.seed)
        return
    try:
        runs.carry_out(progress_of(quiet), telling(quiet))
    finally:  # whatever ends a comparison early, the runs that were finished are shown
        if runs.summaries:
            tables.print_table(runs.leaderboard())
    click.echo(f"results: {out}" if out else NOT_KEPT)
    runs.check_diverged()


def show_dry_run(config: Config, quiet: bool = False) -> None:
    """Prepare a run without training, and show what is known then."""
    simulation = prepare(config)
    for cells in [] if quiet else network.pages(simulation):
        tables.print_table(cells)
        click.echo()


def read_seeds(asked: CommandLine, seeds: str | None, seed_given: bool) -> tuple[int, ...] | None:
    """Return the values of --seeds; None where it is not given, or is refused with the other mistakes."""
    if seeds is not None and seed_given:
        asked.problems.add("--seed and --seeds exclude each other")
    with asked.problems.collect():
        return None if seeds is None else parse_seeds(seeds)
    return None


def check_tensorboard(asked: CommandLine, tensorboard: bool, out: str | None) -> None:
    """Refuse curves that have no folder."""
    if tensorboard and out is None:
        asked.problems.add("--tensorboard writes into the run's folder: --out DIR names one")


def progress_of(quiet: bool) -> Show:
    """Return how to show progress: not at all if quiet."""
    return unseen if quiet else displays


def telling(quiet: bool) -> Tell:
    """Return a function that prints every note once, or none if quiet."""
    shown: set[str] = set()

    def tell(notes: Sequence[str]) -> None:
        for note in notes:
            if not quiet and note not in shown:
                click.echo(one_line(note), err=True)
            shown.add(note)

    return tell
