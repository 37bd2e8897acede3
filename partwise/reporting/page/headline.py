"""The head of the page: what was compared, what came out best, and what a reader should know of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from partwise.errors import PartwiseError
from partwise.records.metrics import FIELDS, TITLES
from partwise.records.names import model_at, proper
from partwise.reporting.reading import RunFiles
from partwise.reporting.series import Series, SeriesStanding
from partwise.reporting.tables import in_unit, metric_cell, some
from partwise.studies.leaderboard import differing
from partwise.studies.significance import sentences


@dataclass(frozen=True)
class Best:
    """A row that no other beats."""

    row: SeriesStanding
    words: str  # what is said of it, before its value
    value: str


@dataclass(frozen=True)
class PageHead:
    """What stands at the top of the page and around its leaderboard."""

    title: str
    rows_are: str  # methods, or settings where a method has several
    best: Sequence[Best]
    swept: bool  # a sweep chose among the rows
    seeds_say: Sequence[str]
    tiles: Sequence[tuple[str, str]]
    warnings: Sequence[str]
    held_out: Sequence[str]
    differences: Sequence[str]  # settings in which rows differ
    ranked: str  # what the leaderboard ranks


def page_head(series: Sequence[Series], rows: Sequence[SeriesStanding]) -> PageHead:
    """Return the head of the page."""
    runs = [run for each in series for run in each.runs]
    first = runs[0]
    data = list(dict.fromkeys(run.data for run in runs))
    rules = list(dict.fromkeys(run.partition for run in runs if run.partition))
    numbers = sorted({run.population for run in runs if run.population})
    unfinished = [f"{each.name}: {each.state}" for each in series if each.state]
    silent = [
        f"{row.series.name}: {row.means.nonfinite:g} answers were not finite" for row in rows if row.means.nonfinite
    ]
    methods = len({run.method for run in runs})
    tiles = [
        ("data", ", ".join(data)),
        ("clients", span(numbers)),
        ("partition", ", ".join(rules)),
        ("rounds", span(sorted({len(run.rounds) for run in runs}))),
        ("methods", str(methods)),
        ("settings", str(len(series)) if len(series) > methods else ""),
        ("seeds", span(sorted({len(each.runs) for each in series}))),
    ]
    rows_are = "settings" if len(series) > methods else "methods"  # of a method that occurs with several, each is a row
    what = series[0].name if len(series) == 1 else f"{len(series)} {rows_are}"
    if rows_are == "settings":
        what += f" of {proper(series[0].runs[0].method) if methods == 1 else f'{methods} methods'}"
    deviations = "; ±: standard deviation over seeds" if any(row.means.last_std is not None for row in rows) else ""
    return PageHead(
        title=f"{what} on {', '.join(data)}",
        rows_are=rows_are,
        best=[Best(row, best_words(row, rows), best_value(row)) for row in leaders(rows)],
        swept=any(each.tried for each in series),
        seeds_say=seeds_say(rows),
        tiles=[(name, value) for name, value in tiles if value],
        warnings=[*unfinished, *silent, *fairness(series, rows_are)],
        held_out=held_out_lines(runs),
        differences=differing({each.name: each.settings for each in series}),
        ranked=f"{in_unit(first.metric)}, {model_at(first.moment)}{deviations}",
    )


def leaders(rows: Sequence[SeriesStanding]) -> list[SeriesStanding]:
    """Return the best row, of a sweep that of each problem; none where no row can be compared yet."""
    found: dict[tuple[str, str], SeriesStanding] = {}
    for row in rows:
        if row.means.last is not None and not row.series.set_aside:
            found.setdefault(problem_of(row), row)
    return list(found.values())


def problem_of(row: SeriesStanding) -> tuple[str, str]:
    """Return the sweep and the problem that a row competes in."""
    return (row.series.tried.sweep, row.series.tried.problem) if row.series.tried else ("", "")


def best_words(best: SeriesStanding, rows: Sequence[SeriesStanding]) -> str:
    """Return the words before the value of the best row."""
    run, tried = best.series.runs[0], best.series.tried
    rivals = [row for row in rows if problem_of(row) == problem_of(best) and not row.series.set_aside]
    chosen = f"chosen on validation data{f' for {tried.problem}' if tried.problem else ''}" if tried else ""
    if len(rivals) == 1:
        return f"was {chosen} and reaches" if chosen else "reaches"
    compared = f"{TITLES[run.metric]}, {model_at(run.moment)}"
    highest = "lowest" if FIELDS[run.metric].lower else "highest"
    return f"has the {highest} {compared}{f', of the settings {chosen}' if chosen else ''}:"


def best_value(best: SeriesStanding) -> str:
    """Return the value of the best row, with its unit."""
    metric = best.series.runs[0].metric
    return metric_cell(best.means.last, metric, best.means.last_std) + " %" * FIELDS[metric].percent


def seeds_say(rows: Sequence[SeriesStanding]) -> list[str]:
    """Return sentences that compare the best chosen setting of a sweep with the others, problem by problem."""
    values: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for row in rows:
        if row.series.tried and row.series.tried.chosen:
            found = {run.seed: value for run in row.series.counted if (value := run.standing.value) is not None}
            values.setdefault(problem_of(row), {})[proper(row.series.runs[0].method)] = found
    try:
        return [
            f"{problem}: {line}" if problem else line
            for (_, problem), own in values.items()
            for line in sentences(own, rows[0].means.metric)
        ]
    except PartwiseError as error:
        return [f"no p-values: {error}"]


def fairness(series: Sequence[Series], rows_are: str) -> list[str]:
    """Return remarks that a reader needs before comparing rows."""
    lines = []
    runs = [run for each in series for run in each.runs]
    if any(run.compared for run in runs):
        lines.append(
            f"The runs' settings name different moments or metrics; all are compared by {TITLES[runs[0].metric]}, "
            f"{model_at(runs[0].moment)}."
        )
    if rows_are == "settings" and not any(each.tried for each in series):
        lines.append(
            "A method with several settings has several rows, ranked on test data. To choose a setting on validation "
            "data: partwise sweep."
        )
    return lines


def held_out_lines(runs: Sequence[RunFiles]) -> list[str]:
    """Return a line for every seed that held clients out; runs of a seed on the same data hold out the same."""
    found = dict.fromkeys((run.seed, some(run.setup.held_out)) for run in runs if run.setup.held_out)
    return [f"Held out with seed {seed}, joined at the end: {names}" for seed, names in sorted(found)]


def span(numbers: Sequence[int]) -> str:
    """Return `20`, or `10 to 20`."""
    return "" if not numbers else str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
