"""Several methods on the same data with the same seeds: how they stand to each other."""

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partwise.errors import ConfigError
from partwise.options import Checked, as_written, option
from partwise.records.formats import as_csv
from partwise.records.metrics import FIELDS, METRICS_OF, RANKING
from partwise.records.names import proper
from partwise.records.record import Json
from partwise.records.rounds import MOMENTS, keys_over_clients
from partwise.records.summaries import RunSummary
from partwise.runs.config import Config, label
from partwise.runs.metrics import worse_off
from partwise.writing import write

if TYPE_CHECKING:
    from partwise.reporting.tables import Cells

REFERENCE = "local"  # what every client can do without the others


@dataclass(kw_only=True)
class Seeds(Checked):
    """The seeds that every method runs with."""

    seeds: tuple[int, ...] = option((0,), "Seeds, separated by commas; every method runs with each.", minimum=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds = {','.join(map(str, self.seeds))} is not allowed: give every seed once")


def parse_seeds(text: Any) -> tuple[int, ...]:
    """Read seeds as on the command line: `0,1,2`."""
    return Seeds(seeds=text).seeds


@dataclass(frozen=True)
class Standing:
    """One method over its seeds: the means of its runs' numbers, at the moment that compares methods."""

    method: str
    moment: str
    metric: str
    seeds: int
    changed_at_end: bool
    rounds: float
    last: float | None
    last_std: float | None
    best: float | None
    best_std: float | None
    chosen: float | None
    chosen_std: float | None
    moments: dict[str, float | None]  # the metric after the last round, by moment
    scores: dict[str, float | None]  # every metric after the last round, at the moment that compares
    mean: float | None  # over clients, of what ranks by default
    std: float | None
    nonfinite: float | None
    worse: float | None  # the share of clients that do worse than with `local`
    g_test: float | None
    p_test: float | None
    bytes_per_participant: float
    seconds: float

    def as_row(self) -> Json:
        """Return the row of leaderboard.csv."""
        row: Json = {}
        over_clients = keys_over_clients(FIELDS[self.metric].task)
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name == "scores":  # the first; the others come behind the spread over clients
                row |= dict(islice(value.items(), 1))
            elif isinstance(value, dict):
                row |= value
            else:
                row[over_clients.get(entry.name, entry.name)] = value
            if entry.name == "std":
                row |= dict(islice(self.scores.items(), 1, None))
        return row


def standings(summaries: Sequence[RunSummary]) -> list[Standing]:
    """Return the standing of every method, the best first."""
    alone = {summary.seed: summary.client_scores for summary in summaries if summary.method == REFERENCE}
    every = [
        standing([summary for summary in summaries if summary.method == method], {} if method == REFERENCE else alone)
        for method in dict.fromkeys(summary.method for summary in summaries)
    ]
    sign = FIELDS[every[0].metric].sign if every else 1
    return sorted(every, key=lambda own: -math.inf if own.last is None else sign * own.last, reverse=True)


def standing(summaries: Sequence[RunSummary], alone: Mapping[int, Sequence[float | None]]) -> Standing:
    """Return the standing of one method; `alone`: the clients' scores with `local`, by seed."""
    moment, metric, task = summaries[0].moment, summaries[0].metric, summaries[0].task
    sign = FIELDS[RANKING[task]].sign
    last = [summary.last(moment) for summary in summaries]
    servers = [summary.global_model.last for summary in summaries if summary.global_model is not None]
    values = [scores.value(metric) for scores in last]
    best = [summary.best(moment).value(metric) for summary in summaries]
    chosen = [summary.chosen.value(metric) for summary in summaries if summary.chosen is not None]
    return Standing(
        summaries[0].method,
        moment,
        metric,
        len(summaries),
        any(summary.changed_at_end for summary in summaries),
        statistics.fmean(summary.rounds for summary in summaries),
        mean_of_present(values),
        deviation(values),
        mean_of_present(best),
        deviation(best),
        mean_of_present(chosen),
        deviation(chosen),
        {name: mean_of_present([summary.last(name).value(metric) for summary in summaries]) for name in MOMENTS},
        {name: mean_of_present([scores.value(name) for scores in last]) for name in METRICS_OF[task]},
        mean_of_present([scores.mean for scores in last]),
        mean_of_present([scores.std for scores in last]),
        mean_of_present([scores.nonfinite for scores in last if scores.pooled is not None]),
        mean_of_present([worse_off(summary.client_scores, alone.get(summary.seed, ()), sign) for summary in summaries]),
        mean_of_present([server.value(metric) for server in servers]),
        mean_of_present([server.clients.value(metric) for server in servers]),
        statistics.fmean(summary.bytes_per_participant for summary in summaries),
        statistics.fmean(summary.seconds for summary in summaries),
    )


def mean_of_present(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that there are; None if there are none."""
    found = [value for value in values if value is not None]
    return statistics.fmean(found) if found else None


def deviation(values: Sequence[float | None]) -> float | None:
    """Return the standard deviation of the values that there are; None for fewer than two."""
    found = [value for value in values if value is not None]
    return statistics.stdev(found) if len(found) > 1 else None


def differences(configs: Sequence[Config]) -> list[str]:
    """Return a line for every setting in which configurations, a method each, differ."""
    return differing({proper(label(config.name)): flat_settings(config) for config in configs})


def differing(settings: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Return a line for every setting in which methods differ: `rounds: 200 (fed3p2p), 100 (others)`.

    An option that only one of them has is no difference.
    """
    lines = []
    for name in dict.fromkeys(name for own in settings.values() for name in own if name != "seed"):
        holders: dict[str, list[str]] = {}  # the methods that have each value
        for method, own in settings.items():
            if name in own:
                holders.setdefault(as_written(own[name]), []).append(method)
        if len(holders) > 1:
            usual = max(reversed(holders), key=lambda value: len(holders[value]))
            rare = [f"{value} ({', '.join(methods)})" for value, methods in holders.items() if value != usual]
            rest = "others" if len(holders[usual]) > 1 else holders[usual][0]
            lines.append(f"{name}: {', '.join(rare)}, {usual} ({rest})")
    return lines


def flat_settings(config: Config) -> dict[str, object]:
    """Return all settings of a configuration by name."""
    return {name: value for table in config.as_tables().values() for name, value in table.items()}


class LeaderboardFiles:
    """The files beside the runs of a comparison: `leaderboard.csv`, and the table as text (`md`, `tex`)."""

    def __init__(self, path: str | Path, replace: bool = False):
        self.path, self.csv = Path(path), Path(path, "leaderboard.csv")
        if not replace and os.path.exists(self.csv):
            raise ConfigError(
                f"'{path}' holds an earlier comparison: --resume keeps its finished runs, --overwrite repeats them"
            )

    def write(self, cells: "Cells", standings: Sequence[Standing]) -> None:
        """Write all of them."""
        from partwise.reporting.latex import to_latex  # needs rich; a run does not

        for ending, text in {"md": cells.to_markdown(), "tex": to_latex(cells)}.items():
            write(self.path / f"leaderboard.{ending}", text.encode())
        write(self.csv, as_csv([standing.as_row() for standing in standings]))
