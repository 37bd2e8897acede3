"""What runs left in their folders, finished or not, as it is written there."""

import csv
import io
import json
import math
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from partwise.errors import ConfigError, DataError
from partwise.records.files import (
    CHECKPOINTS,
    CLIENTS,
    CONFIG,
    ENVIRONMENT,
    EVENTS,
    LEAVES,
    LEDGER,
    METRICS,
    MODELS,
    SETUP,
    SUMMARY,
)
from partwise.records.rounds import RoundRecord
from partwise.records.summaries import ClientRecord, RunSummary
from partwise.reporting.sweeps import TRIALS, Tried, read_trials
from partwise.runs.config import label
from partwise.runs.metrics import History

USUAL = RunSummary("", 0, 0.0, 0.0)  # moment and metric where a run's settings name none
PLANES = "t-sne-"  # begins the name of a file of points, behind it stands that of the representation
FREE = ("seed", "workers", "checkpoint_every", "save_models", "threads", "engine", "device", "block", "compile")

Point = tuple[float, float, int]  # x, y and class


@dataclass(frozen=True, repr=False)
class Run:
    """One run, as far as it came; what it has not written yet is empty."""

    folder: Path
    settings: dict[str, dict[str, Any]]  # by table
    rounds: list[RoundRecord] = field(default_factory=list)
    summary: RunSummary | None = None
    clients: list[ClientRecord] = field(default_factory=list)
    ledger: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    setup: dict[str, Any] = field(default_factory=dict)
    leaves: dict[str, dict[str, Any]] = field(default_factory=dict)
    planes: dict[str, list[Point]] = field(default_factory=dict)  # by representation
    tried: Tried | None = None  # what its sweep says of its setting; None: the run is of no sweep
    compared: tuple[str, str] | None = None  # moment and metric, where they are not those of its settings

    @property
    def finished(self) -> bool:
        return self.summary is not None

    @property
    def method(self) -> str:
        return label(str(self.settings.get("method", {}).get("name", self.folder.name)))

    @property
    def seed(self) -> int:
        return self.settings.get("run", {}).get("seed", 0)

    @property
    def moment(self) -> str:
        return self.compared[0] if self.compared else self.settings.get("run", {}).get("moment", USUAL.moment)

    @property
    def metric(self) -> str:
        return self.compared[1] if self.compared else self.settings.get("run", {}).get("metric", USUAL.metric)

    @property
    def planned(self) -> int:
        """The rounds that were asked for."""
        return self.settings.get("train", {}).get("rounds", len(self.rounds))

    @cached_property
    def common(self) -> dict[str, Any]:
        """Its settings, without those in which equal runs differ."""
        tables = self.settings.values()
        return {key: value for table in tables for key, value in table.items() if key not in FREE}

    def over_rounds(self, moment: str) -> dict[int, float]:
        """Return its values by round, where it was evaluated; NaN where there was no number to give.

        `global`: those of the server's model on all test samples.
        """
        tested = [each for each in self.rounds if (each.global_model if moment == "global" else moment in each.moments)]
        values = {each.round: each.value(moment, self.metric) for each in tested}
        return {number: math.nan if value is None else value for number, value in values.items()}

    @cached_property
    def standing(self) -> RunSummary:
        """Return its summary; of a run that is not finished, what its rounds so far tell."""
        if self.summary is not None and not self.compared:
            return self.summary
        if self.summary is not None:  # validation was measured at the run's own moment
            accuracies = [record.accuracy(self.moment) for record in self.clients]
            return replace(
                self.summary, client_accuracy=accuracies, validation=None, moment=self.moment, metric=self.metric
            )
        history = History(self.metric, self.rounds)
        participants = sum(len(each.participants) for each in self.rounds)
        return RunSummary(
            self.method,
            len(self.rounds),
            self.sent / max(1, participants),
            sum(each.seconds for each in self.rounds),
            seed=self.seed,
            moment=self.moment,
            metric=self.metric,
            moments=history.headlines(),
            global_model=history.global_headline(),
        )

    @property
    def sent(self) -> int:
        """Bytes down and up in all rounds, without what is sent once."""
        return sum(each.sent for each in self.rounds)

    @property
    def bytes(self) -> int:
        """Bytes down and up in all rounds, and what clients uploaded once, samples say, where that is known."""
        return self.sent + self.once("up")

    def once(self, way: str) -> int:
        """Bytes that are sent once: down they are what clients hold from then on, an initial network say."""
        return sum(self.ledger.get("once", {}).get(way, {}).values())


