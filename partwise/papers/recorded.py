"""Runs of the papers' tables at full scale that were recorded, a line each, and the tables that they fill.

A run is found by its settings, not by the table for which it was made: FedTC's Figure 3 shows runs of its Table 2. The
lines are in the package, so that an installed one has them; `benchmarks/reproduction.py` writes them. A line stays when
its method changes, but it no longer counts: see `superseded.toml`.
"""

import json
import shlex
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

from partwise.methods import find
from partwise.options import as_written, convert
from partwise.papers.reproduce import TableCell
from partwise.papers.tables import PAPERS, Paper, TableColumn, TableRow, papers, read_paper
from partwise.reporting.amounts import in_columns
from partwise.runs.config import Config, known_fields, make_config
from partwise.runs.settings import Settings

RECORDED = PAPERS / "recorded"
NOT_RECORDED, TO_BE_RUN = "not recorded", "to be run"  # it has a run, but of older code
# Settings that say where a run computes, how fast, and what it leaves behind; the seed has a field of its own.
INCIDENTAL = {"data_root", "download", "engine", "workers", "device", "block", "compile", "threads", "check"}
INCIDENTAL |= {"checkpoint_every", "save_models", "seed"}


@dataclass(frozen=True)
class Change:
    """A method gives other numbers than before: an entry of superseded.toml."""

    since: datetime
    why: str
    moments: Sequence[str] = ()  # only their numbers; none: all
    settings: Sequence[str] = ()  # only in runs that set one of these; none: in all

    def concerns(self, run: Settings) -> bool:
        """Return whether a run of the method gives other numbers now."""
        return not self.settings or not run.keys().isdisjoint(self.settings)

    def affects(self, path: str) -> bool:
        """Return whether the change gives a run another number at `path`, which holds its moment."""
        return not self.moments or not {*self.moments}.isdisjoint(path.split("."))


@cache
def changes() -> dict[str, Change]:
    """Return the methods that have changed since some run of them was recorded."""
    entries = tomllib.loads((PAPERS / "superseded.toml").read_text(encoding="utf-8"))
    return {method: Change(**entry) for method, entry in entries.items()}


def superseded(run: Settings, date: str | None) -> Change | None:
    """Return the change of a method that came after a run began; `date` is None for runs before all changes."""
    for method in (run[name] for name in ("method", "host") if name in run):
        change = changes().get(str(method))
        if change and change.concerns(run) and (date is None or datetime.fromisoformat(date) < change.since):
            return change
    return None


NumberTree = dict[str, "float | NumberTree | None"]


@dataclass(frozen=True)
class RecordedRun:
    """What is kept of a finished run: a line of a file."""

    run: Settings  # its method, and the settings that are not as they are unset
    seed: int
    command: str  # runs it again
    numbers: NumberTree  # by the steps of the paths that tables ask for: see `value_of`
    curve: list[tuple[int, float]]  # rounds, and what was received there: all test samples together
    seconds: float
    rounds: int
    version: str
    commit: str | None  # of the code that ran
    device: str
    torch: str
    date: str  # when it began

    @property
    def config(self) -> Config:
        """Return its configuration."""
        settings = {name: value for name, value in self.run.items() if name != "method"}
        return make_config(method_of(self.run), {**settings, "seed": self.seed})

    @property
    def superseded(self) -> Change | None:
        """Return the change of its method that came after it began."""
        return superseded(self.run, self.date)

    def value(self, path: str) -> float | None:
        """Return a number by its path, or None: the run did not give it, or its method gives another one now."""
        change = self.superseded
        if change and change.affects(path):
            return None
        found: float | NumberTree | None = self.numbers
        for step in path.split("."):
            found = found.get(step) if isinstance(found, dict) else None
        return None if isinstance(found, dict) else found


RecordedRuns = dict[str, dict[int, RecordedRun]]  # by their settings, then by seed


def method_of(run: Settings) -> str:
    """Return the name of a recorded run's method."""
    return str(run["method"])


