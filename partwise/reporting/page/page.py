"""One page for a browser: everything that some runs left behind, in one file that asks the network for nothing."""

import json
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from typing import Any

from partwise import method
from partwise.errors import PartwiseError, needed
from partwise.options import spelled
from partwise.records.metrics import TITLES
from partwise.records.names import model_at, proper
from partwise.reporting.methods import words
from partwise.reporting.page import views
from partwise.reporting.page.board import board, percent_of, shown_columns
from partwise.reporting.page.charts import all_charts, amount, as_json
from partwise.reporting.page.records import Run
from partwise.reporting.page.series import Series, Standing, series_of, standings
from partwise.reporting.page.swatches import swatch
from partwise.reporting.tables import some
from partwise.runs.metrics import CHANGED_AT_END
from partwise.studies.leaderboard import differing
from partwise.studies.significance import sentences
from partwise.version import __version__

REFRESH = 10  # seconds after which a live page is loaded again
MOST_EVENTS = 200
ENVIRONMENT = ("partwise", "python", "torch", "numpy", "platform", "device", "threads", "started")


def render(runs: Sequence[Run], live: bool = False) -> str:
    """The page of some runs; `live`: it loads itself again."""
    jinja2 = needed("jinja2", "report")
    library = needed("plotly.offline", "report").get_plotlyjs()
    Markup = needed("markupsafe", "report").Markup
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    series = series_of(runs)
    rows = standings(series)
    charts = all_charts(series, rows)
    shown = {chart.key: as_json(chart) for own in charts.values() for chart in own}
    return environment.from_string(read("page.html")).render(
        live=REFRESH if live else 0,
        series=series,
        columns=shown_columns(rows),
        board=board(rows),
        charts=charts,
        sharing=(sharing := views.sharing(series)),
        shares=list(dict.fromkeys(share for _, _, own in sharing.rows for share in own if share)),
        leaving=views.leaving(series),
        **headline(series, rows),
        **events(series),
        **setting(runs, series),
        swatch=lambda number: Markup(swatch(number)),
        kind=kind,
        words=in_words,
        amount=amount,
        version=__version__,
        css=Markup(read("page.css")),
        script=Markup(read("page.js")),
        plotly=Markup(harmless(library)),
        data=Markup(embedded(shown)),
    )