def find_runs(places: Iterable[str | Path]) -> list[Run]:
    """The runs in these folders and below them, each once, in the order of their paths."""
    folders: dict[Path, None] = {}
    for place in places:
        if not os.path.isdir(place):
            raise ConfigError(f"'{place}' is no folder: name that of a run, or one with runs in it")
        found = [Path(folder) for folder, inner, files in walk(place) if METRICS in files and CONFIG in files]
        if not found:
            raise ConfigError(f"no run in '{place}': neither there nor below it lies a {METRICS} beside a {CONFIG}")
        folders |= dict.fromkeys(sorted(folder.resolve() for folder in found))
    sweeps = {place: read(place / TRIALS, read_trials, None) for place in dict.fromkeys(map(sweep_of, folders))}
    return at_one_moment([replace(read_run(folder), tried=tried(folder, sweeps)) for folder in folders])


def sweep_of(folder: Path) -> Path:
    """Return the folder of a sweep that a run would be of: runs lie in METHOD/SETTING/seed-0."""
    return folder.parent.parent.parent


def tried(folder: Path, sweeps: Mapping[Path, dict[str, Tried] | None]) -> Tried | None:
    """Return what its sweep says of a run's setting; a setting of an earlier sweep in the same folder is not chosen."""
    place = sweep_of(folder)
    trials, setting = sweeps[place], folder.parent.relative_to(place).as_posix()
    return None if trials is None else replace(trials.get(setting, Tried()), sweep=str(place))


def at_one_moment(runs: list[Run]) -> list[Run]:
    """Compare runs whose settings name different moments as received, and those of different metrics by accuracy."""
    moments, metrics = {run.moment for run in runs}, {run.metric for run in runs}
    if len(moments) == len(metrics) == 1:
        return runs
    moment = moments.pop() if len(moments) == 1 else USUAL.moment
    metric = metrics.pop() if len(metrics) == 1 else USUAL.metric
    return [
        run if (run.moment, run.metric) == (moment, metric) else replace(run, compared=(moment, metric)) for run in runs
    ]


def walk(place: str | Path) -> Iterable[tuple[str, list[str], list[str]]]:
    for folder, inner, files in os.walk(place):
        inner[:] = [name for name in inner if name not in (MODELS, CHECKPOINTS)]
        yield folder, inner, files


def read_run(folder: Path) -> Run:
    """All that a run's folder holds, but for models."""
    return Run(
        folder,
        settings=read(folder / CONFIG, tomllib.loads, {}),
        rounds=read(folder / METRICS, lambda text: list(map(RoundRecord.from_json, lines(text))), []),
        summary=read(folder / SUMMARY, lambda text: RunSummary.from_json(json.loads(text)), None),
        clients=read(folder / CLIENTS, clients, []),
        ledger=read(folder / LEDGER, json.loads, {}),
        events=read(folder / EVENTS, lines, []),
        environment=read(folder / ENVIRONMENT, json.loads, {}),
        setup=read(folder / SETUP, json.loads, {}),
        leaves=read(folder / LEAVES, json.loads, {}),
        planes={
            path.stem.removeprefix(PLANES): read(path, points, []) for path in sorted(folder.glob(f"{PLANES}*.csv"))
        },
    )


def read(path: Path, parse: Callable[[str], Any], absent: Any) -> Any:
    """What a file holds; `absent` where there is none."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return absent
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"'{path}' is damaged ({error})") from None


def lines(text: str) -> list[Any]:
    """JSON, a line each; the last may be cut off, for a machine may lose its power."""
    whole = text[: text.rfind("\n") + 1]
    return [json.loads(line) for line in whole.splitlines()]


def clients(text: str) -> list[ClientRecord]:
    """Return the rows of clients.csv."""
    return list(map(ClientRecord.from_row, csv.DictReader(io.StringIO(text, newline=""))))


def points(text: str) -> list[Point]:
    return [(float(row["x"]), float(row["y"]), int(float(row["label"]))) for row in csv.DictReader(text.splitlines())]
