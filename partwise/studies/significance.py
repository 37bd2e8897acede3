"""Whether seeds tell two methods apart: paired tests, said in words."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from partwise.errors import needed
from partwise.records.metrics import FIELDS, TITLES

LEVEL = 0.05  # p below it: the seeds tell two methods apart
FEWEST = 3  # seeds for a t-test: with two, one difference stands against one other
FEWEST_RANKED = 6  # seeds for Wilcoxon's test: with fewer, even seeds that all agree do not bring it below 0.05


@dataclass(frozen=True)
class Paired:
    """One method against another on the same seeds: the mean difference, and p of both tests where there is one."""

    difference: float
    seeds: int
    t: float | None = None
    wilcoxon: float | None = None


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Paired:
    """Compare values of the same seeds, in the same order."""
    apart = [a - b for a, b in zip(ours, theirs, strict=True)]
    mean = statistics.fmean(apart)
    if len(apart) < FEWEST or math.isclose(max(apart), min(apart), abs_tol=1e-12):  # no spread, no test
        return Paired(mean, len(apart))
    stats = needed("scipy.stats", "data")
    ranked = float(stats.wilcoxon(apart).pvalue) if len(apart) >= FEWEST_RANKED else None
    return Paired(mean, len(apart), float(stats.ttest_rel(ours, theirs).pvalue), ranked)


def holm(values: Sequence[float]) -> list[float]:
    """Correct p of several comparisons by Holm (1979): any false finding is then as rare as in one comparison."""
    order = sorted(range(len(values)), key=values.__getitem__)
    corrected, largest = [0.0] * len(values), 0.0
    for place, number in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - place) * values[number]))
        corrected[number] = largest
    return corrected


def correct(values: Sequence[float | None]) -> list[float | None]:
    """Return corrected p; None stays where there was no test."""
    found = iter(holm([value for value in values if value is not None]))
    return [None if value is None else next(found) for value in values]


def sentences(values: Mapping[str, Mapping[int, float]], metric: str = "accuracy") -> list[str]:
    """Return a line for every method that compares the best one with it, by its values of a metric for each seed."""
    means = {name: statistics.fmean(own.values()) for name, own in values.items() if own}
    if len(means) < 2:
        return []
    first, *others = sorted(means, key=lambda name: -FIELDS[metric].sign * means[name])
    pairs = {}
    for other in others:
        seeds = [seed for seed in values[first] if seed in values[other]]
        if seeds:
            pairs[other] = paired([values[first][seed] for seed in seeds], [values[other][seed] for seed in seeds])
    t, wilcoxon = correct([pair.t for pair in pairs.values()]), correct([pair.wilcoxon for pair in pairs.values()])
    corrected = [replace(pair, t=p, wilcoxon=q) for pair, p, q in zip(pairs.values(), t, wilcoxon, strict=True)]
    lines = [compare_in_words(first, other, pair, metric) for other, pair in zip(pairs, corrected, strict=True)]
    tested = sum(p is not None for p in t)
    return lines + [f"p: corrected by Holm for {tested} comparisons"] * (tested > 1)


def compare_in_words(first: str, other: str, pair: Paired, metric: str = "accuracy") -> str:
    """Compare two methods, with corrected p; one is called better only if that is significant over the seeds."""
    lead, seeds = FIELDS[metric].sign * pair.difference, f"{pair.seeds} seeds"
    points = f"{100 * lead:.2f} points" if FIELDS[metric].percent else f"{lead:.4g}"
    of = "" if FIELDS[metric].percent else f" in {TITLES[metric]}"
    apart = f"{first} is {points} {'below' if FIELDS[metric].lower else 'above'} {other}{of}"
    if pair.seeds < FEWEST:
        return f"{apart}: too few seeds to say ({pair.seeds}, at least {FEWEST} are needed)"
    if pair.t is None:
        return f"{apart}, the same in all {seeds}: there is no spread to test"
    tests = f"paired t over {seeds}, p {round_p_value(pair.t)}"
    if pair.wilcoxon is not None:
        tests += f"; Wilcoxon p {round_p_value(pair.wilcoxon)}"
    if pair.t < LEVEL:
        return f"{first} is better than {other} by {points}{of} ({tests})"
    return f"{apart}, which is not significant over the seeds ({tests})"


def round_p_value(p: float) -> str:
    """Round to two significant digits; very small values become a bound."""
    return f"= {p:.2g}" if p >= 0.001 else "< 0.001"
