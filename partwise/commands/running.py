"""What `partwise run` and `partwise compare` do."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import click

from partwise.commands.options import Asked
from partwise.errors import Diverged, one_line
from partwise.reporting import network, tables
from partwise.reporting.latex import to_latex
from partwise.reporting.progress import displays
from partwise.runs.compare import differences, parse_seeds, standings
from partwise.runs.config import Config, label
from partwise.runs.folder import Leaderboard, RunFolder, inside
from partwise.runs.pace import Interrupts
from partwise.runs.prepare import prepare
from partwise.runs.result import Result, summarise
from partwise.runs.seeds import PlannedRun, Show, Tell, carry_out, unseen
from partwise.runs.simulation import Progress, Simulation
from partwise.runs.tensorboard import CURVES, TensorBoard

NOT_KEPT = "nothing was written; --out DIR keeps the results"


def run(
    asked: Asked,
    out: str | None,
    overwrite: bool,
    resume: bool,
    despite_changes: bool,
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
    place = inside(out) if out is not None else None
    folder = RunFolder(place, made, overwrite, resume, despite_changes) if place else None
    if dry_run:
        show_dry_run(made)
        return
    summaries: list[dict[str, Any]] = []
    jobs = jobs_of(label(made.name), made, folder, summaries, tensorboard)
    for error in carry_out(jobs, shown(quiet), telling(quiet)).values():
        raise error
    tables.show(tables.one_run(summaries[0]))
    click.echo(f"results: {out}" if out else NOT_KEPT)


def compare(
    asked: Asked,
    out: str | None,
    overwrite: bool,
    resume: bool,
    despite_changes: bool,
    dry_run: bool,
    quiet: bool,
    tensorboard: bool,
    seeds: str | None,
    **options: Any,
) -> None:
    """Run every method with every seed and show who did best."""
    every = None
    if seeds is not None and options["seed"] is not None:
        asked.problems.add("--seed and --seeds exclude each other")
    with asked.problems.collect():
        every = None if seeds is None else parse_seeds(seeds)
    check_tensorboard(asked, tensorboard, out)
    configs = asked.configs(options, every)
    board = Leaderboard(inside(out), overwrite or resume) if out is not None else None
    summaries: list[dict[str, Any]] = []
    jobs: list[PlannedRun] = []
    for number, made in enumerate(configs, start=1):
        place = inside(out, label(made.name), f"seed-{made.run.seed}") if out is not None else None
        folder = RunFolder(place, made, overwrite, resume, despite_changes) if place else None
        title = f"{label(made.name)} seed {made.run.seed} ({number}/{len(configs)})"
        jobs += jobs_of(title, made, folder, summaries, tensorboard)
    if dry_run:
        for made in configs:
            show_dry_run(made, quiet=made.run.seed != configs[0].run.seed)
        return
    diverged: dict[str, Diverged] = {}
    tell, interrupts = telling(quiet), Interrupts()
    try:
        for _, seeds_of_one in groupby(jobs, key=lambda job: job.config.name):
            diverged |= carry_out(list(seeds_of_one), shown(quiet), tell, interrupts)
    finally:  # whatever ends a comparison early, the runs that were finished are shown
        if summaries:
            ranking = standings(summaries)
            cells = tables.leaderboard(ranking, summaries[0], differences(configs), len(every or [None]))
            tables.show(cells)
            if board:
                board.write({"md": cells.to_markdown(), "tex": to_latex(cells)}, ranking)
    click.echo(f"results: {out}" if out else NOT_KEPT)
    if diverged:
        raise Diverged("; ".join(f"{title} {error}" for title, error in diverged.items()))


def show_dry_run(config: Config, quiet: bool = False) -> None:
    """Everything that goes before round 0, and what is known then."""
    simulation = prepare(config)
    for cells in [] if quiet else network.pages(simulation):
        tables.show(cells)
        click.echo()


def check_tensorboard(asked: Asked, tensorboard: bool, out: str | None) -> None:
    """Refuse curves that have no folder."""
    if tensorboard and out is None:
        asked.problems.add("--tensorboard writes into the run's folder: --out DIR names one")


def jobs_of(
    title: str, config: Config, folder: RunFolder | None, summaries: list[dict[str, Any]], tensorboard: bool = False
) -> list[PlannedRun]:
    """A run whose summary is added once it is finished; nothing where it lies finished in its folder."""
    if folder is not None and folder.kept:
        summaries.append(folder.summary(tables.one_run))
        return []
    watching = [TensorBoard(folder.path / CURVES)] if folder is not None and tensorboard else []

    def work(simulation: Simulation, progress: Progress) -> None:
        if folder is None:
            result = Result(simulation.run(progress))
        else:
            result = folder.record(simulation, progress, watching)
        summaries.append(summarise(result))

    return [PlannedRun(title, config, work, folder=folder)]


def shown(quiet: bool) -> Show:
    """How far runs are, unless nobody wants to see it."""
    return unseen if quiet else displays


def telling(quiet: bool) -> Tell:
    """Every note once."""
    told: set[str] = set()

    def tell(notes: Sequence[str]) -> None:
        for note in notes:
            if not quiet and note not in told:
                click.echo(one_line(note), err=True)
            told.add(note)

    return tell
