"""Finished runs as the lines of a file: known by their settings, run where they are missing, written as each ends."""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from partwise.papers.recorded import command_of, key_of, settings_that_count, superseded
from partwise.runs.config import Config
from partwise.runs.files import environment
from partwise.runs.result import Result
from partwise.runs.simulation import Progress, Simulation
from partwise.studies.seeds import PlannedRun, run_seeds
from partwise.version import __version__

DOCS = Path(__file__).parents[1] / "docs"
REFERENCE = "local"  # clients are worse off than with it

Line = Mapping[str, Any]
Found = dict[tuple[str, int], Line]  # by settings and seed


def lines(path: Path) -> list[Line]:
    """Return the runs that are finished."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def changed(line: Line) -> bool:
    """Say whether a line is of older code: its method gives other numbers now."""
    return superseded(line["run"], line.get("date")) is not None


def counted(every: Iterable[Line]) -> list[Line]:
    """Return what counts today: whole lines, and of a method that changed at some moments alone the other moments."""
    result = []
    for line in every:
        change = superseded(line["run"], line.get("date"))
        if change is None:
            result.append(line)
        elif change.moments and "test" in line:
            result.append(line | {"test": {at: value for at, value in line["test"].items() if not change.affects(at)}})
    return result


def by_settings(every: Iterable[Line]) -> Found:
    """Return lines by their settings and seed; of two with the same ones, the later."""
    return {(key_of(line["run"]), line["seed"]): line for line in every}


def find_line(found: Found, config: Config) -> Line | None:
    """Return the line of a run."""
    return found.get((key_of(settings_that_count(config)), config.run.seed))


def run_missing(
    configs: Sequence[Config], path: Path, outcome: Callable[[Result], dict[str, Any]], commit: str | None
) -> None:
    """Run those that have no line of today's code, side by side (they differ in their seed alone), and add their lines.

    One that diverges gets a line, too, and is not run again.
    """
    known = by_settings(line for line in lines(path) if not changed(line))
    began = datetime.now(UTC).isoformat(timespec="seconds")

    def keep(config: Config, what: Line) -> None:
        run, seed = settings_that_count(config), config.run.seed
        line = {"run": run, "seed": seed, "command": command_of(run, seed), **what}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**line, "version": __version__, "commit": commit, "date": began}) + "\n")
        print(line["command"], flush=True)

    def work(simulation: Simulation, progress: Progress) -> None:
        simulation.run(progress)
        keep(simulation.config, outcome(Result(simulation)))

    missing = {f"seed {config.run.seed}": config for config in configs if find_line(known, config) is None}
    for title, error in run_seeds([PlannedRun(title, config, work) for title, config in missing.items()]).items():
        keep(missing[title], {"diverged": str(error)})


def scores(result: Result, moments: Sequence[str]) -> dict[str, Any]:
    """Return what is kept of any run: accuracy as fractions, and bytes down and up of a participant in a round."""
    short, last, where = result.summary, result.rounds[-1], environment(result.simulation)
    return {
        "validation": {moment: own.accuracy for moment, own in last.validation.items() if moment in moments},
        "test": {moment: last.at(moment).accuracy for moment in moments},
        "clients": {
            moment: [row[moment] and round(row[moment], 4) for row in result.clients]
            for moment in moments
            if moment in last.moments
        },
        "bytes_per_participant": short.bytes_per_participant,
        "seconds": short.seconds,
        "device": where.device,
        "torch": where.torch,
    }


def best_rate(by_rate: Mapping[float, Sequence[Line]], moment: str) -> float | None:
    """Return the rate whose runs are best on validation data, the mean over seeds; None where all rates diverged."""
    most = max(map(len, by_rate.values()))
    ended = {
        rate: statistics.fmean(line["validation"][moment] for line in own)
        for rate, own in by_rate.items()
        if own and len(own) == most and not any("diverged" in line for line in own)
    }
    return max(ended, key=lambda rate: ended[rate], default=None)
