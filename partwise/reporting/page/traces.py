"""Views for a browser: the traces that plotly draws, one function for each kind of view.

Colours are those of the light or dark page, so the page itself gives them: a trace says by its `role` what it is, by
its `look` which colour, dash and mark it has, and by its `series` whose it is. Names may hold anything: plotly reads
some tags in its texts, so whatever is a name passes `plain`.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from partwise.reporting.amounts import amount, with_unit
from partwise.reporting.page.numbers import numbers
from partwise.reporting.style import Look, muted
from partwise.reporting.views import kinds
from partwise.reporting.views.charts import Chart

MOST_BUBBLES = 3000  # more of them are a map of colours
MOST_PARTITIONS = 12  # that can be chosen from
LONGEST_NAME = 16  # letters of a name beside an axis
ROOMY = 30  # clients whose groups are written into their cells
TALL = {"rounds": 440}  # pixels, of charts that have more room than others of their kind

PlotlyJson = dict[str, Any]  # plotly's traces, axes and layouts


def chart_json(chart: Chart) -> PlotlyJson:
    """Return a chart as the page's script takes it."""
    shown = chart.pictures[:MOST_PARTITIONS] if chart.key == "partition" else chart.pictures
    views = [{"name": each.name, "table": numbers(each.view), **view_json(each.view)} for each in shown]
    return {"key": chart.key, "views": views, "height": height(chart)}


def view_json(view: kinds.View) -> PlotlyJson:
    """Return the traces and the layout of a view; `frontier` is -1 where lower is better, 0 where there is none."""
    traces, layout = TRACERS[type(view)](view)
    sign = (-1 if view.lower else 1) if isinstance(view, kinds.Points) else 0
    return {"traces": traces, "layout": layout, "frontier": sign}


def height(chart: Chart) -> int:
    """Return the height of a chart in pixels: that of its highest view."""
    return TALL.get(chart.key, max((height_of(each.view) for each in chart.pictures), default=380))


def height_of(view: kinds.View) -> int:
    """Return the height of a view in pixels."""
    match view:
        case kinds.Boxes():
            return max(380, 90 + 36 * len(view.boxes))
        case kinds.SampleCounts():
            return max(300, 90 + 28 * min(20, len(view.classes)))
        case kinds.GroupChanges():
            return min(600, 130 + 44 * len(view.changes))
        case kinds.Stacks():
            return 120 + 38 * len(view.stacks)
        case kinds.Similarity():
            return 460
        case kinds.Clouds():
            return 520
        case _:
            return 380


# ---- what traces are made of


