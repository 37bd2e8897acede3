"""A sweep: what is varied, the settings that are tried, and the one that is chosen, on validation data alone."""

import dataclasses
import hashlib
import os
import re
import statistics
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from partwise.errors import ConfigError, Problems
from partwise.options import as_written, convert, field_type
from partwise.records.metrics import FIELDS
from partwise.records.summaries import RunSummary
from partwise.runs.config import Config, label
from partwise.runs.result import Result
from partwise.runs.settings import Data, Failures
from partwise.studies.jobs import KeptRun
from partwise.studies.leaderboard import flat_settings

VALIDATION = 0.2  # share of a client's training samples, where the user names none
LISTS = ("augment", "drop", "label")  # texts that hold commas themselves, as lists of numbers do
ONE_VALUE = {
    "seed": "--seeds takes several",
    "validation": "settings are chosen on it",
    "moment": "settings are compared at it",
    "metric": "settings are compared by it",
}
# What a run is about, in contrast to how it trains: nothing of it is chosen, each value has a column of its own.
TRAINS = ("augment", "image_size", "normalise")
PROBLEM = {spec.name for table in (Data, Failures) for spec in dataclasses.fields(table)} - set(TRAINS)
FOLDER_NAME_LETTERS = 100  # letters of a folder's name


@dataclass(frozen=True)
class Range:
    """Numbers from which a search draws: on a logarithmic scale where the ends lie a factor of ten or more apart."""

    low: float
    high: float

    @property
    def log(self) -> bool:
        """Return whether it is on a logarithmic scale."""
        return 0 < 10 * self.low <= self.high


@dataclass
class Varied:
    """The options of a sweep: with one value, with several, and with a range."""

    fixed: dict[str, object] = field(default_factory=dict)
    lists: dict[str, list[Any]] = field(default_factory=dict)
    ranges: dict[str, Range] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Return the names of all that is varied."""
        return [*self.lists, *self.ranges]

    @property
    def first(self) -> dict[str, object]:
        """Return one value of everything that is varied."""
        ends = {name: values.low for name, values in self.ranges.items()}
        return {**{name: values[0] for name, values in self.lists.items()}, **ends}

    @property
    def problems(self) -> list[dict[str, object]]:
        """Return every combination of the problem's varied settings."""
        return list(combinations({name: values for name, values in self.lists.items() if name in PROBLEM}))

    def space(self, known: Iterable[str]) -> dict[str, list[Any] | Range]:
        """Return the search space of a method's settings."""
        every: dict[str, list[Any] | Range] = {**self.lists, **self.ranges}
        return {name: values for name, values in every.items() if name in known and name not in PROBLEM}


def read_varied(options: Mapping[str, Sequence[Any]], known: Mapping[str, dataclasses.Field], search: bool) -> Varied:
    """Read the values of all given options; one error lists all problems."""
    problems, result = Problems(), Varied()
    for name, given in options.items():
        with problems.collect():
            values = values_of(known[name], given) if name in known else list(given)
            if name in ONE_VALUE and (isinstance(values, Range) or len(values) > 1):
                raise ConfigError(f"{name} takes one value in a sweep: {ONE_VALUE[name]}")
            if not isinstance(values, Range) and len(values) == 1:
                result.fixed[name] = values[0]
            elif not isinstance(values, Range):
                result.lists[name] = values
            elif search and name not in PROBLEM:
                result.ranges[name] = values
            else:
                why = "each of its values is a problem of its own" if search else "--search NUMBER draws from ranges"
                raise ConfigError(f"{name} = {given[0]} is a range: {why}; give values, separated by commas")
    problems.tell()
    return result


