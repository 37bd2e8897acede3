"""Charts for a browser: the traces that plotly draws, and a table of the same numbers.

Colours, dashes and marks are those of a series and of the light or dark page, so the page itself gives them: a trace
says by its `series` whose it is and by its `role` what it is. Names may hold anything: plotly reads some tags in its
texts, so whatever is a name passes `plain`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from partwise.records.metrics import TITLES
from partwise.records.names import model_at
from partwise.reporting.page.series import Series, Standing
from partwise.reporting.page.views import (
    Cost,
    Curve,
    Groups,
    Partition,
    Representation,
    accuracy_curves,
    client_accuracies,
    costs,
    groups,
    ledgers,
    moments_over_rounds,
    partitions,
    representations,
)

MOST_BUBBLES = 3000  # more of them are a map of colours
MOST_VIEWS = 12  # partitions that can be chosen from
FAR = 20  # from this ratio on costs are compared by their logarithms
LONGEST = 16  # letters of a name beside an axis
MOST_TICKS = 5  # powers of ten that are named
ROOMY = 30  # clients whose groups are written into their cells
UNITS = ("", "k", "M", "G", "T", "P", "E")

Trace = dict[str, Any]


@dataclass(frozen=True)
class View:
    """One of the pictures that a chart can show."""

    name: str
    traces: list[Trace]
    layout: dict[str, Any]
    table: list[list[str]]  # the first row is the header


@dataclass(frozen=True)
class Chart:
    key: str
    title: str
    about: str  # how to read it
    views: list[View]
    height: int = 380
    frontier: bool = False  # a line through the points that no other beats

    @property
    def spoken(self) -> str:
        """What a screen reader says of it."""
        return f"{self.title}. {self.about} The numbers are in the table below the chart."


def plain(name: object) -> str:
    """A name as plotly shows it letter by letter."""
    return str(name).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def number(value: float | None, factor: float = 1.0, digits: int = 2) -> float | None:
    """A number for JSON; None where there is none."""
    return None if value is None or not math.isfinite(value) else round(factor * value, digits)


def percents(values: Iterable[float | None]) -> list[float | None]:
    return [number(value, 100) for value in values]


def text(value: float | None, factor: float = 1.0, digits: int = 2) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{factor * value:.{digits}f}"


def amount(value: float, unit: str = "B") -> str:
    """`1.5 MB`, `32 GFLOP`."""
    value = float(f"{value:.3g}")  # first: 999.6 kB are 1 MB
    size = min(len(UNITS) - 1, max(0, int(math.log10(value) // 3))) if value >= 1 else 0
    return f"{value / 1000**size:.3g} {UNITS[size]}{unit}".strip()


def axis(title: str, **more: Any) -> dict[str, Any]:
    return {"title": {"text": title}, **more}


def all_charts(series: Sequence[Series], rows: Sequence[Standing]) -> dict[str, list[Chart]]:
    """The charts of each section, in the order of the page; those without anything to show are left out."""
    spaces = representations(series)
    found: dict[str, list[Chart | None]] = {
        "rounds": [over_rounds(series)],
        "clients": [*clients(series)],
        "costs": [against(rows, "bytes", "B", "bytes sent in the whole run"), against(rows, "flops", "FLOP", "FLOPs")],
        "partition": [division(partitions(series)[:MOST_VIEWS])],
        "groups": [grouping(groups(series))],
        "representations": [*alike(spaces), similarity(spaces), planes(spaces)],
        "ledger": [sent(series)],
    }
    return {key: [chart for chart in charts if chart and chart.views] for key, charts in found.items()}


# ---- over rounds


def over_rounds(series: Sequence[Series]) -> Chart:
    metric = next((TITLES[run.metric] for each in series for run in each.runs), "accuracy")
    views = []
    for moment in moments_over_rounds(series):
        curves = accuracy_curves(series, moment)
        if curves:
            layout = {"xaxis": rounds_of(curves), "yaxis": axis(f"{metric} (%)")}
            views.append(View(model_at(moment), lines(curves, 100), layout, curve_table(curves, "round", 100)))
    about = "The mean over seeds; a band of one standard deviation; a diamond where a stage begins."
    return Chart("rounds", f"{metric[:1].upper()}{metric[1:]} over rounds", about, views, height=440)


def rounds_of(curves: Sequence[Curve]) -> dict[str, Any]:
    """The axis of rounds; of few of them each is named."""
    few = max((each.rounds[-1] for each in curves), default=0) <= ROOMY // 3
    return axis("round", **({"dtick": 1} if few else {}))


def lines(curves: Sequence[Curve], factor: float = 1.0) -> list[Trace]:
    """Bands first, so that no line lies below one."""
    digits = 2 if factor == 100 else 4
    bands = [band(each, factor, digits) for each in curves if each.high != each.low]
    own = [
        {
            "role": "line",
            "series": each.series.number,
            "name": plain(each.name),
            "x": each.rounds,
            "y": [number(value, factor, digits) for value in each.mean],
            "hovertemplate": f"%{{y:.{digits}f}}",
        }
        for each in curves
    ]
    return [*bands, *own, *(stages(each, factor, digits) for each in curves if each.stages)]


def band(curve: Curve, factor: float, digits: int) -> Trace:
    known = [place for place, value in enumerate(curve.mean) if math.isfinite(value)]
    edges = [(curve.rounds[place], curve.high[place]) for place in known]
    edges += [(curve.rounds[place], curve.low[place]) for place in reversed(known)]
    return {
        "role": "band",
        "series": curve.series.number,
        "x": [x for x, _ in edges],
        "y": [number(y, factor, digits) for _, y in edges],
        "hoverinfo": "skip",
    }


def stages(curve: Curve, factor: float, digits: int) -> Trace:
    at = dict(zip(curve.rounds, curve.mean, strict=True))
    known = {begun: next((number for number in curve.rounds if number >= begun), None) for begun in curve.stages}
    places = [place for place in known.values() if place is not None]
    return {
        "role": "stage",
        "series": curve.series.number,
        "x": places,
        "y": [number(at[place], factor, digits) for place in places],
        "text": [f"{plain(curve.name)}: stage {stage} begins" for stage, _ in enumerate(places, start=2)],
        "hovertemplate": "%{text}<extra></extra>",
    }


def curve_table(curves: Sequence[Curve], across: str, factor: float = 1.0) -> list[list[str]]:
    digits = 2 if factor == 100 else 4
    rounds = sorted({number for each in curves for number in each.rounds})
    columns = [dict(zip(each.rounds, zip(each.mean, each.high, strict=True), strict=True)) for each in curves]
    rows = []
    for at in rounds:
        cells = []
        for column in columns:
            mean, high = column.get(at, (None, None))
            deviation = f" ± {text(high - mean, factor, digits)}" if mean is not None and high and high > mean else ""
            cells.append(text(mean, factor, digits) + deviation)
        rows.append([str(at), *cells])
    return [[across, *(each.name for each in curves)], *rows]


# ---- clients


def clients(series: Sequence[Series]) -> list[Chart]:
    found = client_accuracies(series)
    if not found:
        return []
    ordered, boxes = [], []
    for each in found:
        common = {"series": each.series.number, "name": plain(each.series.name)}
        names = [plain(name) for name in each.names] or ["the mean over seeds of this rank"] * len(each.ranked)
        ordered.append(
            {
                "role": "line",
                **common,
                "x": list(range(1, len(each.ranked) + 1)),
                "y": percents(each.ranked),
                "text": [f"client {name}" if each.names else name for name in names],
                "hovertemplate": "%{y:.2f} %<br>%{text}",
            }
        )
        boxes.append({"role": "box", **common, "x": percents(each.every), "y": [common["name"]] * len(each.every)})
    most = max(len(each.ranked) for each in found)
    ranks = [
        [str(rank + 1), *(text(each.ranked[rank], 100) if rank < len(each.ranked) else "-" for each in found)]
        for rank in range(most)
    ]
    names = [each.series.name for each in found]
    parts = ["least", "lower quartile", "median", "upper quartile", "greatest"]
    quartiles = [[each.series.name, *(text(value, 100) for value in each.quartiles)] for each in found]
    layout = {"xaxis": axis("clients in ascending order"), "yaxis": axis("accuracy (%)"), "hovermode": "closest"}
    spread = {"xaxis": axis("accuracy (%)"), "yaxis": by_name(names)}
    return [
        Chart(
            "sorted",
            "Clients in ascending order",
            "How low the worst clients are, and how many are well off.",
            [View("", ordered, layout, [["rank", *names], *ranks])],
        ),
        Chart(
            "distribution",
            "Distribution over clients",
            "The box holds the middle half of the clients of all seeds, the line in it is their median.",
            [View("", boxes, spread, [["method", *parts], *quartiles])],
            height=max(380, 90 + 36 * len(found)),
        ),
    ]


# ---- costs


def against(rows: Sequence[Standing], of: str, unit: str, title: str) -> Chart | None:
    """Accuracy against what it costs."""
    points = costs(rows, of)
    if len(points) < 2 or not any(point.cost for point in points):  # one alone is compared with nothing
        return None
    places, ticks = scale(points, unit)
    traces = [
        {
            "role": "point",
            "series": point.series.number,
            "name": plain(point.series.name),
            "x": [place],
            "y": [number(point.value, 100)],
            "error_y": {"type": "data", "array": [number(point.std, 100) or 0]},
            "text": [amount(point.cost, unit)],
            "hovertemplate": "%{y:.2f} %<br>%{text}",
        }
        for point, place in zip(points, places, strict=True)
    ]
    table = [["method", title, "accuracy (%)"]]
    table += [[point.series.name, amount(point.cost, unit), text(point.value, 100)] for point in points]
    layout = {"xaxis": axis(title, **ticks), "yaxis": axis("accuracy (%)"), "hovermode": "closest"}
    about = "Up and to the left is better; below the dashed line another method does better for no more."
    return Chart(
        of,
        f"Accuracy against {of if of == 'bytes' else 'FLOPs'}",
        about,
        [View("", traces, layout, table)],
        frontier=True,
    )


def scale(points: Sequence[Cost], unit: str) -> tuple[list[float], dict[str, Any]]:
    """Where costs lie on their axis, and its ticks: logarithms where they are far apart, with a place for 0."""
    known = [point.cost for point in points if point.cost > 0]
    if max(known) / min(known) < FAR:
        return [point.cost for point in points], {
            "tickformat": "~s",
            "ticksuffix": unit if unit == "B" else "",
            "rangemode": "tozero",
        }
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    nothing = low - 1
    places = [math.log10(point.cost) if point.cost > 0 else nothing for point in points]
    decades = [
        *([nothing] if nothing in places else []),
        *range(low, high + 1, math.ceil((high - low + 1) / MOST_TICKS)),
    ]
    names = ["0" if decade == nothing else amount(10.0**decade, unit if unit == "B" else "") for decade in decades]
    return places, {"tickvals": decades, "ticktext": names, "tickangle": 0, "range": [decades[0] - 0.3, high + 0.2]}


# ---- data, groups and bytes


def division(found: Sequence[Partition]) -> Chart:
    views = []
    for each in found:
        cells = [(client, label, count) for client, own in enumerate(each.counts) for label, count in enumerate(own)]
        some = [cell for cell in cells if cell[2]]
        hover = [f"client {plain(each.clients[c])}, class {plain(each.classes[k])}: {n:,}" for c, k, n in some]
        trace: Trace = {"hovertemplate": "%{text}<extra></extra>"}
        if len(some) <= MOST_BUBBLES:
            trace |= {"role": "bubbles", "x": [c for c, _, _ in some], "y": [k for _, k, _ in some], "text": hover}
            trace |= {"sizes": [n for _, _, n in some], "shape": [len(each.clients), len(each.classes)]}
        else:
            trace |= {"role": "map", "z": [list(column) for column in zip(*each.counts, strict=True)]}
            trace["hovertemplate"] = "client %{x}, class %{y}: %{z}<extra></extra>"
        layout = {
            "xaxis": axis("client", **named(each.clients), range=[-0.7, len(each.clients) - 0.3]),
            "yaxis": axis("class", **named(each.classes), range=[len(each.classes) - 0.3, -0.7]),
            "hovermode": "closest",
        }
        table = [["client", *each.classes]]
        table += [[name, *map(str, own)] for name, own in zip(each.clients, each.counts, strict=True)]
        views.append(View(each.title, [trace], layout, table))
    height = max((90 + 28 * min(20, len(each.classes)) for each in found), default=380)
    about = "The area of a bubble is the number of training samples."
    return Chart("partition", "Who has what", about, views, height=max(300, height))


def named(names: Sequence[str]) -> dict[str, Any]:
    """Names for the places 0, 1, ... of an axis, where they say more than the numbers."""
    if list(names) == [str(place) for place in range(len(names))]:
        return {"dtick": 1} if len(names) <= ROOMY else {}
    step = max(1, math.ceil(len(names) / ROOMY))
    return {
        "tickvals": list(range(0, len(names), step)),
        "ticktext": [short(name) for name in names[::step]],
    }


def by_name(names: Sequence[str]) -> dict[str, Any]:
    """An axis with a row for every name, the first on top; long names are cut, for charts are narrow on a phone."""
    ticks = {"tickvals": list(map(plain, names)), "ticktext": list(map(short, names))}
    return {"type": "category", "autorange": "reversed", **ticks}


def short(name: str) -> str:
    return plain(name if len(name) <= LONGEST else f"{name[: LONGEST // 2]}…{name[1 - LONGEST // 2 :]}")


def grouping(found: Sequence[Groups]) -> Chart:
    views = []
    for each in found:
        order = sorted(range(len(each.clients)), key=lambda client: (each.changes[-1][1][client], client))
        rounds = [f"round {at}" for at, _ in each.changes]
        trace = {
            "role": "groups",
            "z": [[own[client] for client in order] for _, own in each.changes],
            "written": len(order) <= ROOMY,
            "text": [[plain(each.clients[client]) for client in order] for _ in each.changes],
            "y": rounds,
            "hovertemplate": "client %{text}: group %{z}<br>from %{y} on<extra></extra>",
        }
        names = [each.clients[client] for client in order]
        layout = {
            "xaxis": axis(
                "client",
                **{"tickvals": list(range(len(names))), "ticktext": list(map(plain, names))}
                if len(names) <= ROOMY
                else {"showticklabels": False},
            ),
            "yaxis": {"type": "category", "autorange": "reversed"},
            "hovermode": "closest",
        }
        table = [["client", *rounds]]
        table += [[each.clients[client], *(str(own[client]) for _, own in each.changes)] for client in order]
        views.append(View(each.series.name, [trace], layout, table))
    most = max((len(each.changes) for each in found), default=1)
    about = "A column is a client, a row a round after which groups were others than before; a colour is a group."
    return Chart("groups", "Groups that were found", about, views, height=min(600, 130 + 44 * most))


def sent(series: Sequence[Series]) -> Chart:
    found = ledgers(series)
    parts = list(dict.fromkeys(part for each in found for part in (*each.down, *each.up)))
    traces = []
    for each in found:
        for place, part in enumerate(parts):
            for way, own in (("down", each.down), ("up", each.up)):
                if own.get(part):
                    traces.append(
                        {
                            "role": "bar",
                            "series": each.series.number,
                            "part": place,
                            "way": way,
                            "x": [own[part]],
                            "y": [plain(each.series.name)],
                            "hovertemplate": f"{plain(part)} {way}: {amount(own[part])}<extra></extra>",
                        }
                    )
    table = [["method", "part", "down", "up"]]
    for each in found:
        for part in parts:
            if part in each.down or part in each.up:
                ways = (amount(own.get(part, 0)) for own in (each.down, each.up))
                table.append([each.series.name, part, *ways])
    layout = {
        "xaxis": axis("bytes in the whole run", tickformat="~s", ticksuffix="B"),
        "yaxis": by_name([each.series.name for each in found]),
        "barmode": "stack",
        "hovermode": "closest",
        "parts": parts,
    }
    about = "Plain bars went down to the clients, hatched ones up to the server; what is sent once is apart."
    views = [View("", traces, layout, table)] if traces else []
    return Chart("ledger", "Bytes by part", about, views, height=120 + 38 * len(found))


# ---- representations


def alike(found: Sequence[Representation]) -> list[Chart]:
    charts = []
    for key, title, about in (
        ("cka", "CKA between clients", "1: the features of every two clients are alike."),
        ("separation", "Class separation", "1: samples of a class lie together, and those of others elsewhere."),
    ):
        curves = [
            Curve(each.series, list(own), list(own.values()), list(own.values()), list(own.values()), [], each.name)
            for each in found
            if (own := getattr(each, key))
        ]
        layout = {"xaxis": rounds_of(curves), "yaxis": axis(title)}
        views = [View("", lines(curves), layout, curve_table(curves, "round"))] if curves else []
        charts.append(Chart(key, title, f"{about} Of the first seed.", views))
    return charts


def similarity(found: Sequence[Representation]) -> Chart:
    views = []
    for each in found:
        names = list(map(plain, each.clients))
        trace = {
            "role": "map",
            "z": [[number(value, digits=3) for value in line] for line in each.matrix],
            "range": [0, 1],
            "hovertemplate": "clients %{x} and %{y}: %{z:.3f}<extra></extra>",
        }
        ticks = {"tickvals": list(range(len(names))), "ticktext": names} if len(names) <= ROOMY else {}
        layout = {
            "xaxis": axis("client", **ticks),
            "yaxis": axis("client", **ticks, autorange="reversed"),
            "hovermode": "closest",
        }
        table = [["client", *each.clients]]
        table += [
            [client, *(text(value, digits=3) for value in line)]
            for client, line in zip(each.clients, each.matrix, strict=True)
        ]
        views.append(View(f"{each.series.name} {each.name}", [trace], layout, table))
    return Chart("similarity", "CKA of every two clients", "The darker, the more alike, in the end.", views, height=460)


def planes(found: Sequence[Representation]) -> Chart:
    views = []
    for each in found:
        labels = sorted({label for _, _, label in each.points})
        names = {label: each.classes[label] if label < len(each.classes) else str(label) for label in labels}
        traces = [
            {
                "role": "class",
                "part": place,
                "name": plain(names[label]),
                "x": [number(x, digits=3) for x, _, own in each.points if own == label],
                "y": [number(y, digits=3) for _, y, own in each.points if own == label],
                "hovertemplate": f"class {plain(names[label])}<extra></extra>",
            }
            for place, label in enumerate(labels)
        ]
        bare = {"showticklabels": False, "zeroline": False}
        layout = {"xaxis": bare, "yaxis": {**bare, "scaleanchor": "x"}, "showlegend": True, "hovermode": "closest"}
        table = [["x", "y", "class"], *([text(x), text(y), names[label]] for x, y, label in each.points)]
        if traces:
            views.append(View(f"{each.series.name} {each.name}", traces, layout, table))
    about = "Test samples of all clients, near each other where their features are; a colour and mark is a class."
    return Chart("planes", "Samples on a plane (t-SNE)", about, views, height=520)


def as_json(chart: Chart) -> dict[str, Any]:
    return asdict(chart)