def read(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def embedded(value: Any) -> str:
    """JSON in a page: no name in it can end the element that holds it, or begin one."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text.encode("utf-8", "replace").decode()


def harmless(library: str) -> str:
    """A script in a page: nothing in its texts ends the element."""
    return library.replace("</script", "<\\/script")


# ---- what the template is handed


def headline(series: Sequence[Series], rows: Sequence[Standing]) -> dict[str, Any]:
    runs = [run for each in series for run in each.runs]
    first = runs[0]
    data = list(dict.fromkeys(map(data_of, runs)))
    rules = list(dict.fromkeys(rule for run in runs if (rule := rule_of(run))))
    numbers = sorted({clients for run in runs if (clients := clients_of(run))})
    unfinished = [f"{each.name}: {each.state}" for each in series if each.state]
    silent = [f"{row.series.name}: {row.nonfinite:g} answers were not finite" for row in rows if row.nonfinite]
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
    return {
        "title": f"{what} on {', '.join(data)}",
        "rows_are": rows_are,
        "best": [(row, best_words(row, rows), f"{percent_of(row.last, row.std)} %") for row in leaders(rows)],
        "swept": any(each.tried for each in series),
        "seeds_say": seeds_say(rows),
        "tiles": [(name, value) for name, value in tiles if value],
        "warnings": [*unfinished, *silent, *fairness(series, rows_are)],
        "held_out": held_out(runs),
        "differences": differing({each.name: named(each) for each in series}),
        "ranked": f"{TITLES[first.metric]} in %, {model_at(first.moment)}"
        + ("; ±: standard deviation over seeds" if any(row.std is not None for row in rows) else ""),
    }


def leaders(rows: Sequence[Standing]) -> list[Standing]:
    """Return the best row, of a sweep that of each problem; none where no row can be compared yet."""
    found: dict[tuple[str, str], Standing] = {}
    for row in rows:
        if row.last is not None and not row.series.set_aside:
            found.setdefault(problem_of(row), row)
    return list(found.values())


def problem_of(row: Standing) -> tuple[str, str]:
    """Return what a row competes in: its sweep, and of that the problem."""
    return (row.series.tried.sweep, row.series.tried.problem) if row.series.tried else ("", "")


def best_words(best: Standing, rows: Sequence[Standing]) -> str:
    """Return what is said of the best row, before its value."""
    run, tried = best.series.runs[0], best.series.tried
    rivals = [row for row in rows if problem_of(row) == problem_of(best) and not row.series.set_aside]
    chosen = f"chosen on validation data{f' for {tried.problem}' if tried.problem else ''}" if tried else ""
    if len(rivals) == 1:
        return f"was {chosen} and reaches" if chosen else "reaches"
    compared = f"{TITLES[run.metric]}, {model_at(run.moment)}"
    return f"has the highest {compared}{f', of the settings {chosen}' if chosen else ''}:"


def seeds_say(rows: Sequence[Standing]) -> list[str]:
    """Return how the best chosen setting of a sweep stands to the others, problem by problem, as below its table."""
    values: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for row in rows:
        if row.series.tried and row.series.tried.chosen:
            found = {run.seed: value for run in row.series.counted if (value := run.standing.value) is not None}
            values.setdefault(problem_of(row), {})[proper(row.series.runs[0].method)] = found
    try:
        return [
            f"{problem}: {line}" if problem else line for (_, problem), own in values.items() for line in sentences(own)
        ]
    except PartwiseError as error:
        return [f"no p-values: {error}"]


def fairness(series: Sequence[Series], rows_are: str) -> list[str]:
    """Return what a reader should know before comparing rows."""
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


def held_out(runs: Sequence[Run]) -> list[str]:
    """A line for every seed that held clients out: who they were; runs of a seed on the same data hold out the same."""
    found = dict.fromkeys((run.seed, some(run.setup["held_out"])) for run in runs if run.setup.get("held_out"))
    return [f"Held out with seed {seed}, joined at the end: {names}" for seed, names in sorted(found)]


def named(series: Series) -> dict[str, Any]:
    return {key: value for key, value in series.runs[0].common.items() if key != "name"}


def data_of(run: Run) -> str:
    return str(run.setup.get("data") or run.settings.get("data", {}).get("data", "unknown data"))


def rule_of(run: Run) -> str:
    return str(run.setup.get("partition") or run.settings.get("data", {}).get("partition", ""))


def clients_of(run: Run) -> int:
    return len(run.setup.get("clients", ())) or run.settings.get("data", {}).get("clients", 0)


def span(numbers: Sequence[int]) -> str:
    """`20`, or `10 to 20`."""
    return "" if not numbers else str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def events(series: Sequence[Series]) -> dict[str, Any]:
    found = [(each, run.seed, event) for each in series for run in each.runs for event in run.events]
    kinds = Counter(event["what"] for _, _, event in found)
    return {
        "events": found[:MOST_EVENTS],
        "events_words": ", ".join(f"{number:,} {what}" for what, number in kinds.most_common()),
        "events_more": len(found) > MOST_EVENTS,
    }


def setting(runs: Sequence[Run], series: Sequence[Series]) -> dict[str, Any]:
    """Environment, commands, and the settings that all runs have in common."""
    facts = []
    for name in ENVIRONMENT:
        values = sorted({str(run.environment[name]) for run in runs if name in run.environment})
        if values:
            facts.append((name, values[0] if name == "started" else ", ".join(values)))
    commands = dict.fromkeys(run.environment["command"] for run in runs if run.environment.get("command"))
    again = f"partwise run --config {runs[0].folder.name}/config.toml --out again"
    common = [own for own in named(series[0]).items() if all(own in named(each).items() for each in series)]
    notes = [note for run in runs for note in run.environment.get("notes", ())]
    notes += [f"{run.method} {CHANGED_AT_END}" for run in runs if run.standing.changed_at_end]
    return {
        "environment": facts,
        "commands": list(commands) or [again],
        "settings": [(name, spelled(value)) for name, value in sorted(common)],
        "notes": list(dict.fromkeys(notes)),
        "folders": [str(run.folder) for run in runs],
    }


def kind(share: str) -> str:
    """The look of a share."""
    known = getattr(method, share, None)
    if not isinstance(known, method.Share):
        return "several"
    if known.copy is None:
        return "frozen" if known.adopt else "own"
    return known.copy if known.adopt or known.copy == "mix" else "guide"


def in_words(share: str) -> str:
    known = getattr(method, share, None)
    return words(known) if isinstance(known, method.Share) else "its tensors differ: running values stay at the client"
