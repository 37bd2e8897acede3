"""What is seen: the progress of a run, and tables."""

from io import StringIO

import pytest
from rich.console import Console

from partwise.reporting.tables import Cells, percent
from partwise.runs.progress import bar, clock, display

ROWS = [
    {"round": 1, "participants": [0, 1], "received": {"acc_pooled": 0.25}, "seconds": 0.5},
    {"round": 2, "participants": [0, 1], "seconds": 0.5},
    {"round": 3, "participants": [0, 1], "received": {"clients": 0}, "seconds": 0.5},  # nobody has test samples
    {"round": 4, "participants": [2], "received": {"acc_pooled": 0.5}, "adapted": {"acc_pooled": 1.0}, "seconds": 2.0},
]


def test_a_line_for_every_evaluated_round(capsys):
    with display("local", rounds=4) as progress:
        for row in ROWS:
            progress(row)
    out, err = capsys.readouterr()
    first, second = (line.split(", ") for line in err.splitlines())
    assert out == ""
    assert first[:3] == ["local: round 1/4", "received 25.00 %", "4.0 clients/s"]
    assert second[:4] == ["local: round 4/4", "received 50.00 %", "adapted 100.00 %", "2.0 clients/s"]  # 7 in 3.5 s
    assert second[-1] == "left 0:00:00"


def test_quiet_is_silent(capsys):
    with display("local", rounds=4, quiet=True) as progress:
        progress(ROWS[0])
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("width", [80, 120])
def test_a_bar_on_a_terminal(width):
    screen = Console(file=StringIO(), force_terminal=True, width=width, color_system=None, legacy_windows=False)
    with bar("local seed 0 (1/4)", 4, screen) as progress:
        for row in ROWS:
            progress(row)
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


def test_markdown():
    cells = Cells("Title", ["method", "last"], [["fedavg", "50.00"]], ["last: after the last round"])
    assert cells.to_markdown() == (
        "# Title\n\n| method | last |\n| --- | ---: |\n| fedavg | 50.00 |\n\n- last: after the last round\n"
    )


def test_clock():
    assert [clock(seconds) for seconds in (0.4, 59.6, 3725)] == ["0:00:00", "0:01:00", "1:02:05"]


def test_percent():
    assert (percent(0.12345), percent(1.0, 0.5), percent(None)) == ("12.35", "100.00 ± 50.00", "-")
