"""Read what runs left in their folders, finished or not."""

import csv
import io
import json
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partwise.errors import ConfigError, DataError
from partwise.records.features import FeatureMetrics
from partwise.records.files import (
    CHECKPOINTS_FOLDER,
    CLIENTS,
    CONFIG,
    ENVIRONMENT,
    EVENTS,
    LEAVES,
    LEDGER,
    METRICS,
    MODELS_FOLDER,
    PLANES,
    SETUP,
    SUMMARY,
)
from partwise.records.ledger import LedgerRecord
from partwise.records.metrics import METRICS_OF, RANKING
from partwise.records.rounds import RoundRecord
from partwise.records.setup import Leaving, RunEnvironment, RunSettings, RunSetup, read_leaves
from partwise.records.summaries import ClientRecord, RunSummary, read_clients
from partwise.reporting.amounts import existing
from partwise.reporting.sweeps import TRIALS, SweepSetting, read_trials
from partwise.rounds.events import Event
from partwise.runs.config import label
from partwise.runs.metrics import History
from partwise.runs.settings import RESULT_NEUTRAL_SETTINGS

NOTED = "representations"  # the name under which a round has what was measured of features
NOT_COMPARED = (*RESULT_NEUTRAL_SETTINGS, "seed", "threads", "engine", "device", "block", "compile")

SettingsTables = Mapping[str, Mapping[str, object]]  # by table


