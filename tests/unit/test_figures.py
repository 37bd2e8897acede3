"""The papers' pictures: what they show is what they were given, and nothing given breaks them."""

import math
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex

from partwise.errors import ConfigError, DataError
from partwise.papers.representations import write_tsne
from partwise.reporting.drawing import short_text, spread_out
from partwise.reporting.figures import draw_view, figure_of
from partwise.reporting.reading import read_points
from partwise.reporting.style import COLOURS, DASHES, look, muted
from partwise.reporting.views.kinds import Bars, Clouds, Similarity, View, ranked_line, ranked_lines
from partwise.reporting.views.kinds import curves_of as curves

NAN = math.nan
ODD = "$_{ö 東京\x00\n\ud800 <b>&" + 40 * "x"  # half a formula, letters no font has, none at all, and too many


def ranked(accuracies: dict[str, list[float | None]], title: str = "") -> View:
    """The view of clients in ascending order."""
    each = enumerate(accuracies.items())
    return ranked_lines([ranked_line(name, look(number), own) for number, (name, own) in each], title)


def texts(figure: Any) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def lines(figure: Any) -> list[list[list[float]]]:
    """The points of the lines that stand for data, not of those that lead to names."""
    axes = figure.axes[0]
    return [line.get_xydata().tolist() for line in axes.lines if line.get_transform() == axes.transData]


def check_apart(figure: Any) -> None:
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [text.get_window_extent(renderer) for axes in figure.axes for text in axes.texts]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


# ---- lines


def test_curves_show_percent_and_their_last_value():
    figure = figure_of(curves({"fedper": {2: 0.75, 1: 0.5, 3: None}, "local": {1: 0.25, 4: 0.125}}))
    assert lines(figure) == [[[1, 50], [2, 75]], [[1, 25], [4, 12.5]]]
    assert texts(figure) == ["local", "12.5", "fedper", "75.0", "last"]  # from the bottom to the top
    assert figure.axes[0].get_ylabel() == "accuracy (%)"
    figure = figure_of(curves({"z": {1: 0.5}}, across="epoch", quantity="CKA", percent=False))
    assert lines(figure) == [[[1, 0.5]]]
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("epoch", "CKA")


def test_what_was_not_measured_is_passed_over_and_nan_is_a_gap():
    tenths = {t: 0.5 if t % 10 == 0 else None for t in range(400)}
    every_tenth = figure_of(curves({"a": tenths})).axes[0].lines[0]
    assert len(every_tenth.get_xdata()) == 40 and every_tenth.get_markevery() == []
    gaps = {t: NAN if t in (5, 7) else math.inf if t == 9 else 0.5 for t in range(50)}
    broken = figure_of(curves({"a": gaps}))
    line = broken.axes[0].lines[0]
    assert np.flatnonzero(np.isnan(line.get_ydata())).tolist() == [5, 7, 9]
    assert line.get_markevery() == [6, 8]  # between two gaps there is no line to be seen


def test_sorted_curves_rank_the_clients_that_have_a_value():
    figure = figure_of(ranked({"anti": [0.5, None, 0.25, 1.0, NAN], "local": [0.75]}))
    assert lines(figure) == [[[1, 25], [2, 50], [3, 100]], [[1, 75]]]
    assert texts(figure) == ["anti", "58.3", "local", "75.0", "mean"]  # 175 / 3 = 58.33


@pytest.mark.parametrize("methods", [2, 9, 30])
def test_names_of_equal_lines_do_not_cover_each_other(methods):
    for value in (0.0, 0.5, 1.0, NAN):
        figure = figure_of(curves({f"method {number}": {1: value, 2: value} for number in range(methods)}))
        assert len(texts(figure)) == 2 * methods + 1
        check_apart(figure)
        looks = {(line.get_color(), str(line._dash_pattern)) for line in figure.axes[0].lines[:methods]}
        assert len(looks) == min(methods, len(COLOURS) * len(DASHES))


places = st.lists(st.floats(-1, 2), min_size=1, max_size=12)


@settings(max_examples=100, deadline=None)
@given(places, st.floats(0.01, 0.08))
def test_places_are_spread_in_their_order_and_stay_where_there_is_room(wanted, gap):
    found = spread_out(wanted, gap)
    order = np.argsort(wanted, kind="stable")
    assert (np.diff(found[order]) >= gap - 1e-9).all()
    assert found.min() >= -1e-9 and found.max() <= 1 + 1e-9
    assert np.allclose(spread_out(found, gap), found)


def test_places_by_hand():
    assert spread_out([0.5, 0.5], 0.2).tolist() == pytest.approx([0.4, 0.6])
    assert spread_out([0.9, 0.1, 0.95], 0.1).tolist() == pytest.approx([0.875, 0.1, 0.975])
    assert spread_out([0.0, 0.0, 0.0], 0.4).tolist() == pytest.approx([0, 0.4, 0.8])
    assert spread_out([], 0.1).tolist() == []


# ---- the others


