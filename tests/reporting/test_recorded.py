"""What runs write down so that a page can be made of them."""

import csv
import json

from partwise.reporting.page.board import board, shown_columns
from partwise.reporting.page.page import render
from partwise.reporting.reading import find_runs
from partwise.reporting.series import ranked_series, series_of
from partwise.reporting.tables import one_run
from tests.support.commands import FEW, read_json, succeed


def test_who_has_and_who_shares_what_and_what_leaves(tmp_path, capsys):
    few = [*FEW[: FEW.index("--rounds")], *FEW[FEW.index("--rounds") + 2 :]]
    succeed(capsys, "run", "pacfl", *few, "--rounds", "1", "--out", tmp_path)
    setup = read_json(tmp_path / "setup.json")
    with open(tmp_path / "clients.csv", encoding="utf-8", newline="") as file:
        samples = [int(row["train_samples"]) for row in csv.DictReader(file)]
    assert [sum(row) for row in setup["counts"]] == samples
    assert setup["clients"] == ["0", "1", "2", "3"]
    [stage] = setup["stages"]
    assert (stage["rounds"], {*stage["share"].values()}) == (1, {"GROUP"})
    leaves = read_json(tmp_path / "leaves.json")
    assert leaves["head"]["numbers"] == 100 * len(setup["classes"]) + len(setup["classes"])
    assert leaves["directions"]["classes"] == "a row for each"
    # Directions are sent before the first round alone: who goes on knows of them all the same.
    succeed(capsys, "run", "pacfl", *few, "--rounds", "2", "--out", tmp_path, "--resume")
    assert read_json(tmp_path / "leaves.json") == leaves
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert ["groups" in row for row in rows] == [True, False]  # only where they are others than before
    assert len(rows[0]["groups"]) == 4


def test_nothing_leaves_a_client_that_is_alone(tmp_path, capsys):
    succeed(capsys, "run", "local", *FEW, "--out", tmp_path)
    assert read_json(tmp_path / "leaves.json") == {}
    assert "groups" not in json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])


def test_who_was_held_out_and_how_they_do(tmp_path, capsys):
    shown = succeed(capsys, "compare", "local", "fedper", *FEW, "--hold-out", "0.5", "--quiet", "--out", tmp_path)
    with open(tmp_path / "fedper" / "seed-0" / "clients.csv", encoding="utf-8", newline="") as file:
        names = [row["name"] for row in csv.DictReader(file) if row["joined"]]
    assert "GM: the global model on all test samples" in shown
    assert len(names) == 2 and read_json(tmp_path / "local" / "seed-0" / "setup.json")["held_out"] == names
    assert f"held out with seed 0: {', '.join(names)}\n" in shown
    page = render(runs := find_runs([tmp_path]))
    assert f"Held out with seed 0, joined at the end: {', '.join(names)}<" in page
    summaries = {run.method: run.summary.last("joined").accuracy for run in runs}
    rows = ranked_series(series_of(runs))
    [at] = [number for number, column in enumerate(shown_columns(rows)) if column.title == "LM joined"]
    assert {row.cells[0].text.lower(): row.cells[at].value for row in board(rows)} == summaries
    one = find_runs([tmp_path / "fedper"])
    assert f"held out with seed 0: {', '.join(names)}" in one_run(one[0].summary).notes


def test_where_nobody_is_held_out_nothing_is_said_of_it(tmp_path, capsys):
    shown = succeed(capsys, "compare", "local", *FEW, "--quiet", "--out", tmp_path)
    rows = ranked_series(series_of(find_runs([tmp_path])))
    assert "joined" not in [column.title for column in shown_columns(rows)] and "joined" not in shown
    assert "eld out" not in shown and "Held out" not in render(find_runs([tmp_path]))