@dataclass(frozen=True, repr=False)
class RunFiles:
    """One run, as far as it came; fields whose files are not written yet are empty."""

    folder: Path
    settings: SettingsTables
    rounds: list[RoundRecord] = field(default_factory=list)
    summary: RunSummary | None = None
    clients: list[ClientRecord] = field(default_factory=list)
    ledger: LedgerRecord | None = None  # None: it is not finished
    events: list[Event] = field(default_factory=list)  # rounds from 1
    environment: RunEnvironment = field(default_factory=RunEnvironment)
    setup: RunSetup = field(default_factory=RunSetup)
    leaves: dict[str, Leaving] = field(default_factory=dict)  # by part and extra
    planes: dict[str, NDArray[np.float64]] = field(default_factory=dict)  # (samples, 3) x, y, class by representation
    tried: SweepSetting | None = None  # what its sweep says of its setting; None: the run is of no sweep
    compared: tuple[str, str] | None = None  # moment and metric, where they are not those of its settings

    @property
    def finished(self) -> bool:
        """Return whether it came to its end."""
        return self.summary is not None

    @cached_property
    def given(self) -> RunSettings:
        """Return the settings that reports look at."""
        return RunSettings.from_tables(self.settings)

    @property
    def method(self) -> str:
        """Return the label of its method."""
        return label(self.given.name or self.folder.name)

    @property
    def seed(self) -> int:
        """Return its seed."""
        return self.given.seed

    @property
    def moment(self) -> str:
        """Return the moment at which it is compared."""
        return self.compared[0] if self.compared else self.given.moment

    @property
    def metric(self) -> str:
        """Return the metric by which it is compared."""
        return self.compared[1] if self.compared else self.own_metric

    @property
    def own_metric(self) -> str:
        """Return the metric of its settings, where accuracy stands for what the run's task ranks by."""
        return self.given.metric if self.given.metric in METRICS_OF[self.task] else RANKING[self.task]

    @property
    def task(self) -> str:
        """Return what a label of its data is."""
        return self.summary.task if self.summary else self.setup.task

    @property
    def planned(self) -> int:
        """Return the number of rounds in its settings."""
        return self.given.rounds or len(self.rounds)

    @property
    def data(self) -> str:
        """Return the name of its data."""
        return self.setup.data or self.given.data or "unknown data"

    @property
    def problem(self) -> str:
        """Return a text that is the same for runs with the same settings of the data."""
        return json.dumps(self.settings.get("data"))

    @property
    def partition(self) -> str:
        """Return how its data are divided; empty where that is not known."""
        return self.setup.partition or self.given.partition

    @property
    def population(self) -> int:
        """Return the number of its clients; 0 where that is not known."""
        return len(self.setup.clients) or self.given.clients

    @cached_property
    def common(self) -> dict[str, object]:
        """Return its settings, without those in which equal runs differ."""
        tables = self.settings.values()
        found = {key: value for table in tables for key, value in table.items() if key not in NOT_COMPARED}
        return found | ({"metric": self.own_metric} if "metric" in found else {})

    def over_rounds(self, moment: str) -> dict[int, float]:
        """Return its values by round, where it was evaluated; NaN where there was no number to give.

        `global`: those of the server's model on all test samples.
        """
        of_server = moment == "global"
        evaluated = [each for each in self.rounds if (each.global_model if of_server else moment in each.moments)]
        return {each.round: existing(each.value(moment, self.metric)) for each in evaluated}

    @cached_property
    def standing(self) -> RunSummary:
        """Return its summary; of an unfinished run, a summary of its rounds so far."""
        if self.summary is not None and not self.compared:
            return self.summary
        if self.summary is not None:  # validation was measured at the run's own moment
            scores = [record.ranking(self.moment) for record in self.clients]
            return replace(self.summary, client_scores=scores, validation=None, moment=self.moment, metric=self.metric)
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
            task=self.task,
        )

    @property
    def stage_starts(self) -> list[int]:
        """Return the rounds in which a stage begins, but for the first stage."""
        return [after.round for before, after in pairwise(self.rounds) if after.stage != before.stage]

    @property
    def group_changes(self) -> dict[int, list[int]]:
        """Return the group of every client by the round after which groups changed."""
        return {each.round: each.groups for each in self.rounds if each.groups is not None}

    @property
    def features(self) -> dict[int, dict[str, FeatureMetrics]]:
        """Return the metrics of representations, by round and name."""
        noted = {each.round: each.noted[NOTED] for each in self.rounds if NOTED in each.noted}
        return {at: {name: FeatureMetrics.from_json(own) for name, own in each.items()} for at, each in noted.items()}

    @property
    def participants(self) -> set[int]:
        """Return the clients that took part in some round."""
        return {client for each in self.rounds for client in each.participants}

    @property
    def client_scores(self) -> list[tuple[float, str]]:
        """Return what ranks by default and the name of the clients tested at the moment that is compared, ascending."""
        found = ((own.ranking(self.moment), own.name) for own in self.clients)
        return sorted((value, name) for value, name in found if value is not None)

    @property
    def sent(self) -> int:
        """Return the bytes down and up in all rounds, without one-off transfers."""
        return sum(each.sent for each in self.rounds)

    @property
    def bytes(self) -> int:
        """Return the bytes down and up in all rounds, with one-off uploads where they are known."""
        return self.sent + (sum(self.ledger.once.up.values()) if self.ledger else 0)

    @property
    def bytes_down_once(self) -> int:
        """Return the bytes of one-off downloads, an initial network say."""
        return sum(self.ledger.once.down.values()) if self.ledger else 0


def find_runs(places: Iterable[str | Path]) -> list[RunFiles]:
    """Return the runs in these folders and below them, each once, in the order of their paths."""
    folders: dict[Path, None] = {}
    for place in places:
        if not os.path.isdir(place):
            raise ConfigError(f"'{place}' is no folder: name that of a run, or one with runs in it")
        found = [Path(folder) for folder, inner, files in walk(place) if METRICS in files and CONFIG in files]
        if not found:
            raise ConfigError(f"no run in '{place}': neither there nor below it lies a {METRICS} beside a {CONFIG}")
        folders |= dict.fromkeys(sorted(folder.resolve() for folder in found))
    sweeps = {place: read_file(place / TRIALS, read_trials, None) for place in dict.fromkeys(map(sweep_of, folders))}
    return at_one_moment([replace(read_run(folder), tried=tried_by(folder, sweeps)) for folder in folders])