def plain(name: object) -> str:
    """Return a name as plotly shows it letter by letter."""
    return str(name).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def short_name(name: str) -> str:
    """Return a name that is not too long: charts are narrow on a phone."""
    return plain(name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME // 2]}…{name[1 - LONGEST_NAME // 2 :]}")


def rounded_or_none(value: float | None, digits: int = 2) -> float | None:
    """Return a number for JSON; None where there is none."""
    return None if value is None or not math.isfinite(value) else round(value, digits)


def heights(values: Iterable[float | None], percent: bool) -> list[float | None]:
    """Return shares in percent, and other numbers as they are, to six significant digits."""
    if percent:
        return [rounded_or_none(None if value is None else 100 * value) for value in values]
    return [None if value is None or not math.isfinite(value) else float(f"{value:.6g}") for value in values]


def hover(percent: bool) -> str:
    """Return how plotly writes a number beside the pointer."""
    return "%{y:.2f} %" if percent else "%{y:.5~g}"


def look_keys(look: Look) -> PlotlyJson:
    """Return the keys that say how a trace looks and whose it is."""
    return {"look": look[:3], **({} if look.series is None else {"series": look.series})}


def axis(title: str, **more: Any) -> PlotlyJson:
    """Return an axis with a title."""
    return {"title": {"text": title}, **more}


def by_name(names: Sequence[str]) -> PlotlyJson:
    """Return an axis with a row for every name, the first on top."""
    ticks = {"tickvals": list(map(plain, names)), "ticktext": list(map(short_name, names))}
    return {"type": "category", "autorange": "reversed", **ticks}


def axis_names(names: Sequence[str]) -> PlotlyJson:
    """Return names for the places 0, 1, ... of an axis, where they say more than the numbers."""
    if list(names) == [str(place) for place in range(len(names))]:
        return {"dtick": 1} if len(names) <= ROOMY else {}
    step = max(1, math.ceil(len(names) / ROOMY))
    return {"tickvals": list(range(0, len(names), step)), "ticktext": [short_name(name) for name in names[::step]]}


# ---- lines


def line_traces(view: kinds.Curves) -> tuple[list[PlotlyJson], PlotlyJson]:
    """Return bands first, so that none covers a line, then lines, then the marks of stages."""
    traces = [band_trace(each, view.percent) for each in view.lines if len(each.deviations)]
    for each in view.lines:
        y = heights(each.y, view.percent)
        trace = {"role": "line", **look_keys(each.look), "name": plain(each.name), "x": list(each.x), "y": y}
        text = hover(view.percent) + "<br>%{text}" * bool(each.texts)
        traces.append(trace | {"hovertemplate": text} | ({"text": list(map(plain, each.texts))} if each.texts else {}))
    traces += [stage_trace(each, view.percent) for each in view.lines if each.starts]
    few = max((each.x[-1] for each in view.lines if each.x), default=0) <= ROOMY // 3
    layout: PlotlyJson = {"xaxis": axis(view.across, **({"dtick": 1} if few else {}))}
    layout |= {"yaxis": axis(with_unit(view.quantity, view.percent))}
    return traces, layout | ({"hovermode": "closest"} if any(each.texts for each in view.lines) else {})


def band_trace(line: kinds.Line, percent: bool) -> PlotlyJson:
    """Return the outline of a line's band, there and back."""
    known = [own for own in zip(line.x, line.y, line.deviations, strict=True) if math.isfinite(own[1])]
    edges = [(x, y + apart) for x, y, apart in known] + [(x, y - apart) for x, y, apart in reversed(known)]
    y = heights([value for _, value in edges], percent)
    return {"role": "band", **look_keys(line.look), "x": [x for x, _ in edges], "y": y, "hoverinfo": "skip"}


def stage_trace(line: kinds.Line, percent: bool) -> PlotlyJson:
    """Return the marks of the points at which a stage begins."""
    at = dict(zip(line.x, line.y, strict=True))
    return {
        "role": "stage",
        **look_keys(line.look),
        "x": list(line.starts),
        "y": heights([at[x] for x in line.starts], percent),
        "text": [f"{plain(line.name)}: stage {stage} begins" for stage, _ in enumerate(line.starts, start=2)],
        "hovertemplate": "%{text}<extra></extra>",
    }


# ---- a row for every method


def box_traces(view: kinds.Boxes) -> tuple[list[PlotlyJson], PlotlyJson]:
    """Return a box for every method."""
    traces = [
        {"role": "box", **look_keys(each.look), "name": (name := plain(each.name))}
        | {"x": heights(each.values, view.percent)}
        | {"y": [name] * len(each.values)}
        for each in view.boxes
    ]
    names = by_name([each.name for each in view.boxes])
    return traces, {"xaxis": axis(with_unit(view.quantity, view.percent)), "yaxis": names}


def stack_traces(view: kinds.Stacks) -> tuple[list[PlotlyJson], PlotlyJson]:
    """Return a bar for every part of every method, down and up."""
    traces = [
        {
            "role": "bar",
            **look_keys(look._replace(series=each.look.series)),
            "way": way,
            "x": [own[part]],
            "y": [plain(each.name)],
            "hovertemplate": f"{plain(part)} {way}: {amount(own[part])}<extra></extra>",
        }
        for each in view.stacks
        for part, look in view.parts.items()
        for way, own in (("down", each.down), ("up", each.up))
        if own.get(part)
    ]
    return traces, {
        "xaxis": axis(view.quantity, tickformat="~s", ticksuffix="B"),
        "yaxis": by_name([each.name for each in view.stacks]),
        "barmode": "stack",
        "hovermode": "closest",
        "parts": [[part, look.colour] for part, look in view.parts.items()],
    }


def group_traces(view: kinds.GroupChanges) -> tuple[list[PlotlyJson], PlotlyJson]:
    """Return a map of colours, round x client."""
    rounds = [f"round {at}" for at in view.changes]
    names = [plain(view.clients[client]) for client in view.order]
    cells = [[own[client] for client in view.order] for own in view.changes.values()]
    trace = {
        "role": "groups",
        "z": cells,
        "colours": [muted(group).colour for group in range(max(map(max, cells)) + 1)],
        "written": len(names) <= ROOMY,
        "text": [names for _ in rounds],
        "y": rounds,
        "hovertemplate": "client %{text}: group %{z}<br>from %{y} on<extra></extra>",
    }
    roomy = len(names) <= ROOMY
    ticks: PlotlyJson = {"tickvals": list(range(len(names))), "ticktext": names} if roomy else {"showticklabels": False}
    yaxis = {"type": "category", "autorange": "reversed"}
    return [trace], {"xaxis": axis("client", **ticks), "yaxis": yaxis, "hovermode": "closest"}


# ---- the others


def point_traces(view: kinds.Points) -> tuple[list[PlotlyJson], PlotlyJson]:
    """Return a point for every method."""
    scale = view.scale
    traces = [
        {
            "role": "point",
            **look_keys(point.look),
            "name": plain(point.name),
            "x": [place],
            "y": heights([point.value], view.percent),
            "error_y": {"type": "data", "array": heights([point.deviation or 0], view.percent)},
            "text": [amount(point.cost, view.unit)],
            "hovertemplate": f"{hover(view.percent)}<br>%{{text}}",
        }
        for point, place in zip(view.points, scale.places, strict=True)
    ]
    ticks: PlotlyJson = {"tickformat": "~s", "ticksuffix": view.tick_unit, "rangemode": "tozero"}
    if scale.ticks:
        ticks = {"tickvals": list(scale.ticks), "ticktext": list(scale.ticks.values()), "tickangle": 0}
        ticks |= {"range": list(scale.ends)}
    up = axis(with_unit(view.quantity, view.percent))
    return traces, {"xaxis": axis(view.across, **ticks), "yaxis": up, "hovermode": "closest"}


def count_traces(view: kinds.SampleCounts) -> tuple[list[PlotlyJson], PlotlyJson]:
    """Return bubbles, or a map where there are too many of them."""
    cells = [(client, label, n) for client, own in enumerate(view.counts) for label, n in enumerate(own) if n]
    if len(cells) <= MOST_BUBBLES:
        trace = {
            "role": "bubbles",
            "x": [client for client, _, _ in cells],
            "y": [label for _, label, _ in cells],
            "sizes": [n for _, _, n in cells],
            "shape": [len(view.clients), len(view.classes)],
            "text": [
                f"client {plain(view.clients[c])}, {view.what} {plain(view.classes[k])}: {n:,}" for c, k, n in cells
            ],
            "hovertemplate": "%{text}<extra></extra>",
        }
    else:
        trace = {"role": "map", "z": [list(column) for column in zip(*view.counts, strict=True)]}
        trace |= {"hovertemplate": f"client %{{x}}, {view.what} %{{y}}: %{{z}}<extra></extra>"}
    return [trace], {
        "xaxis": axis("client", **axis_names(view.clients), range=[-0.7, len(view.clients) - 0.3]),
        "yaxis": axis(view.what, **axis_names(view.classes), range=[len(view.classes) - 0.3, -0.7]),
        "hovermode": "closest",
    }


def matrix_traces(view: kinds.Similarity) -> tuple[list[PlotlyJson], PlotlyJson]:
    """Return a map; darker cells are more similar."""
    trace = {
        "role": "map",
        "z": [[rounded_or_none(value, digits=3) for value in row] for row in view.values],
        "range": [0, 1],
        "hovertemplate": "clients %{x} and %{y}: %{z:.3f}<extra></extra>",
    }
    names = list(map(plain, view.names))
    ticks: PlotlyJson = {"tickvals": list(range(len(names))), "ticktext": names} if len(names) <= ROOMY else {}
    across, down = axis("client", **ticks), axis("client", **ticks, autorange="reversed")
    return [trace], {"xaxis": across, "yaxis": down, "hovermode": "closest"}


def cloud_traces(view: kinds.Clouds) -> tuple[list[PlotlyJson], PlotlyJson]:
    """Return the samples of each class; of several planes one over the other."""
    traces = [
        {
            "role": "class",
            **look_keys(look),
            "name": (name := plain(view.name_of(label))),
            "x": [rounded_or_none(x, digits=3) for x, _, own in rows.tolist() if own == label],
            "y": [rounded_or_none(y, digits=3) for _, y, own in rows.tolist() if own == label],
            "hovertemplate": f"class {name}<extra></extra>",
        }
        for rows in view.panels.values()
        for label, look in view.labels.items()
    ]
    bare = {"showticklabels": False, "zeroline": False}
    return traces, {"xaxis": bare, "yaxis": {**bare, "scaleanchor": "x"}, "showlegend": True, "hovermode": "closest"}


# Shares are a table of the page, and groups of bars occur in papers alone.
TRACERS: dict[type[kinds.View], Callable[[Any], tuple[list[PlotlyJson], PlotlyJson]]] = {
    kinds.Curves: line_traces,
    kinds.Boxes: box_traces,
    kinds.Stacks: stack_traces,
    kinds.GroupChanges: group_traces,
    kinds.Points: point_traces,
    kinds.SampleCounts: count_traces,
    kinds.Similarity: matrix_traces,
    kinds.Clouds: cloud_traces,
}