def settings_that_count(config: Config) -> Settings:
    """Return a configuration's method, and its settings that are not as they are unset, as JSON holds them.

    A method on another host than its usual one is a variant, whose own unset values name that host: both count.
    """
    classes = [known_fields(type(config.method)), known_fields(find(config.name))]
    values = {name: value for table in config.as_tables().values() for name, value in table.items()}
    unset = {
        name: [convert(fields[name], fields[name].default) for fields in classes if name in fields] for name in values
    }
    apart = {name: value for name, value in values.items() if any(value != each for each in unset[name])}
    own = {name: list(value) if isinstance(value, tuple) else value for name, value in apart.items()}
    return {"method": config.name, **{name: value for name, value in own.items() if name not in INCIDENTAL}}


def command_of(run: Settings, seed: int) -> str:
    """Return the command line that runs it."""
    words = ["partwise", "run", method_of(run)]
    for name, value in [*run.items(), ("seed", seed)]:
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif name != "method":
            words += [f"--{option}", as_written(value)]
    return shlex.join(words)


def key_of(run: Settings) -> str:
    """Return a text that is the same for runs of the same settings."""
    return json.dumps(run, sort_keys=True)


def read_lines(path: Path) -> list[RecordedRun]:
    """Read a file of recorded runs, a line each."""
    return [RecordedRun(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def read_records(folder: Path = RECORDED) -> RecordedRuns:
    """Return all recorded runs."""
    records: RecordedRuns = {}
    for path in sorted(folder.glob("*.jsonl")):
        for record in read_lines(path):
            records.setdefault(key_of(record.run), {})[record.seed] = record
    return records


def records_of(records: RecordedRuns, paper: Paper, row: TableRow, column: TableColumn) -> dict[int, RecordedRun]:
    """Return the recorded runs of a cell, by seed."""
    config = make_config(row.method, paper.settings_of(row, column))
    return records.get(key_of(settings_that_count(config)), {})


def recorded_cells(
    paper: Paper, seeds: Sequence[int], records: RecordedRuns
) -> tuple[dict[tuple[str, str], TableCell], list[RecordedRun]]:
    """Return the cells of a table as recorded runs fill them, and these runs."""
    cells, used = {}, []
    for row in paper.rows:
        for column in paper.columns:
            found = records_of(records, paper, row, column)
            runs = [found[seed] for seed in seeds if seed in found]
            cell = cells[row.label, column.name] = TableCell(missing="" if runs else NOT_RECORDED)
            for name, path in column.paths.items():
                values = [run.value(path.replace("judged", row.judged)) for run in runs]
                cell.values[name] = [value for value in values if value is not None]
            older = [(run, change) for run in runs if (change := run.superseded)]
            if older:
                cell.missing, cell.reason = TO_BE_RUN, older_code(older)
            used += [run for run in runs if not run.superseded]
    return cells, used


def older_code(older: Sequence[tuple[RecordedRun, Change]]) -> str:
    """Return which commits made superseded runs of a cell, and what changed since."""
    commits = sorted({run.commit or "unknown" for run, _ in older})
    changed = dict.fromkeys(change.why for _, change in older)
    return f"recorded by commit {', '.join(commits)}; since then {'; '.join(changed)}"


def where_recorded(used: Sequence[RecordedRun]) -> list[str]:
    """Return on which devices the runs of a table were made, and when."""
    if not used:
        return []
    devices, torches = (sorted({getattr(run, name) for run in used}) for name in ("device", "torch"))
    days = sorted({run.date[:10] for run in used})
    when = " to ".join(dict.fromkeys([days[0], days[-1]]))
    return [f"recorded: {len(used)} runs on {', '.join(devices)}, torch {', '.join(torches)}, {when}"]


def recorded_overview() -> str:
    """Return a line for every table: how many of its cells have a recorded run."""
    records = read_records()
    lines = [("table", "cells recorded", "")]
    for paper in map(read_paper, papers()):
        cells, _ = recorded_cells(paper, paper.seeds, records)
        filled = sum(any(cell.values.values()) for cell in cells.values())
        lines.append((paper.name, f"{filled} of {len(cells)}", paper.title))
    return "\n".join(in_columns(lines))
