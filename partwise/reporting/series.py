"""Runs that differ in their seeds alone are one series; a leaderboard has a row for each."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from partwise.options import as_written
from partwise.records.metrics import FIELDS
from partwise.records.names import proper
from partwise.reporting.reading import RunFiles
from partwise.reporting.sweeps import SweepSetting
from partwise.studies.leaderboard import REFERENCE, Standing, mean_of_present, standing

SHORT = 3  # settings that a name has room for
BOOTSTRAP_DRAWS = 2000  # of the bootstrap
FEWEST_SEEDS = 3  # from which it says something


@dataclass(frozen=True)
class Series:
    """A method with its settings, over its seeds."""

    name: str
    number: int  # its colour, dash and mark
    runs: list[RunFiles]

    @cached_property
    def counted(self) -> list[RunFiles]:
        """Return the runs behind its numbers: the finished ones, or, if there are none, all that have begun."""
        begun = [run for run in self.runs if run.rounds]
        return [run for run in begun if run.finished] or begun

    @property
    def settings(self) -> dict[str, object]:
        """Return its settings, but for those in which equal runs differ."""
        return {key: value for key, value in self.runs[0].common.items() if key != "name"}

    @property
    def tried(self) -> SweepSetting | None:
        """Return its entry in a sweep; None if it belongs to no sweep."""
        return self.runs[0].tried

    @property
    def set_aside(self) -> bool:
        """Return whether a sweep tried its setting and did not choose it."""
        return self.tried is not None and not self.tried.chosen

    @property
    def state(self) -> str:
        """Return a remark where not all of its runs are finished; else empty."""
        unfinished = [run for run in self.runs if not run.finished]
        if not unfinished:
            return ""
        if len(unfinished) < len(self.runs):
            return f"{len(self.runs) - len(unfinished)} of {len(self.runs)} seeds finished"
        return f"unfinished: round {max(len(run.rounds) for run in unfinished)} of {unfinished[0].planned}"


@dataclass(frozen=True)
class SeriesStanding:
    """A row of the leaderboard; shares are fractions, None where there is no such number."""

    series: Series
    means: Standing  # over seeds
    interval: tuple[float, float] | None  # of the mean that ranks, by bootstrap
    validation: float | None  # what ranks, on validation data, the mean over seeds
    worst: float | None  # the mean over the worst tenth of the clients of what ranks by default
    bytes: float | None  # down and up, of all in the whole run,
    once: float | None  # and down once
    flops: float | None  # of training


def series_of(runs: Sequence[RunFiles]) -> list[Series]:
    """Return series by name; one whose method occurs with several settings names those that differ."""
    grouped: dict[tuple[str, str], list[RunFiles]] = {}
    for run in runs:
        grouped.setdefault((run.method, json.dumps(run.common, sort_keys=True, default=str)), []).append(run)
    named: dict[str, list[RunFiles]] = {}
    for (method, _), own in grouped.items():
        alike = [others[0].common for (name, _), others in grouped.items() if name == method]
        keys = dict.fromkeys(key for settings in alike for key in settings)
        unlike = [key for key in keys if len({as_written(settings.get(key)) for settings in alike}) > 1]
        words = [f"{key}={as_written(own[0].common.get(key))}" for key in unlike[:SHORT]]
        name = " ".join([proper(method), *words, *(["..."] if len(unlike) > SHORT else [])])
        while name in named:
            name += "'"
        named[name] = sorted(own, key=lambda run: run.seed)
    return [Series(name, number, named[name]) for number, name in enumerate(sorted(named, key=str.casefold))]


def ranked_series(series: Sequence[Series]) -> list[SeriesStanding]:
    """Return the leaderboard, the best first, those without a number last.

    Of a sweep the chosen settings come first, problem by problem. The others follow by their validation values: test
    data have no part in their order.
    """
    alone = {
        (run.problem, run.seed): run.standing.client_scores
        for each in sorted(series, key=lambda each: not each.set_aside)  # of a sweep the chosen one: the last counts
        for run in each.runs
        if run.method == REFERENCE
    }
    rows = [stand(each, alone) for each in series if each.counted]
    return sorted(rows, key=place)


def place(row: SeriesStanding) -> tuple[bool, str, float]:
    """Return the key by which rows are sorted."""
    value = row.validation if row.series.set_aside else row.means.last
    tried = row.series.tried
    problem = f"{tried.sweep} {tried.problem}" if tried and tried.chosen else ""
    return row.series.set_aside, problem, math.inf if value is None else -FIELDS[row.means.metric].sign * value


def stand(series: Series, alone: dict[tuple[str, int], list[float | None]]) -> SeriesStanding:
    """Return the row of a series; `alone` are its clients' scores with local, by data and seed."""
    runs = series.counted
    local = {} if runs[0].method == REFERENCE else alone
    beside = {run.seed: local.get((run.problem, run.seed), []) for run in runs}
    known = [value for run in runs if (value := run.standing.value) is not None]
    return SeriesStanding(
        series=series,
        means=standing([run.standing for run in runs], beside),
        interval=bootstrap(known) if len(known) >= FEWEST_SEEDS else None,
        validation=validation_of(series),
        worst=mean_of_present([run.standing.last(run.moment).worst for run in runs]),
        bytes=mean_of_present([run.bytes for run in runs]),
        once=mean_of_present([run.bytes_down_once for run in runs]),
        flops=mean_of_present([run.ledger.training_flops if run.ledger else None for run in runs]),
    )


def validation_of(series: Series) -> float | None:
    """Return the mean validation value over seeds, by which a sweep chooses; None where a seed is not finished."""
    values = [run.standing.validation for run in series.runs]
    return mean_of_present(values) if None not in values else None


def bootstrap(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean; the same for the same values."""
    drawn = np.random.default_rng(0).choice(np.asarray(values), (BOOTSTRAP_DRAWS, len(values)))
    low, high = np.quantile(drawn.mean(axis=1), (0.025, 0.975))
    return float(low), float(high)
