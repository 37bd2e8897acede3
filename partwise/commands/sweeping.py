"""`partwise sweep`."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import torch

from partwise.commands.options import CommandLine, settings_of
from partwise.commands.running import progress_of, read_seeds, telling
from partwise.errors import ConfigError, DataError, Diverged, Interrupted
from partwise.reporting import sweeps, tables
from partwise.reporting.tensorboard import in_run_folder
from partwise.runs.config import Config, known_fields
from partwise.runs.folder import RunFolder, folder_inside
from partwise.runs.pace import Interrupts
from partwise.runs.settings import Settings
from partwise.studies.jobs import jobs_of
from partwise.studies.search import Search
from partwise.studies.seeds import PlannedRun, run_seeds
from partwise.studies.sweep import VALIDATION, SweepTrial, Varied, choose_trials, combinations, read_varied, trials_of


def sweep(
    asked: CommandLine,
    out: str,
    overwrite: bool,
    quiet: bool,
    tensorboard: bool,
    seeds: str | None,
    search: int | None,
    share: tuple[int, int] | None,
    **options: Any,
) -> None:
    """Try settings of every method, choose on validation data, and show the chosen ones on test data."""
    given = {name: value if isinstance(value, tuple) else (value,) for name, value in options.items() if value}
    every = read_seeds(asked, seeds, "seed" in given)
    varied = Varied()
    with asked.problems.collect():
        varied = read_varied(given, settings_of(method for _, method in asked.methods), search is not None)
        with_sweep_defaults(varied, asked.written.settings)
    plan = SweepPlan(asked, varied, every)
    devices = {config.run.device for config in plan.configs(varied.first)}  # refuses what is wrong with the settings
    if not varied.names:
        raise ConfigError("nothing is varied: give an option several values (--lr 0.01,0.05), or use compare")
    if share is None and devices <= {"auto", "cuda"} and (gpus := torch.cuda.device_count()) > 1:
        on_every_gpu(asked.line, gpus)
        overwrite = False  # what the processes left
    work = Work(folder_inside(out), overwrite, quiet, tensorboard, varied.fixed.get("validation"))
    mine = slice(None) if share is None else slice(share[0], None, share[1])
    for trial in plan.drawn(search, work, mine) if search else work.all_of(plan.grid()[mine]):
        if trial.finished and trial.validation is None:
            raise DataError("no client has validation samples to choose settings on; set --validation above 0")
        if share is None:
            sweeps.write_trials(work.place, work.trials, varied.names)
    if share is None:
        show_chosen(work, varied, out)


def on_every_gpu(line: list[str], gpus: int) -> None:
    """Let a process on each GPU carry out its share of the trials, which lie finished in their folders then.

    A process that fails leaves its share to this one, which meets the same error.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    names = named if len(named) == gpus else [str(number) for number in range(gpus)]
    click.echo(f"{gpus} GPUs: one process on each runs a share of the trials", err=True)
    processes = []
    try:
        for number, name in enumerate(names):
            words = [sys.executable, "-m", "partwise", "sweep", *line, "--quiet", "--share", str(number), str(gpus)]
            processes.append(subprocess.Popen(words, env={**os.environ, "CUDA_VISIBLE_DEVICES": name}))
        for process in processes:
            process.wait()
    except BaseException:
        for process in processes:
            process.terminate()  # it ends after its round, with a checkpoint
        for process in processes:
            process.wait()
        raise


def show_chosen(work: "Work", varied: Varied, out: str) -> None:
    """Show and write the chosen settings; raise an error for a method without a finished run."""
    best = choose_trials(work.trials)
    if any(best.values()):
        cells = sweeps.sweep_table(work.trials, varied.names)
        tables.print_table(cells)
        sweeps.write_table(work.place, cells, work.trials, varied.names)
        click.echo(f"results: {out}")
        if all(map(find_spec, ("jinja2", "plotly"))):  # the extra `report`
            from partwise.commands.reporting import report

            report([out], str(work.place / "report.html"), live=False)
    lost = [trial.method for trial in work.trials if trial.method not in best[trial.problem]]
    if lost:
        why = "; ".join(f"{title} {error}" for title, error in work.diverged.items())
        raise Diverged(f"every setting of {', '.join(dict.fromkeys(lost))} diverged: {why}")


