"""What tables, pages and pictures say of numbers: RMSE is no share, and the lowest is the best."""

import json
import re

import pytest

from partwise.errors import ConfigError
from partwise.reporting.amounts import measured
from partwise.reporting.figures import figure_of
from partwise.reporting.latex import to_latex
from partwise.reporting.page.board import board, shown_columns
from partwise.reporting.page.headline import page_head
from partwise.reporting.page.page import render
from partwise.reporting.page.traces import chart_json
from partwise.reporting.reading import find_runs
from partwise.reporting.series import ranked_series, series_of
from partwise.reporting.tables import leaderboard, metric_cell
from partwise.reporting.views import measured as views
from partwise.reporting.views.charts import charts_of
from partwise.studies.leaderboard import standings
from tests.support.folders import write_run

NUMBERS = {"task": "numbers"}


@pytest.fixture
def runs(tmp_path):
    """FedAvg ends at 1.0, FedPer at 2.0 with less sent, and Local at 1.5; a client of FedPer is worse off alone."""
    write_run(tmp_path / "fedper", "fedper", values=(4.0, 2.0), clients=(1.0, 2.5), sent=10, **NUMBERS)
    write_run(tmp_path / "fedavg", "fedavg", values=(0.5, 1.0), clients=(0.75, 1.25), sent=20, **NUMBERS)
    write_run(tmp_path / "local", "local", values=(3.0, 1.5), clients=(1.25, 1.75), sent=20, **NUMBERS)
    return find_runs([tmp_path])


def test_the_lowest_error_leads_the_page(runs):
    series = series_of(runs)
    rows = ranked_series(series)
    assert [(row.series.name, row.means.last, row.means.best) for row in rows] == [
        ("FedAvg", 1.0, 0.5),
        ("Local", 1.5, 1.5),
        ("FedPer", 2.0, 2.0),
    ]
    assert [row.means.worse for row in rows] == [0.0, None, 0.5]  # 2.5 against 1.75 alone, but 1.0 against 1.25
    head = page_head(series, rows)
    [best] = head.best
    assert (best.words, best.value) == ("has the lowest RMSE, LM received:", "1.000")
    assert head.ranked == "RMSE, LM received"
    titles = [column.title for column in shown_columns(rows)]
    for row, expected in zip(board(rows), (["1.000", "0.5000"], ["1.500", "1.500"], ["2.000", "2.000"]), strict=True):
        cells = dict(zip(titles, row.cells, strict=True))
        assert [cells["last"].text, cells["best"].text] == expected
        assert cells["last"].top == cells["over clients"].top == cells["worst 10 %"].top == (expected[0] == "1.000")


def test_charts_of_errors_are_in_no_percent_and_their_front_is_below(runs):
    series = series_of(runs)
    charts = {chart.key: chart for own in charts_of(series, ranked_series(series)).values() for chart in own}
    assert charts["rounds"].title == "RMSE over rounds" and charts["bytes"].title == "RMSE against bytes"
    assert charts["bytes"].about.startswith("Down and to the left is better; above the dashed line")
    front = charts["bytes"].pictures[0].view.frontier
    assert [(point.name, point.cost, point.value) for point in front] == [("FedPer", 40, 2.0), ("FedAvg", 80, 1.0)]
    assert "A bin: a range of the first number" in charts["partition"].about
    for key, chart in charts.items():
        if key not in ("sharing", "groups"):
            assert "%" not in json.dumps([view["layout"] for view in chart_json(chart)["views"]]), key
    [lines] = chart_json(charts["rounds"])["views"]
    assert {trace["name"]: trace["y"] for trace in lines["traces"] if trace["role"] == "line"} == {
        "FedAvg": [0.5, 1.0],
        "FedPer": [4.0, 2.0],
        "Local": [3.0, 1.5],
    }
    assert lines["table"][0][0] == "round" and lines["table"][2] == ["2", "1.000", "2.000", "1.500"]
    [points] = chart_json(charts["bytes"])["views"]
    assert points["frontier"] == -1 and points["table"][0] == ["method", "bytes sent in the whole run", "RMSE"]
    [counts] = chart_json(charts["partition"])["views"]
    assert counts["layout"]["yaxis"]["title"]["text"] == "bin" and "bin a:" in counts["traces"][0]["text"][0]


