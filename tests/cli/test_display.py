"""What is seen: the progress of a run, and tables."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from partwise.methods import names
from partwise.records.names import PROPER, WHICH_MODEL, proper
from partwise.records.rounds import RoundRecord
from partwise.records.summaries import RunSummary
from partwise.reporting.progress import clock, displays, progress_bars
from partwise.reporting.tables import Cells, leaderboard, one_run, percent
from partwise.studies.leaderboard import standings
from partwise.studies.seeds import unseen

ROWS = [
    {"round": 1, "participants": [0, 1], "received": {"acc_pooled": 0.25}, "seconds": 0.5},
    {"round": 2, "participants": [0, 1], "seconds": 0.5},
    {"round": 3, "participants": [0, 1], "received": {"clients": 0}, "seconds": 0.5},  # nobody has test samples
    {"round": 4, "participants": [2], "received": {"acc_pooled": 0.5}, "adapted": {"acc_pooled": 1.0}, "seconds": 2.0},
]


def test_a_line_for_every_evaluated_round(capsys):
    with displays(["local"], 4, "accuracy") as [progress]:
        for row in ROWS:
            progress(RoundRecord.from_json(row))
    out, err = capsys.readouterr()
    first, second = (line.split(", ") for line in err.splitlines())
    assert out == ""
    assert first[:3] == ["local: round 1/4", "LM received 25.00 %", "4.0 clients/s"]
    assert second[:4] == [
        "local: round 4/4",
        "LM received 50.00 %",
        "LM adapted 100.00 %",
        "2.0 clients/s",
    ]  # 7 in 3.5 s
    assert second[-1] == "left 0:00:00"


def test_quiet_is_silent(capsys):
    with unseen(["local"], 4, "accuracy") as [progress]:
        progress(RoundRecord.from_json(ROWS[0]))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("width", [80, 120])
def test_a_bar_on_a_terminal(width):
    screen = Console(file=StringIO(), force_terminal=True, width=width, color_system=None, legacy_windows=False)
    with progress_bars(["local seed 0 (1/4)", "local seed 1 (2/4)"], 4, screen) as [progress, _]:
        for row in ROWS:
            progress(RoundRecord.from_json(row))
    last = screen.file.getvalue().split("\r")[-1]
    assert "local seed 0 (1/4)" in last and "4/4 50.00 % 2.0 clients/s" in last


def test_a_table_that_is_too_wide_goes_on_below():
    cells = Cells("Title", ["method", "last", "best", "s"], [["fedavg", "50.00 ± 1.00", "-", "3.0"]], ["s: seconds"])
    for width in (80, 24):
        screen = Console(file=StringIO(), width=width)
        screen.print(cells.to_rich(width))
        lines = [line.rstrip() for line in screen.file.getvalue().splitlines()]
        words = [line.split() for line in lines]
        assert max(map(len, lines)) <= width and lines[0] == "Title" and lines[-1] == "s: seconds"
        if width == 80:
            assert ["fedavg", "50.00", "±", "1.00", "-", "3.0"] in words
        else:
            assert ["fedavg", "50.00", "±", "1.00"] in words and ["fedavg", "-", "3.0"] in words


def test_no_column_stands_alone_because_one_was_too_many():
    header = ["method", *(f"column {number}" for number in range(8))]
    cells = Cells("Title", header, [["fedavg", *["1"] * 8]], [])
    screen = Console(file=StringIO(), width=80)
    screen.print(cells.to_rich(80))  # 8 + 7 * 10 columns would fit
    titles = [line.split().count("column") for line in screen.file.getvalue().splitlines() if "method" in line]
    assert titles == [4, 4]


LAST = {"acc_pooled": 0.5, "acc_mean": 0.25, "acc_std": 0.125, "balanced": 0.4, "f1": None, "auroc": 0.75, "ece": 0.1}
RUN = {
    "method": "fedavg",
    "data": "ward",
    "clients": 3,
    "partition": "iid",
    "rounds": 4,
    "seed": 0,
    "bytes_per_participant": 0.0,
    "seconds": 1.0,
    "positive": "ill",
    "accuracy": {"received": {"last": {**LAST, "clients": 3}, "best": {**LAST, "acc_pooled": 0.6, "round": 2}}},
}


def summary(**other):
    return RunSummary.from_json({**RUN, **other})


def test_one_run_by_hand():
    cells = one_run(summary())
    [received] = cells.rows
    shown = dict(zip(cells.header, received, strict=True))
    expected = {
        "accuracy in %": "LM received",
        "last": "50.00",
        "best": "60.00",
        "at round": "2",
        "mean": "25.00",
        "std": "12.50",
        "balanced": "40.00",
        "F1": "-",
        "AUROC": "75.00",
        "ECE": "10.00",
        "clients": "3",
    }
    assert {title: shown[title] for title in expected} == expected
    assert any("F1, AUROC: of class 'ill'" in note for note in cells.notes)
    assert "the run went back to round 2" in one_run(summary(restored=2)).notes[3]
    assert one_run(summary(restored=4)).notes == cells.notes  # it is the last anyway


def test_one_run_by_another_metric():
    cells = one_run(summary(metric="auroc"))
    assert cells.header[:3] == ["AUROC in %", "last", "best"] and "AUROC" not in cells.header
    assert cells.rows[0][:4] == ["LM received", "75.00", "75.00", "2"]
    assert cells.rows[0][cells.header.index("accuracy")] == "50.00"
    assert one_run(summary(metric="balanced")).header[0] == "balanced accuracy in %"
    undefined = one_run(summary(metric="f1")).rows[0]
    assert undefined[:4] == ["LM received", "-", "-", "-"]  # there is no best round


def test_one_vocabulary_and_three_lines_of_legend():
    """GM and LM, explained at the foot; nothing is called by the name of a test set."""
    everywhere = {**LAST, "g_test": 0.5, "p_test": LAST}
    everything = {**RUN["accuracy"], "global": {"last": everywhere, "best": everywhere}}
    run = summary(accuracy={**everything, "method_adapted": everything["received"]})
    one, board = one_run(run), leaderboard(standings([run]), run)
    assert [row[0] for row in one.rows] == ["LM received", "LM method_adapted", "GM", "GM/client"]
    assert board.header[-4:] == ["GM", "GM/client", "MB", "s"] and board.title.endswith(", LM received")
    assert len(one.notes) == 3 + 1 and len(board.notes) == 3  # and a run's bytes and seconds
    assert one.notes[0] == board.notes[0] == WHICH_MODEL
    assert not any("-Test" in text for text in (one.to_text(), board.to_text()))


def test_every_method_has_a_proper_name():
    assert sorted(PROPER) == names()
    assert [proper(label) for label in ("fedper lr=0.1", "mine")] == ["FedPer lr=0.1", "mine"]


@pytest.mark.parametrize("width", [80, 120])
def test_the_leaderboard_fits(width):
    run = summary(client_scores=[0.5, 0.5, None])
    runs = [replace(run, method=method, seed=seed) for method in ("local", "fedavg") for seed in (0, 1)]
    screen = Console(file=StringIO(), width=width)
    screen.print(leaderboard(standings(runs), run).to_rich(width))
    lines = screen.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    words = [word for line in lines if line.lstrip().startswith("method") for word in line.split()]
    assert {"last", "best", "AUROC", "worse", "MB"} <= set(words)


def test_html():
    cells = Cells("A & B", ["method", "last"], [["<x>", "50.00"]], ["one", "two"])
    left, right = ' style="text-align: left"', ' style="text-align: right"'
    assert cells.to_html() == (
        f"<div><strong>A &amp; B</strong><table><tr><th{left}>method</th><th{right}>last</th></tr>"
        f"<tr><td{left}>&lt;x&gt;</td><td{right}>50.00</td></tr></table>"
        '<small style="opacity: 0.7">one<br>two</small></div>'
    )


def test_markdown():
    cells = Cells("Title", ["method", "last"], [["fedavg", "50.00"]], ["last: after the last round"])
    assert cells.to_markdown() == (
        "# Title\n\n| method | last |\n| --- | ---: |\n| fedavg | 50.00 |\n\n- last: after the last round\n"
    )


def test_clock():
    assert [clock(seconds) for seconds in (0.4, 59.6, 3725)] == ["0:00:00", "0:01:00", "1:02:05"]


def test_percent():
    assert (percent(0.12345), percent(1.0, 0.5), percent(None)) == ("12.35", "100.00 ± 50.00", "-")
