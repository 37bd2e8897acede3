"""Settings drawn by optuna: each draw looks at the validation values of those before it."""

import math
from collections.abc import Mapping
from dataclasses import Field
from typing import Any

from partwise.errors import needed
from partwise.options import field_type
from partwise.studies.sweep import Range

SEED = 0  # of what is drawn: the same sweep draws the same settings, so that it can go on where it stopped
DRAWN_DIGITS = 4  # of a number that is drawn
WORST = -math.inf  # the rank of a setting that came to no end


class Search:
    """Draws settings of one method (the tree-structured Parzen estimator of Bergstra et al. 2011)."""

    def __init__(self, values: Mapping[str, list[Any] | Range], known: Mapping[str, Field]):
        optuna = needed("optuna", "search")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=SEED))
        self.values = values
        self.space = {name: distribution(optuna, known[name], own) for name, own in values.items()}

    def draw(self) -> tuple[Any, dict[str, object]]:
        """Draw the next trial and its settings, with numbers rounded to DRAWN_DIGITS."""
        trial, settings = self.study.ask(self.space), {}
        for name, number in trial.params.items():
            values = self.values[name]
            if isinstance(values, Range):
                settings[name] = float(f"{number:.{DRAWN_DIGITS}g}") if isinstance(number, float) else number
            else:
                settings[name] = values[number]
        return trial, settings

    def tell(self, trial: Any, rank: float | None) -> None:
        """Tell optuna a trial's result on validation data, the higher the better."""
        self.study.tell(trial, WORST if rank is None else rank)


def distribution(optuna: Any, spec: Field, values: list[Any] | Range) -> Any:
    """Return optuna's distribution: numbers of a range, or the position of a value in a list."""
    if not isinstance(values, Range):
        return optuna.distributions.CategoricalDistribution(range(len(values)))
    whole = field_type(spec)[0] is int
    kind = optuna.distributions.IntDistribution if whole else optuna.distributions.FloatDistribution
    return kind(values.low, values.high, log=values.log)
