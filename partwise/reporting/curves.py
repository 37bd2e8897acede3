"""Curves of runs in a notebook."""

from collections.abc import Mapping, Sequence
from typing import Any

from partwise.errors import ConfigError, needed, unknown
from partwise.records.metrics import FIELDS
from partwise.records.names import model_at
from partwise.records.rounds import MOMENTS, RoundRecord
from partwise.reporting.drawing import quiet_axes
from partwise.reporting.figures.lines import draw_on
from partwise.reporting.style import look
from partwise.reporting.tables import in_unit
from partwise.reporting.views.kinds import Curves, mean_line


def draw_curves(runs: Mapping[str, Sequence[Sequence[RoundRecord]]], moment: str, metric: str, axes: Any = None) -> Any:
    """Draw a metric over rounds, by method, and return the axes: the mean over runs, and a band of one deviation."""
    if moment not in MOMENTS:
        raise ConfigError(unknown("moment", moment, MOMENTS))
    axes = quiet_axes(axes or needed("matplotlib.pyplot", "plots").subplots()[1])
    values = {name: [values_by_round(rounds, moment, metric) for rounds in own] for name, own in runs.items()}
    lines = [mean_line(name, look(number), own) for number, (name, own) in enumerate(values.items())]
    quantity, share = f"{in_unit(metric)}, {model_at(moment)}", FIELDS[metric].percent
    draw_on(axes, Curves([line for line in lines if line is not None], quantity=quantity, percent=share))
    return axes


def values_by_round(rounds: Sequence[RoundRecord], moment: str, metric: str) -> dict[int, float]:
    """Return a run's values, for every round that has one."""
    found = ((each.round, each.value(moment, metric)) for each in rounds)
    return {number: value for number, value in found if value is not None}
