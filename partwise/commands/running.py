"""`partwise run` and `partwise compare`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from partwise.commands.options import Asked, MethodCommand, complete_file, complete_method, debug_option
from partwise.engines.shared import can_share
from partwise.engines.turns import side_by_side
from partwise.engines.vector import Vector
from partwise.errors import Diverged
from partwise.reporting import network, tables
from partwise.runs.compare import parse_seeds, standings
from partwise.runs.config import Config, label
from partwise.runs.folder import Leaderboard, RunFolder
from partwise.runs.prepare import prepare
from partwise.runs.progress import display, displays
from partwise.runs.result import Result, summarise
from partwise.runs.simulation import Progress, Simulation, switches

NOT_KEPT = "nothing was written; --out DIR keeps the results"

RUN_EXAMPLES = """\b
Examples:
  partwise run fedper --data digits --clients 20 --partition dir:0.1 --rounds 100 --out runs/fedper
  partwise run --config runs/fedper/config.toml --lr 0.05 --out runs/faster
  partwise run fedbabu --data mnist5k --batch-norm --dry-run"""

COMPARE_EXAMPLES = """\b
Examples:
  partwise compare local fedavg fedper fedbabu --seeds 0,1,2 --rounds 50 --out runs/four
  partwise compare fedavg fedprox --proximal-weight 0.1 --clients-per-round 5
  partwise compare local fedavg fedrep --data mnist5k --partition pat:2 --dry-run"""


def run_options(function: Callable) -> Callable:
    """What `run` and `compare` have beside the settings."""
    for decorate in (
        debug_option,
        click.option("--quiet", is_flag=True, help="Show results alone, no progress."),
        click.option("--dry-run", is_flag=True, help="Show network, bytes, FLOPs and memory; train and write nothing."),
        click.option("--resume", is_flag=True, help="Show a finished run in DIR; begin an unfinished one again."),
        click.option("--overwrite", is_flag=True, help="Replace what an earlier run left in DIR."),
        click.option(
            "--out",
            metavar="DIR",
            help="Folder for the results; without it they are only shown.",
            shell_complete=complete_file,
        ),
        click.option(
            "--config",
            metavar="FILE",
            expose_value=False,
            help="TOML file with settings; options win over it.",
            shell_complete=complete_file,
        ),
        click.pass_obj,
    ):
        function = decorate(function)
    return function


@click.command("run", cls=MethodCommand, epilog=RUN_EXAMPLES)
@click.argument("methods", metavar="METHOD", nargs=-1, expose_value=False, shell_complete=complete_method)
@run_options
def run_command(
    asked: Asked, out: str | None, overwrite: bool, resume: bool, dry_run: bool, quiet: bool, **options: Any
) -> None:
    """Run one method.

    METHOD is a name from `partwise methods` or a Python file of your own. It has options of its own, which
    `partwise run METHOD --help` shows too; --config FILE may name it instead.
    """
    if len(asked.named) > 1:
        asked.problems.add(f"run takes one method, not {len(asked.named)}; compare takes several")
    [made] = asked.configs(options)
    folder = RunFolder(out, made, overwrite, resume) if out else None
    if dry_run:
        show_dry_run(made)
        return
    summaries: list[dict[str, Any]] = []
    for error in carry_out([Job(label(made.name), made, folder)], quiet, set(), summaries).values():
        raise error
    tables.show(tables.one_run(summaries[0]))
    click.echo(f"results: {out}" if out else NOT_KEPT)


@click.command("compare", cls=MethodCommand, epilog=COMPARE_EXAMPLES)
@click.option("--seeds", metavar="NUMBERS", help="Seeds, separated by commas; a run for each. Unset: --seed alone.")
@click.argument("methods", metavar="METHOD...", nargs=-1, expose_value=False, shell_complete=complete_method)
@run_options
def compare_command(
    asked: Asked,
    out: str | None,
    overwrite: bool,
    resume: bool,
    dry_run: bool,
    quiet: bool,
    seeds: str | None,
    **options: Any,
) -> None:
    """Run several methods and rank them.

    Every METHOD, a name from `partwise methods` or a Python file of your own, runs with every seed. An option that
    only some of them have goes to those. Seeds of a method run side by side where they can share the blocks of the
    vector engine; results are those of separate runs.
    """
    every = None
    if seeds is not None and options["seed"] is not None:
        asked.problems.add("--seed and --seeds exclude each other")
    with asked.problems.collect():
        every = None if seeds is None else parse_seeds(seeds)
    configs = asked.configs(options, every)
    board = Leaderboard(out, overwrite or resume) if out else None
    jobs = []
    for number, made in enumerate(configs, start=1):
        place = Path(out, label(made.name), f"seed-{made.run.seed}") if out else None
        title = f"{label(made.name)} seed {made.run.seed} ({number}/{len(configs)})"
        jobs.append(Job(title, made, RunFolder(place, made, overwrite, resume) if place else None))
    if dry_run:
        for made in configs:
            show_dry_run(made, quiet=made.run.seed != configs[0].run.seed)
        return
    summaries: list[dict[str, Any]] = []
    diverged: dict[str, Diverged] = {}
    told: set[str] = set()
    try:
        for _, seeds_of_one in groupby(jobs, key=lambda job: job.config.name):
            diverged |= carry_out(list(seeds_of_one), quiet, told, summaries)
    finally:  # whatever ends a comparison early, the runs that were finished are shown
        if summaries:
            ranking = standings(summaries)
            cells = tables.leaderboard(ranking, summaries[0])
            tables.show(cells)
            if board:
                board.write(cells.to_markdown(), ranking)
    click.echo(f"results: {out}" if out else NOT_KEPT)
    if diverged:
        raise Diverged("; ".join(f"{title} {error}" for title, error in diverged.items()))


def show_dry_run(config: Config, quiet: bool = False) -> None:
    """Everything that goes before round 0, and what is known then."""
    simulation = prepare(config)
    for cells in [] if quiet else network.pages(simulation):
        tables.show(cells)
        click.echo()


@dataclass(frozen=True)
class Job:
    """A run that is asked for."""

    title: str
    config: Config
    folder: RunFolder | None

    def carry_out(self, simulation: Simulation, summaries: list[dict[str, Any]], progress: Progress) -> None:
        """Run it to its end and add its summary."""
        result = Result(simulation.run(progress)) if self.folder is None else self.folder.record(simulation, progress)
        summaries.append(summarise(result))

    def tell(self, simulation: Simulation, quiet: bool, told: set[str]) -> None:
        """Its notes, without those that were told."""
        lock = [self.folder.lock.note] if self.folder is not None and self.folder.lock.note else []
        for note in [*simulation.notes, *lock]:
            if not quiet and note not in told:
                click.echo(note, err=True)
            told.add(note)


def carry_out(jobs: Sequence[Job], quiet: bool, told: set[str], summaries: list[dict[str, Any]]) -> dict[str, Diverged]:
    """Add the summaries of runs that differ in their seed alone, or of those that lie finished in their folders.

    Returns those that diverged, by title.
    """
    summaries += [job.folder.summary() for job in jobs if job.folder is not None and job.folder.kept]
    jobs = [job for job in jobs if job.folder is None or not job.folder.kept]
    simulations = [prepare(job.config) for job in jobs[:1]]
    if simulations and isinstance(simulations[0].engine, Vector):
        simulations += [prepare(job.config, beside=simulations[0]) for job in jobs[1:]]
    if len(simulations) == len(jobs) > 1 and can_share([simulation.engine for simulation in simulations]):
        return carry_out_together(jobs, simulations, quiet, told, summaries)
    diverged = {}
    for number, job in enumerate(jobs):
        simulation = simulations[number] if number < len(simulations) else prepare(job.config)
        job.tell(simulation, quiet, told)
        try:
            with display(job.title, simulation.total, quiet, job.config.run.metric) as progress:
                job.carry_out(simulation, summaries, progress)
        except Diverged as error:
            diverged[job.title] = error
    return diverged


def carry_out_together(
    jobs: Sequence[Job], simulations: list[Simulation], quiet: bool, told: set[str], summaries: list[dict[str, Any]]
) -> dict[str, Diverged]:
    """The same side by side; any other error than that of a run that diverged is raised when all have ended."""
    settings, rounds = jobs[0].config.run, simulations[0].total
    seeds = ", ".join(str(job.config.run.seed) for job in jobs)
    for job, simulation in zip(jobs, simulations, strict=True):
        simulation.notes.append(f"seeds {seeds} run side by side: seconds are a run's share of the time of all")
        job.tell(simulation, quiet, told)
    with displays([job.title for job in jobs], rounds, quiet, settings.metric) as shown, switches(settings):
        works = [
            partial(job.carry_out, simulation, summaries, progress)
            for job, simulation, progress in zip(jobs, simulations, shown, strict=True)
        ]
        ended = side_by_side([simulation.engine for simulation in simulations], works)
    diverged = {}
    for job, error in zip(jobs, ended, strict=True):
        if isinstance(error, Diverged):
            diverged[job.title] = error
        elif error is not None:
            raise error
    return diverged