def with_sweep_defaults(varied: Varied, written: Settings) -> None:
    """Set aside validation data where nobody else does; a sweep keeps no models unless it is asked to."""
    named = {**written, **varied.fixed}
    varied.fixed.setdefault("save_models", named.get("save_models", False))
    partitions = varied.lists.get("partition", [named.get("partition", "")])
    if not any(rule.startswith("file:") for rule in partitions):  # such a file has its own
        varied.fixed.setdefault("validation", named.get("validation", VALIDATION))
    if str(varied.fixed.get("validation")) in ("0", "0.0"):
        raise ConfigError("validation = 0 leaves no samples to choose settings on; set it above 0")


@dataclass
class SweepPlan:
    """Which settings are tried."""

    asked: CommandLine
    varied: Varied
    seeds: tuple[int, ...] | None

    def configs(self, settings: Settings) -> list[Config]:
        """Return the configurations of every method and seed with these varied settings."""
        return self.asked.configs({**self.varied.fixed, **settings}, self.seeds)

    def grid(self) -> list[SweepTrial]:
        """Return a trial for every combination, method by method."""
        every = (config for settings in combinations(self.varied.lists) for config in self.configs(settings))
        order = [name for name, _ in self.asked.methods]
        return sorted(trials_of(every, self.varied.names), key=lambda trial: order.index(trial.configs[0].name))

    def drawn(self, number: int, work: "Work", mine: slice) -> Iterator[SweepTrial]:
        """Yield this many trials for every method and problem, each drawn when the one before is finished."""
        studies = [(*method, problem) for method in self.asked.methods for problem in self.varied.problems][mine]
        work.expected = number * len(studies) * len(self.seeds or [0])
        for name, method, problem in studies:
            known = known_fields(method)
            space = self.varied.space(known)
            search = Search(space, known)
            for _ in range(number if space else 1):
                drawn, settings = search.draw()
                made = [config for config in self.configs({**problem, **settings}) if config.name == name]
                [trial] = trials_of(made, self.varied.names)
                trial = work.known(trial) or work.tried(*work.ready(trial))
                search.tell(drawn, trial.rank)
                yield trial


@dataclass
class Work:
    """The runs of a sweep: how they are carried out, and what was tried so far."""

    place: Path
    overwrite: bool
    quiet: bool
    tensorboard: bool
    share: Any  # of training samples that is set aside to choose settings on; None: the data say it
    trials: list[SweepTrial] = field(default_factory=list)
    diverged: dict[str, Diverged] = field(default_factory=dict)
    begun: int = 0  # runs
    expected: int = 0

    def __post_init__(self) -> None:
        self.tell, self.interrupts = telling(self.quiet), Interrupts()

    def known(self, trial: SweepTrial) -> SweepTrial | None:
        """Return an equal trial that was drawn before, if any."""
        alike = (each for each in self.trials if (each.method, each.settings) == (trial.method, trial.settings))
        return next(alike, None)

    def all_of(self, trials: list[SweepTrial]) -> Iterator[SweepTrial]:
        """Carry out trials one after the other; refuse an unusable folder before the first."""
        self.expected = sum(len(trial.configs) for trial in trials)
        for ready in [self.ready(trial) for trial in trials]:
            yield self.tried(*ready)

    def ready(self, trial: SweepTrial) -> tuple[SweepTrial, list[PlannedRun]]:
        """Return a trial with its runs, except those that have finished."""
        jobs = []
        for config in trial.configs:
            self.begun += 1
            path = folder_inside(self.place, trial.method, trial.folder, f"seed-{config.run.seed}")
            folder = RunFolder(path, config, self.overwrite, resume=not self.overwrite)
            words = " ".join(filter(None, [trial.method, trial.words, f"seed {config.run.seed}"]))
            title = f"{words} ({self.begun}/{self.expected})"
            jobs += jobs_of(title, config, folder, trial.finish, in_run_folder if self.tensorboard else None)
        return trial, jobs

    def tried(self, trial: SweepTrial, jobs: list[PlannedRun]) -> SweepTrial:
        """Carry out the runs of a trial: seeds side by side where they can."""
        try:
            self.diverged |= run_seeds(jobs, progress_of(self.quiet), self.say, self.interrupts)
        except Interrupted as asked:
            raise Interrupted(asked.when, asked.signal, "run the same command again to continue") from None
        self.trials.append(trial)
        return trial

    def say(self, notes: Sequence[str]) -> None:
        """Tell a run's notes, and before the first of them on what settings are chosen."""
        aside = "what is set aside" if self.share is None else f"{self.share} of each client's training samples"
        self.tell([f"choosing settings on validation data: {aside}", *notes])