def test_a_class_looks_the_same_in_every_panel():
    rows = np.array([[0, 1, 3.0], [1, 1, 12], [2, NAN, 5], [3, 3, 3]])
    figure = figure_of(Clouds({"with": rows, "without": rows[[3, 1, 0]]}, ["", "", "", "cat"]))
    _, *panels, key = figure.axes
    for panel, points in zip(panels, ([[0, 1], [1, 1], [3, 3]], [[3, 3], [1, 1], [0, 1]]), strict=True):
        drawn = panel.collections[0]
        assert drawn.get_offsets().tolist() == points
        cat, other = muted(0).ink.lower(), muted(2).ink.lower()
        assert [to_hex(colour) for colour in drawn.get_facecolors()] == [cat, other, cat]
    assert [text.get_text() for text in key.texts] == ["cat", "5", "12"]


def test_many_classes_differ_in_colour_or_mark():
    rows = np.array([[label, label, label] for label in range(60)], dtype=float)
    keys = figure_of(Clouds({"all": rows})).axes[2:]
    marks = [(to_hex(m.get_facecolor()[0]), m.get_paths()[0].vertices.tobytes()) for k in keys for m in k.collections]
    assert len(marks) == len({*marks}) == 60
    assert len(figure_of(Clouds({"all": np.append(rows, [[0, 0, 60]], axis=0)})).axes) == 2  # no key any more


def test_bars_are_as_high_as_their_numbers():
    figure = figure_of(Bars({"CKA": {"z": 0.75, "u": 0.5}, "R²": {"u": -0.25, "z": None}}, quantity="", percent=False))
    assert np.array_equal([bar.get_height() for bar in figure.axes[0].patches], [0.75, NAN, 0.5, -0.25], equal_nan=True)
    assert texts(figure) == ["0.75", "-", "0.50", "-0.25", "z", "u"]
    z, z_later, u, u_later = (bar.get_x() for bar in figure.axes[0].patches)
    assert z < u < z_later < u_later
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["CKA", "R²"]
    assert texts(figure_of(Bars({"dir:0.1": {"local": 0.8862}}))) == ["88.6"]


def test_the_heat_map_holds_the_matrix():
    matrix = np.array([[1, 0.25, NAN], [0.25, 1, NAN], [NAN, NAN, NAN]])
    figure = figure_of(Similarity(matrix.tolist(), ["art", "photo", "sketch"]))
    assert np.array_equal(figure.axes[0].images[0].get_array().filled(NAN), matrix, equal_nan=True)
    assert texts(figure) == ["1.00", "0.25", "-", "0.25", "1.00", "-", "-", "-", "-"]
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["art", "photo", "sketch"]
    assert figure.axes[0].images[0].get_clim() == (0, 1)
    many = figure_of(Similarity(np.eye(200).tolist(), list(map(str, range(200)))))
    assert [int(tick.get_text()) for tick in many.axes[0].get_xticklabels()] == list(range(0, 200, 10))


def test_points_as_a_file(tmp_path: Path):
    write_tsne(np.array([[0.5, -1.25, 3], [NAN, NAN, 10]]), tmp_path / "points.csv")
    text = (tmp_path / "points.csv").read_text()
    assert text == "x,y,label\n0.5,-1.25,3\nnan,nan,10\n"
    assert np.array_equal(read_points(text), [[0.5, -1.25, 3], [NAN, NAN, 10]], equal_nan=True)


# ---- whatever is given

GIVEN: dict[str, View] = {
    "no curve": curves({}),
    "curves without values": curves({ODD: {1: NAN, 2: None}, "_b": {}}, ODD, quantity=ODD, across=ODD),
    "one round": curves({"_a": {7: 0.5}}),
    "one client": ranked({"a": [0.5], ODD: [None, NAN]}, ODD),
    "no panel": Clouds({}),
    "empty panels": Clouds({ODD: np.full((3, 3), [NAN, 1, 2]), "b": np.zeros((0, 3))}, 3 * [ODD], ODD),
    "one sample": Clouds({"a": np.zeros((1, 3))}),
    "no bar": Bars({}),
    "bars without values": Bars({ODD: {ODD: NAN, "_b": None}, "": {}}, ODD, quantity=ODD),
    "no client": Similarity([], []),
    "one client's CKA": Similarity([[NAN]], [ODD], ODD),
}


@pytest.mark.parametrize("name", GIVEN)
def test_what_is_missing_or_odd_gives_a_picture_all_the_same(tmp_path: Path, name: str):
    before = dict(rcParams)
    draw_view(GIVEN[name], tmp_path / "picture.png")
    assert [path.name for path in tmp_path.iterdir()] == ["picture.png"]
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert dict(rcParams) == before


@pytest.mark.parametrize(("ending", "start"), [(".svg", b"<?xml"), (".PDF", b"%PDF")])
def test_a_picture_is_of_the_kind_that_its_name_says(tmp_path: Path, ending: str, start: bytes):
    draw_view(curves({ODD: {1: 0.5}}, ODD), tmp_path / f"picture{ending}")
    assert (tmp_path / f"picture{ending}").read_bytes().startswith(start)


def test_names_are_shown_on_a_line():
    assert short_text("a\tb\nc\x00 ") == "a b c"
    assert short_text(25 * "x") == 23 * "x" + "…"


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match=r"cannot draw 'a.jpg': the name of a picture must end in .png, .svg, .pdf"):
        draw_view(curves({}), "a.jpg")
    with pytest.raises(ConfigError, match=r"cannot write '.*missing/a.png': No such file or directory"):
        draw_view(Bars({}), tmp_path / "missing" / "a.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(DataError, match=r"pip install 'partwise\[plots\]'"):
        draw_view(Similarity([[1.0]], [""]), tmp_path / "a.png")
