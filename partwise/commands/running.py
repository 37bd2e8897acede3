"""`partwise run` and `partwise compare`."""

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from partwise.commands.options import Asked, MethodCommand, complete, complete_file, complete_method, debug_option
from partwise.errors import Diverged
from partwise.papers.tables import papers
from partwise.reporting import network, tables
from partwise.reporting.progress import displays
from partwise.runs.compare import differences, parse_seeds, standings
from partwise.runs.config import Config, label
from partwise.runs.folder import Leaderboard, RunFolder
from partwise.runs.prepare import prepare
from partwise.runs.result import Result, summarise
from partwise.runs.seeds import PlannedRun, Show, Tell, carry_out, unseen
from partwise.runs.simulation import Progress, Simulation

NOT_KEPT = "nothing was written; --out DIR keeps the results"

RUN_EXAMPLES = """\b
Examples:
  partwise run fedper --data digits --clients 20 --partition dir:0.1 --rounds 100 --out runs/fedper
  partwise run --config runs/fedper/config.toml --lr 0.05 --out runs/faster
  partwise run fed3p2p --preset fed3p2p/table1 --data cifar10 --dry-run"""

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
        click.option(
            "--preset",
            metavar="PAPER/TABLE",
            expose_value=False,
            help="The settings of a paper's table (partwise reproduce lists them), of the column that fits the options "
            "given, --data say, and of the method's row; options win over it. PAPER/TABLE:COLUMN,ROW names them.",
            shell_complete=complete(papers()),
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
    for error in carry_out(jobs_of(label(made.name), made, folder, summaries), shown(quiet), telling(quiet)).values():
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
    summaries: list[dict[str, Any]] = []
    jobs: list[PlannedRun] = []
    for number, made in enumerate(configs, start=1):
        place = Path(out, label(made.name), f"seed-{made.run.seed}") if out else None
        folder = RunFolder(place, made, overwrite, resume) if place else None
        title = f"{label(made.name)} seed {made.run.seed} ({number}/{len(configs)})"
        jobs += jobs_of(title, made, folder, summaries)
    if dry_run:
        for made in configs:
            show_dry_run(made, quiet=made.run.seed != configs[0].run.seed)
        return
    diverged: dict[str, Diverged] = {}
    tell = telling(quiet)
    try:
        for _, seeds_of_one in groupby(jobs, key=lambda job: job.config.name):
            diverged |= carry_out(list(seeds_of_one), shown(quiet), tell)
    finally:  # whatever ends a comparison early, the runs that were finished are shown
        if summaries:
            ranking = standings(summaries)
            cells = tables.leaderboard(ranking, summaries[0], differences(configs), len(every or [None]))
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


def jobs_of(title: str, config: Config, folder: RunFolder | None, summaries: list[dict[str, Any]]) -> list[PlannedRun]:
    """A run whose summary is added once it is finished; nothing where it lies finished in its folder."""
    if folder is not None and folder.kept:
        summaries.append(folder.summary())
        return []

    def work(simulation: Simulation, progress: Progress) -> None:
        result = Result(simulation.run(progress)) if folder is None else folder.record(simulation, progress)
        summaries.append(summarise(result))

    notes = [folder.lock.note] if folder is not None and folder.lock.note else []
    return [PlannedRun(title, config, work, notes=notes)]


def shown(quiet: bool) -> Show:
    """How far runs are, unless nobody wants to see it."""
    return unseen if quiet else displays


def telling(quiet: bool) -> Tell:
    """Every note once."""
    told: set[str] = set()

    def tell(notes: Sequence[str]) -> None:
        for note in notes:
            if not quiet and note not in told:
                click.echo(note, err=True)
            told.add(note)

    return tell
