"""Runs that are still to be carried out, and the comparisons that they are of: those of commands and of Python."""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partwise.errors import Diverged
from partwise.network.parts import Network
from partwise.records.record import Json
from partwise.records.rounds import RoundRecord
from partwise.runs.config import Config, label
from partwise.runs.folder import RunFolder, folder_inside
from partwise.runs.observers import Observer
from partwise.runs.pace import Interrupts
from partwise.runs.result import Result
from partwise.runs.simulation import Progress, Simulation
from partwise.studies.grouping_fidelity import TellAgreement
from partwise.studies.leaderboard import LeaderboardFiles, Standing, differences, standings
from partwise.studies.seeds import PlannedRun, Show, Tell, run_seeds

if TYPE_CHECKING:
    from partwise.records.summaries import RunSummary
    from partwise.reporting.tables import Cells  # needs rich; a comparison does not


class KeptRun:
    """A run that its folder already held finished: its settings, rounds and summary; its models stay in the folder."""

    def __init__(self, folder: RunFolder):
        self.folder, self.config, self.summary = folder, folder.config, folder.summary()

    @cached_property
    def rounds(self) -> list[RoundRecord]:
        """Return the record of every round."""
        return self.folder.rounds()

    @property
    def metrics(self) -> list[Json]:
        """Return a row for every round, as in metrics.jsonl."""
        return [record.as_json() for record in self.rounds]


def jobs_of(
    title: str,
    config: Config,
    folder: RunFolder | None,
    finished: Callable[[Result | KeptRun], None],
    curves: Callable[[Path], Observer] | None = None,
    observers: Sequence[Observer] = (),
    data: Any = None,
    model: Network | None = None,
) -> list[PlannedRun]:
    """Return the run that is to be carried out; none, and call `finished`, where its folder holds it finished."""
    if folder is not None and folder.complete:
        finished(KeptRun(folder))
        return []
    watching = [TellAgreement(), *observers, *([curves(folder.path)] if folder is not None and curves else [])]

    def work(simulation: Simulation, progress: Progress) -> None:
        if folder is None:
            finished(Result(simulation.run(progress, watching)))
        else:
            finished(folder.record(simulation, progress, watching))

    return [PlannedRun(title, config, work, data, model, folder)]


class ComparisonJobs:
    """The runs of a comparison. With `out`, each has a folder of its own there, beside the leaderboard.

    A folder that holds another run is refused before the first run begins.
    """

    def __init__(
        self,
        configs: Sequence[Config],
        out: str | Path | None = None,
        overwrite: bool = False,
        resume: bool = False,
        force: bool = False,
        keep: Callable[[int, Result | KeptRun], None] = lambda *_: None,
        **beside: Any,
    ):
        """`keep` gets every finished run with its number among `configs`; `beside` is what `jobs_of` takes."""
        self.configs, self.keep = configs, keep
        self.board = LeaderboardFiles(folder_inside(out), overwrite or resume) if out is not None else None
        self.summaries: dict[int, RunSummary] = {}
        self.jobs: list[PlannedRun] = []
        self.diverged: dict[str, Diverged] = {}
        for number, config in enumerate(configs):
            name = label(config.name)
            place = folder_inside(out, name, f"seed-{config.run.seed}") if out is not None else None
            folder = RunFolder(place, config, overwrite, resume, force) if place else None
            title = f"{name} seed {config.run.seed} ({number + 1}/{len(configs)})"
            self.jobs += jobs_of(title, config, folder, partial(self.finished, number), **beside)

    def finished(self, number: int, run: Result | KeptRun) -> None:
        """Note a run that came to its end."""
        self.summaries[number] = run.summary
        self.keep(number, run)

    def carry_out(self, show: Show, tell: Tell = lambda *_: None, together: bool = True) -> None:
        """Carry out all runs, seeds side by side where they can and may be `together`; write the leaderboard.

        A run that diverges does not take the others with it. What ends a comparison early leaves what was finished.
        """
        interrupts = Interrupts()
        try:
            for _, own in groupby(self.jobs, key=lambda job: job.config.name if together else job.title):
                self.diverged |= run_seeds(list(own), show, tell, interrupts)
        finally:
            if self.board and self.summaries:
                self.board.write(self.leaderboard(), self.standings())

    def check_diverged(self) -> None:
        """Raise an error that names the runs that diverged, if any did."""
        if self.diverged:
            raise Diverged("; ".join(f"{title} {error}" for title, error in self.diverged.items()))

    def standings(self) -> list[Standing]:
        """Return the standing of every method, the best first."""
        return standings([self.summaries[number] for number in sorted(self.summaries)])

    def leaderboard(self) -> "Cells":
        """Return the leaderboard of the runs that are finished."""
        from partwise.reporting.tables import leaderboard  # needs rich; a comparison does not

        seeds = len({config.run.seed for config in self.configs})
        return leaderboard(self.standings(), self.summaries[min(self.summaries)], differences(self.configs), seeds)
