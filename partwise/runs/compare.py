"""Several methods on the same data with the same seeds: their settings before the runs, their standing after them."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from partwise.errors import ConfigError, unknown
from partwise.method import Method
from partwise.options import Checked, option
from partwise.runs.config import Config, known_fields, label, make_config


@dataclass(kw_only=True)
class Seeds(Checked):
    """The seeds that every method runs with."""

    seeds: tuple[int, ...] = option((0,), "Seeds, separated by commas; every method runs with each.", minimum=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds = {','.join(map(str, self.seeds))} is not allowed: a seed occurs twice")


def parse_seeds(text: Any) -> tuple[int, ...]:
    """Seeds as they stand on the command line: `0,1,2`."""
    return Seeds(seeds=text).seeds


def make_configs(
    methods: Sequence[tuple[str, type[Method]]], settings: dict[str, Any], seeds: Sequence[Any]
) -> list[Config]:
    """A configuration for every method and seed. A setting goes to the methods that have it; one at least must."""
    labels = [label(name) for name, _ in methods]
    for name in labels:
        if labels.count(name) > 1:
            raise ConfigError(f"two methods are called '{name}'; each must have a name of its own")
    known = {name: known_fields(method) for name, method in methods}
    every = {key: None for fields in known.values() for key in fields}  # unlike a set, it keeps the order
    for key in settings:
        if key not in every:
            raise ConfigError(unknown("setting", key, every))
    configs = []
    for name, method in methods:
        own = {key: value for key, value in settings.items() if key in known[name]}
        configs += [replace(make_config(method, {**own, "seed": seed}), name=name) for seed in seeds]
    return configs


def standings(summaries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for every method, the best first: means over its seeds, and the standard deviation of what ranks it."""
    methods = dict.fromkeys(summary["method"] for summary in summaries)
    rows = [standing(method, [summary for summary in summaries if summary["method"] == method]) for method in methods]
    return sorted(rows, key=lambda row: -1 if row["last"] is None else row["last"], reverse=True)


def standing(method: str, summaries: list[dict[str, Any]]) -> dict[str, Any]:
    """One method over its seeds. It is judged `adapted` where it adapts, otherwise as `received`."""
    moment = "adapted" if any("adapted" in summary["accuracy"] for summary in summaries) else "received"
    every = [numbers(summary, moment) for summary in summaries]
    row: dict[str, Any] = {"method": method, "moment": moment, "seeds": len(summaries)}
    for name in every[0]:
        found = [value for values in every if (value := values[name]) is not None]
        row[name] = statistics.fmean(found) if found else None
        if name in ("last", "best", "chosen"):
            row[f"{name}_std"] = statistics.stdev(found) if len(found) > 1 else None
    return row


def numbers(summary: dict[str, Any], moment: str) -> dict[str, float | None]:
    """What the leaderboard takes from one run; None where the run has no such value."""
    accuracy = summary["accuracy"]
    headline = accuracy.get(moment, {})
    last, everywhere = headline.get("last", {}), accuracy.get("global", {}).get("last", {})
    return {
        "last": last.get("acc_pooled"),
        "best": headline.get("best", {}).get("acc_pooled"),
        "chosen": accuracy.get("chosen", {}).get("acc_pooled"),
        "received": accuracy.get("received", {}).get("last", {}).get("acc_pooled"),
        "trained": accuracy.get("trained", {}).get("last", {}).get("acc_pooled"),
        "acc_mean": last.get("acc_mean"),
        "acc_std": last.get("acc_std"),
        "g_test": everywhere.get("g_test"),
        "p_test": everywhere.get("p_test", {}).get("acc_pooled"),
        "bytes_per_participant": summary["bytes_per_participant"],
        "seconds": summary["seconds"],
    }
