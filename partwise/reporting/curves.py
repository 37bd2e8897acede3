"""Curves of runs in a notebook."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from partwise.errors import ConfigError, needed, unknown
from partwise.records.metrics import TITLES
from partwise.records.names import model_at
from partwise.records.rounds import MOMENTS, RoundRecord
from partwise.reporting.drawing import COLOURS, DARK, STYLES, TEXT, quiet, shown


def draw_curves(runs: Mapping[str, Sequence[Sequence[RoundRecord]]], moment: str, metric: str, axes: Any = None) -> Any:
    """Draw a metric over rounds, by method, and return the axes: the mean over runs, and a band of one deviation."""
    if moment not in MOMENTS:
        raise ConfigError(unknown("moment", moment, MOMENTS))
    axes = quiet(axes or needed("matplotlib.pyplot", "plots").subplots()[1])
    lines = []
    for number, (name, own) in enumerate(runs.items()):
        points = values_by_round(own, moment, metric)
        rounds, means = list(points), [statistics.fmean(values) for values in points.values()]
        colour, style = COLOURS[number % len(COLOURS)], STYLES[number // len(COLOURS) % len(STYLES)]
        mark = "o" if len(rounds) == 1 else None  # one point makes no line
        lines += axes.plot(rounds, means, color=colour, linestyle=style, marker=mark, label=shown(name))
        if len(own) > 1:
            apart = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in points.values()]
            low, high = ([m + sign * s for m, s in zip(means, apart, strict=True)] for sign in (-1, 1))
            axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("round", **TEXT)
    axes.set_ylabel(f"{TITLES[metric]} in %, {model_at(moment)}", **TEXT)
    if len(runs) > 1:
        for text in axes.legend(handles=lines, frameon=False, fontsize=8, labelcolor=DARK).get_texts():
            text.set_parse_math(False)
    return axes


def values_by_round(runs: Sequence[Sequence[RoundRecord]], moment: str, metric: str) -> dict[int, list[float]]:
    """Return the values of all runs in percent, for every round that has one."""
    found: dict[int, list[float]] = {}
    for record in (record for rounds in runs for record in rounds):
        if (value := record.value(moment, metric)) is not None:
            found.setdefault(record.round, []).append(100 * value)
    return dict(sorted(found.items()))
