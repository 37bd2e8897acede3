"""The page and pictures draw the same views: every kind on both sides, and a series in one look."""

from typing import get_args

from matplotlib.colors import to_hex

from partwise.reporting.figures import DRAWERS, figure_of
from partwise.reporting.page.numbers import TABULATORS
from partwise.reporting.page.swatches import swatch
from partwise.reporting.page.traces import TRACERS, line_traces
from partwise.reporting.style import COLOURS, DASHES, MARKS, css, look
from partwise.reporting.views.kinds import Bars, Curves, Sharing, View, line_of

NOT_ON_THE_PAGE = {Bars, Sharing}  # bars are of papers alone, shares are a table of HTML


def test_every_kind_of_view_has_its_drawers():
    assert set(DRAWERS) == set(get_args(View))
    assert set(TRACERS) == set(TABULATORS) == set(get_args(View)) - NOT_ON_THE_PAGE


def test_a_series_looks_the_same_on_the_page_and_in_print():
    view = Curves([line_of("a", look(number), {1: 0.5, 2: 0.75}) for number in range(9)])
    traces, _ = line_traces(view)
    drawn = figure_of(view).axes[0].lines[:9]
    for number, (trace, line) in enumerate(zip(traces, drawn, strict=True)):
        colour, dash, _ = trace["look"]
        assert f"--{colour}: {COLOURS[colour].light};" in css() and f"var(--{colour})" in swatch(number)
        assert to_hex(line.get_color()) == COLOURS[colour].light.lower()
        assert trace["series"] == number and trace["y"] == line.get_ydata().tolist() == [50, 75]
        assert DASHES[dash].svg in swatch(number)


def test_as_many_series_look_different_as_there_are_combinations():
    looks = {look(number)[:3] for number in range(300)}
    assert len(looks) == len(COLOURS) * len(DASHES) * len(MARKS)  # 7, 5 and 6 have no common divisor