def test_pictures_of_errors_are_in_no_percent(runs):
    series = series_of(runs)
    lines = figure_of(views.metric_lines(series, "received")).axes[0]
    assert lines.get_ylabel() == "RMSE" and sorted(lines.get_lines()[0].get_ydata()) == [0.5, 1.0]
    assert "1.500" in [text.get_text() for text in lines.texts]
    boxes = figure_of(views.client_boxes(series)).axes[0]
    assert boxes.get_xlabel() == "RMSE of clients" and boxes.get_xlim()[1] < 3
    points = figure_of(views.cost_points(ranked_series(series), "bytes", "bytes", "B")).axes[0]
    assert points.get_ylabel() == "RMSE" and points.get_ylim()[1] < 3


def test_a_whole_page_of_numbers(runs):
    text = render(runs)
    assert 'aria-sort="ascending"' in text
    shown = " ".join(re.sub("<[^>]*>", " ", text[text.index("<header") : text.index("<script", 2000)]).split())
    assert "accuracy" not in shown.lower() and "FedAvg has the lowest RMSE, LM received: 1.000" in shown


def test_the_lowest_error_leads_tables_and_is_bold_in_print(runs):
    summaries = [run.standing for run in runs]
    every = standings(summaries)
    assert [(own.method, own.worse) for own in every] == [("fedavg", 0.0), ("local", None), ("fedper", 0.5)]
    row = every[0].as_row()
    assert (row["rmse"], row["rmse_mean"], row["rmse_std"]) == (1.0, 1.0, 0.1) and "acc_mean" not in row
    cells = leaderboard(every, summaries[0])
    assert [own[:3] for own in cells.rows] == [
        ["FedAvg", "1.000", "0.5000"],
        ["Local", "1.500", "1.500"],
        ["FedPer", "2.000", "2.000"],
    ]
    assert [own[cells.header.index("worse")] for own in cells.rows] == ["0.00", "-", "50.00"]
    assert any("RMSE: in the label's unit, lower is better" in note for note in cells.notes)
    best, second, third = [line for line in to_latex(cells).splitlines() if line.startswith(("FedAvg", "Lo", "FedPer"))]
    assert r"\textbf{1.000}" in best and r"\underline{1.500}" in second and "2.000 & 2.000" in third


def test_an_unfinished_run_of_numbers_is_judged_by_its_error(tmp_path):
    write_run(tmp_path / "a", values=(3.0, 2.0, 2.5), finished=False, **NUMBERS)
    [run] = find_runs([tmp_path])
    assert (run.metric, run.standing.value, run.standing.best("received").value("rmse")) == ("rmse", 2.5, 2.0)


def test_runs_of_two_tasks_are_not_compared(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", **NUMBERS)
    with pytest.raises(
        ConfigError, match=r"a' is a run of classes and .*b' one of numbers, which have no metric in com"
    ):
        find_runs([tmp_path])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (0.0, "0.000"),
        (80.49304, "80.49"),
        (0.0512338, "0.05123"),
        (-1.5, "-1.500"),
        (123456.7, "123457"),
        (1.5e-7, "1.500e-07"),
        (2.5e12, "2.500e+12"),
    ],
)
def test_plain_numbers_have_four_digits(value, text):
    assert measured(value, percent=False) == text


def test_a_deviation_has_the_decimals_of_its_mean():
    assert (
        metric_cell(80.493, "rmse", 1.2292) == "80.49 ± 1.23" and metric_cell(0.5, "accuracy", 0.01) == "50.00 ± 1.00"
    )
    assert metric_cell(None, "rmse") == metric_cell(None, "accuracy") == "-"
