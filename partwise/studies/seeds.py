"""Runs that differ in their seed alone: side by side where they can share blocks, otherwise one after another."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from partwise.code_files import split_network
from partwise.engines.joint import can_share, side_by_side
from partwise.engines.vector import Vector
from partwise.errors import Diverged
from partwise.network.parts import Network, is_made
from partwise.runs.config import Config
from partwise.runs.pace import CHECKPOINTS_KEPT, Interrupts, Pace
from partwise.runs.prepare import prepare
from partwise.runs.simulation import Progress, Simulation, switches

if TYPE_CHECKING:
    from partwise.runs.folder import RunFolder


@dataclass(frozen=True)
class PlannedRun:
    """A run that is to be carried out."""

    title: str
    config: Config
    work: Callable[[Simulation, Progress], None]  # runs it to its end, and keeps what comes out of it
    data: Any = None  # what is handed in, in place of what the settings name
    model: Network | None = None  # likewise
    folder: "RunFolder | None" = None  # where it keeps its checkpoints


Tell = Callable[[Sequence[str]], None]
# (titles, rounds, metric): in this context each run's rows are shown by a function of its own
Show = Callable[[Sequence[str], int, str], AbstractContextManager[list[Progress]]]


def unseen(titles: Sequence[str], rounds: int, metric: str) -> AbstractContextManager[list[Progress]]:
    """Show nothing."""
    return nullcontext([lambda *_: None for _ in titles])


def run_seeds(
    jobs: Sequence[PlannedRun],
    show: Show = unseen,
    tell: Tell = lambda *_: None,
    interrupts: Interrupts | None = None,
) -> dict[str, Diverged]:
    """Carry out runs that differ in their seed alone; return the errors of those that diverged, by their titles.

    `tell` is told every run's notes before it begins. Results are those of separate runs. Runs with a folder end after
    a round, with a checkpoint, when a signal asks for it; `interrupts` knows of one that came before.
    """
    interrupts = interrupts or Interrupts()
    with interrupts.noted() if any(job.folder for job in jobs) else nullcontext():
        for job in jobs[:1]:
            interrupts.check(job.title)
        simulations = [made_ready(job) for job in jobs[:1]]
        if may_share(jobs, simulations):
            for job in jobs[1:]:
                simulations.append(made_ready(job, simulations[0]))
                if not can_share([simulation.engine for simulation in simulations]):
                    break  # others would only take memory before it is their turn
            else:
                return run_jointly(jobs, simulations, show, tell, interrupts)
        diverged = {}
        for number, job in enumerate(jobs):
            if number:
                interrupts.check(job.title)
            simulation = simulations[number] if number < len(simulations) else made_ready(job)
            keep_pace([job], interrupts)
            tell(notes_of(job, simulation))
            try:
                with show([job.title], simulation.total, job.config.run.metric) as [progress]:
                    job.work(simulation, progress)
            except Diverged as error:
                diverged[job.title] = error
    return diverged


def may_share(jobs: Sequence[PlannedRun], simulations: Sequence[Simulation]) -> bool:
    """Return whether runs might share blocks, by the first one's engine.

    A network that is made anew for each seed may differ in more than its parameters, so its runs share nothing.
    """
    if len(jobs) < 2 or not isinstance(simulations[0].engine, Vector):
        return False
    return not is_made(jobs[0].model) and split_network(jobs[0].config.model.model) is None


def made_ready(job: PlannedRun, beside: Simulation | None = None) -> Simulation:
    """Prepare a run; if it continues from a checkpoint, as it was made before."""
    before = job.folder.made_with if job.folder else None
    return prepare(job.config, job.data, network=job.model, beside=beside, before=before)


def notes_of(job: PlannedRun, simulation: Simulation) -> list[str]:
    """Return notes for the user before a run begins or continues."""
    return [*simulation.notes, *(job.folder.notes if job.folder else [])]


def keep_pace(jobs: Sequence[PlannedRun], interrupts: Interrupts) -> None:
    """Let runs write checkpoints after the same rounds, and go on from the same one.

    A run that the others had left behind, for it diverged or is new, goes on by itself until it is beside them.
    """
    folders, pace = [job.folder for job in jobs if job.folder], Pace(jobs[0].config.run.checkpoint_every, interrupts)
    for folder in folders:
        folder.checkpoints.keep_to(pace)
    newest = max(([each.round for each in folder.usable[:CHECKPOINTS_KEPT]] for folder in folders), default=[])
    beside = [each for each in folders if each.left_aside or (each.usable and each.usable[0].round >= newest[-1])]
    everywhere = set.intersection(*({each.round for each in folder.usable} for folder in beside)) if beside else set()
    for folder in beside:
        folder.go_on_from(everywhere)


def run_jointly(
    jobs: Sequence[PlannedRun], simulations: list[Simulation], show: Show, tell: Tell, interrupts: Interrupts
) -> dict[str, Diverged]:
    """Run several seeds side by side; raise errors other than divergence when all have ended."""
    keep_pace(jobs, interrupts)
    settings, threads, rounds = jobs[0].config.run, simulations[0].threads, simulations[0].total
    seeds = ", ".join(str(job.config.run.seed) for job in jobs)
    for job, simulation in zip(jobs, simulations, strict=True):
        simulation.notes.append(f"seeds {seeds} run side by side: seconds are a run's share of the time of all")
        tell(notes_of(job, simulation))
    torch_as_asked = switches(settings.deterministic, threads)
    with show([job.title for job in jobs], rounds, settings.metric) as shown, torch_as_asked:
        works = [
            partial(job.work, simulation, progress)
            for job, simulation, progress in zip(jobs, simulations, shown, strict=True)
        ]
        engines = [simulation.engine for simulation in simulations if isinstance(simulation.engine, Vector)]
        ended = side_by_side(engines, works)
    diverged = {}
    for job, error in zip(jobs, ended, strict=True):
        if isinstance(error, Diverged):
            diverged[job.title] = error
        elif error is not None:
            raise error
    return diverged