def sweep_of(folder: Path) -> Path:
    """Return the folder of a sweep that a run would be of: runs lie in METHOD/SETTING/seed-0."""
    return folder.parent.parent.parent


def tried_by(folder: Path, sweeps: Mapping[Path, dict[str, SweepSetting] | None]) -> SweepSetting | None:
    """Return a run's entry in its sweep; a setting of an earlier sweep in the same folder is not chosen."""
    place = sweep_of(folder)
    trials, setting = sweeps[place], folder.parent.relative_to(place).as_posix()
    return None if trials is None else replace(trials.get(setting, SweepSetting()), sweep=str(place))


def at_one_moment(runs: list[RunFiles]) -> list[RunFiles]:
    """Compare runs whose settings name different moments as received, and those of different metrics by their task's.

    Runs of different tasks have no metric in common, and are refused.
    """
    by_task = {run.task: run for run in runs}
    if len(by_task) > 1:
        one, other = list(by_task.values())[:2]
        raise ConfigError(
            f"'{one.folder}' is a run of {one.task} and '{other.folder}' one of {other.task}, which have no metric in "
            "common: name runs of one task"
        )
    moments, metrics = {run.moment for run in runs}, {run.metric for run in runs}
    if len(moments) == len(metrics) == 1:
        return runs
    moment = moments.pop() if len(moments) == 1 else RunSettings.moment
    metric = metrics.pop() if len(metrics) == 1 else RANKING[runs[0].task]
    return [
        run if (run.moment, run.metric) == (moment, metric) else replace(run, compared=(moment, metric)) for run in runs
    ]


def walk(place: str | Path) -> Iterable[tuple[str, list[str], list[str]]]:
    """Yield folders with their content, without models and checkpoints."""
    for folder, inner, files in os.walk(place):
        inner[:] = [name for name in inner if name not in (MODELS_FOLDER, CHECKPOINTS_FOLDER)]
        yield folder, inner, files


def read_run(folder: Path) -> RunFiles:
    """Return all that a run's folder holds, but for models."""
    return RunFiles(
        folder,
        settings=read_file(folder / CONFIG, tomllib.loads, {}),
        rounds=read_file(folder / METRICS, lambda text: list(map(RoundRecord.from_json, json_lines(text))), []),
        summary=read_file(folder / SUMMARY, lambda text: RunSummary.from_json(json.loads(text)), None),
        clients=read_file(folder / CLIENTS, read_clients, []),
        ledger=read_file(folder / LEDGER, lambda text: LedgerRecord.from_json(json.loads(text)), None),
        events=read_file(folder / EVENTS, lambda text: [Event(**event) for event in json_lines(text)], []),
        environment=read_file(
            folder / ENVIRONMENT, lambda text: RunEnvironment.from_json(json.loads(text)), RunEnvironment()
        ),
        setup=read_file(folder / SETUP, lambda text: RunSetup.from_json(json.loads(text)), RunSetup()),
        leaves=read_file(folder / LEAVES, read_leaves, {}),
        planes={
            path.stem.removeprefix(PLANES): read_file(path, read_points, None)
            for path in sorted(folder.glob(f"{PLANES}*.csv"))
        },
    )


def read_file(path: Path, parse: Callable[[str], Any], absent: Any) -> Any:
    """Return the parsed content of a file; `absent` where there is no file."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return absent
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"'{path}' is damaged ({error})") from None


def json_lines(text: str) -> list[Any]:
    """Return JSON, a line each; the last may be cut off, for a machine may lose its power."""
    whole = text[: text.rfind("\n") + 1]
    return [json.loads(line) for line in whole.splitlines()]


def read_points(text: str) -> NDArray[np.float64]:
    """Return (samples, 3) x, y and class."""
    rows = [[float(row[name]) for name in ("x", "y", "label")] for row in csv.DictReader(io.StringIO(text, newline=""))]
    return np.array(rows, dtype=np.float64).reshape(-1, 3)