def values_of(spec: dataclasses.Field, given: Sequence[Any]) -> list[Any] | Range:
    """Return an option's values, separated by commas; options that are lists themselves are repeated instead."""
    plain = field_type(spec)[0]
    if plain is bool or typing.get_origin(plain) is tuple or spec.name in LISTS:
        return list(dict.fromkeys(convert(spec, value) for value in given))
    for text in given:
        if "," in text and os.path.exists(os.path.expanduser(text)):
            raise ConfigError(
                f"{spec.name} = '{text}' is the name of a file, but its commas separate values: rename the file"
            )
    values = [value for text in given for value in text.split(",")]
    ends = values[0].split("..")
    if plain not in (int, float) or not any(".." in value for value in values):
        return list(dict.fromkeys(convert(spec, value) for value in values))
    if len(values) > 1 or len(ends) != 2:
        raise ConfigError(
            f"{spec.name} = {','.join(values)} is not allowed: a range is LOW..HIGH, without further values"
        )
    low, high = (convert(spec, end) for end in ends)
    if low >= high:
        raise ConfigError(f"{spec.name} = {values[0]} is not allowed: a range goes from the lower to the higher number")
    return Range(low, high)


def combinations(values: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, object]]:
    """Yield every combination of some values, by name."""
    for chosen in product(*values.values()):
        yield dict(zip(values, chosen, strict=True))


Problem = tuple[tuple[str, Any], ...]  # the values of what is varied of it, by name


@dataclass
class SweepTrial:
    """A setting of a method that is tried: with every seed, in folders side by side."""

    method: str
    settings: dict[str, object]  # what is varied of those that the method has, as it is in this trial
    configs: list[Config] = field(default_factory=list)
    summaries: list[RunSummary] = field(default_factory=list)  # of the runs that came to their end

    @property
    def problem(self) -> Problem:
        """Return the varied settings that belong to the problem."""
        return tuple((name, value) for name, value in self.settings.items() if name in PROBLEM)

    @property
    def words(self) -> str:
        """Return the varied settings as text: `lr=0.05,epochs=2`."""
        return worded(self.settings.items())

    @property
    def folder(self) -> str:
        """Return the name of the trial's folder inside its method's."""
        plain = re.sub(r"[^\w.=,+-]", "-", self.words) or "as-given"
        mark = hashlib.sha256(self.words.encode()).hexdigest()[:8]
        return plain if len(plain) <= FOLDER_NAME_LETTERS else f"{plain[: FOLDER_NAME_LETTERS - 9]}-{mark}"

    def finish(self, run: Result | KeptRun) -> None:
        """Note a run that came to its end."""
        self.summaries.append(run.summary)

    @property
    def finished(self) -> bool:
        """Return whether all of its runs came to their end."""
        return len(self.summaries) == len(self.configs)

    @property
    def validation(self) -> float | None:
        """Return the metric on validation data, averaged over seeds; None if a seed has none or did not end."""
        values = [summary.validation for summary in self.summaries]
        found = [value for value in values if value is not None]
        return statistics.fmean(found) if self.finished and found and len(found) == len(values) else None

    @property
    def rank(self) -> float | None:
        """Return what settings are chosen by, the highest: the validation value, negative where lower is better."""
        value = self.validation
        return None if value is None else FIELDS[self.summaries[0].metric].sign * value


def worded(settings: Iterable[tuple[str, Any]]) -> str:
    """Return settings as text for people."""
    return ",".join(f"{name}={as_written(value)}" for name, value in settings)


def trials_of(configs: Iterable[Config], varied: Iterable[str]) -> list[SweepTrial]:
    """Return a trial for every setting, with the runs that differ in their seed alone.

    An option that a method does not have does not multiply its trials.
    """
    trials: dict[tuple[Any, ...], SweepTrial] = {}
    varied = list(varied)
    for config in configs:
        every = flat_settings(config)
        settings = {name: every[name] for name in varied if name in every}
        trial = trials.setdefault((config.name, *settings.values()), SweepTrial(label(config.name), settings))
        if config.run.seed not in [each.run.seed for each in trial.configs]:
            trial.configs.append(config)
    return list(trials.values())


Chosen = dict[Problem, dict[str, SweepTrial]]


def choose_trials(trials: Iterable[SweepTrial]) -> Chosen:
    """Return the trial that is best on validation data for each problem and method; of equal ones the first."""
    best: Chosen = {}
    for trial in trials:
        own = best.setdefault(trial.problem, {})
        value, so_far = trial.rank, own[trial.method].rank if trial.method in own else None
        if value is not None and (so_far is None or value > so_far):
            own[trial.method] = trial
    return best
