"""Several methods on the same data with the same seeds: how they stand to each other."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from partwise.errors import ConfigError
from partwise.options import Checked, option, spelled
from partwise.records.names import proper
from partwise.runs.config import Config, label
from partwise.runs.metrics import METRICS, MOMENTS, OTHER_SCORES, global_key, worse_off

REFERENCE = "local"  # what every client can do without the others
USUAL = {"moment": "received", "metric": "accuracy"}  # where a summary does not say


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


def standings(summaries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for every method, the best first: means over seeds, and the deviation of what ranks it."""
    methods = dict.fromkeys(summary["method"] for summary in summaries)
    alone = {s.get("seed"): s.get("client_accuracy") for s in summaries if s["method"] == REFERENCE}
    rows = []
    for method in methods:
        own = [summary for summary in summaries if summary["method"] == method]
        rows.append(standing(method, own, {} if method == REFERENCE else alone))
    return sorted(rows, key=lambda row: -1 if row["last"] is None else row["last"], reverse=True)


def standing(method: str, summaries: list[dict[str, Any]], alone: dict[Any, Any]) -> dict[str, Any]:
    """Return the row of one method over its seeds, at the moment that compares methods."""
    moment, metric = (summaries[0].get(name, usual) for name, usual in USUAL.items())
    every = [numbers(summary, moment, alone.get(summary.get("seed"))) for summary in summaries]
    row: dict[str, Any] = {"method": method, "moment": moment, "metric": metric, "seeds": len(summaries)}
    row["changed_at_end"] = any(summary.get("changed_at_end") for summary in summaries)
    for name in every[0]:
        found = [value for values in every if (value := values[name]) is not None]
        row[name] = statistics.fmean(found) if found else None
        if name in ("last", "best", "chosen"):
            row[f"{name}_std"] = statistics.stdev(found) if len(found) > 1 else None
    return row


def numbers(summary: dict[str, Any], moment: str, alone: list[float | None] | None) -> dict[str, float | None]:
    """Return the leaderboard's numbers of one run, None if missing; `alone`: its clients' accuracies with `local`."""
    accuracy, key = summary["accuracy"], METRICS[summary.get("metric", "accuracy")]
    headline = accuracy.get(moment, {})
    last, everywhere = headline.get("last", {}), accuracy.get("global", {}).get("last", {})
    return {
        "rounds": summary["rounds"],
        "last": last.get(key),
        "best": headline.get("best", {}).get(key),
        "chosen": accuracy.get("chosen", {}).get(key),
        **{name: accuracy.get(name, {}).get("last", {}).get(key) for name in MOMENTS},
        "accuracy": last.get("acc_pooled"),
        "acc_mean": last.get("acc_mean"),
        "acc_std": last.get("acc_std"),
        **{name: last.get(name) for name in OTHER_SCORES},
        "nonfinite": last.get("nonfinite"),
        "worse": worse_off(summary.get("client_accuracy", ()), alone or ()),
        "g_test": everywhere.get(global_key(key)),
        "p_test": everywhere.get("p_test", {}).get(key),
        "bytes_per_participant": summary["bytes_per_participant"],
        "seconds": summary["seconds"],
    }


def differences(configs: Sequence[Config]) -> list[str]:
    """What `differing` says of configurations, a method each."""
    return differing({proper(label(config.name)): flat_settings(config) for config in configs})


def differing(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line for every setting in which methods differ: `rounds: 200 (fed3p2p), 100 (others)`.

    An option that only one of them has is no difference.
    """
    lines = []
    for name in dict.fromkeys(name for own in settings.values() for name in own if name != "seed"):
        holders: dict[str, list[str]] = {}  # the methods that have each value
        for method, own in settings.items():
            if name in own:
                holders.setdefault(spelled(own[name]), []).append(method)
        if len(holders) > 1:
            usual = max(reversed(holders), key=lambda value: len(holders[value]))
            rare = [f"{value} ({', '.join(methods)})" for value, methods in holders.items() if value != usual]
            rest = "others" if len(holders[usual]) > 1 else holders[usual][0]
            lines.append(f"{name}: {', '.join(rare)}, {usual} ({rest})")
    return lines


def flat_settings(config: Config) -> dict[str, Any]:
    return {name: value for table in config.as_tables().values() for name, value in table.items()}
