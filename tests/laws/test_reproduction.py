"""Recorded runs of the papers' tables: each can be run again, each is some table's, and the page is made of them."""

import json
import shlex
from dataclasses import asdict, replace
from datetime import UTC, datetime

import pytest

from benchmarks import choosing, leaderboard, reproduction, reproduction_page, reproduction_runs
from benchmarks.lines import lines
from partwise.cli import main
from partwise.commands.declared import run_command
from partwise.methods import find
from partwise.papers import recorded
from partwise.papers.recorded import RECORDED, Change, changes, key_of, read_lines, settings_that_count, superseded
from partwise.papers.tables import papers, read_paper
from partwise.papers.values import value_of
from partwise.runs.config import known_fields, make_config
from tests.support.commands import FEW, refuse, succeed

LINES = [line for path in sorted(RECORDED.glob("*.jsonl")) for line in read_lines(path)]


@pytest.fixture(scope="module")
def tables():
    return reproduction_page.read_tables()


def test_the_page_is_what_its_script_makes(tables):
    made = reproduction_page.page(tables, reproduction_page.read_words())
    written = (reproduction_page.DOCS / reproduction_page.PAGE).read_text(encoding="utf-8")
    assert written == made, "make it again: python -m benchmarks.reproduction"


def test_the_readme_says_how_many_cells_are_recorded(tables):
    of_papers = [table for table in tables.values() if not table.paper.ours]
    filled, cells = sum(table.filled for table in of_papers), sum(len(table.cells) for table in of_papers)
    readme = (reproduction_page.DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert f"{filled} of {cells} table cells" in readme


def test_a_verdict_says_whether_it_rests_on_one_seed(tables):
    """FedBABU on CIFAR-10 has three seeds; one of them, and CIFAR-100, is one."""
    three = {"table": "scheduling/table2", "row": "FedBABU", "column": "CIFAR-10", "value": "T=300"}
    one = {**three, "column": "CIFAR-100", "value": "T=500"}
    assert reproduction_page.rests_on_one_seed(tables, [one, {**three, "seed": 0}])
    assert not reproduction_page.rests_on_one_seed(tables, [one, three])


def test_a_table_says_which_columns_are_ours_and_what_a_difference_is(capsys):
    shown = " ".join(succeed(capsys, "reproduce", "fedfcd/table3", "--recorded").split())
    assert "FMNIST Pat: a column of ours, which the paper's table does not have" in shown
    assert "difference: ours" not in shown  # nothing is published there
    shown = " ".join(succeed(capsys, "reproduce", "fedtc/table2", "--recorded").split())
    assert "difference: ours minus published, from unrounded means" in shown and "a column of ours" not in shown


def test_the_command_of_every_line_is_its_run():
    """Of the tables' lines, of those that say which method to take, and of the leaderboards'."""
    others = [*lines(choosing.RUNS), *lines(leaderboard.RUNS)]
    chosen = [(line["run"], line["seed"], line["command"]) for line in others]
    parsers = {}  # of a method, and of a schedule's host: they have the same options
    for run, seed, text in [*((line.run, line.seed, line.command) for line in LINES), *chosen]:
        _, command, *words = shlex.split(text)
        kind = run["method"], run.get("host")
        if kind not in parsers:
            parsers[kind] = run_command.make_parser(run_command.make_context(command, list(words)))
        given, rest, _ = parsers[kind].parse_args(list(words))
        meant = make_config(run["method"], {**{name: run[name] for name in run if name != "method"}, "seed": seed})
        known = known_fields(type(meant.method))
        config = make_config(words[0], {name: value for name, value in given.items() if name in known})
        assert command == "run" and not rest and config == meant and settings_that_count(config) == run, text


def test_every_line_is_a_run_of_some_table_and_none_is_there_twice():
    cells = {
        key_of(settings_that_count(make_config(row.method, paper.settings_of(row, column))))
        for paper in map(read_paper, papers())
        for row in paper.rows
        for column in paper.columns
    }
    runs = [(key_of(line.run), line.seed) for line in LINES]
    assert {run for run, _ in runs} <= cells and len({*runs}) == len(runs)


def test_runs_that_differ_have_lines_that_differ():
    """A schedule on another host than its usual one is another run, though its class has that host as its default."""
    paper = read_paper("scheduling/on-baselines")
    runs = [
        settings_that_count(make_config(row.method, paper.settings_of(row, paper.columns[0]))) for row in paper.rows
    ]
    assert len({key_of(run) for run in runs}) == len(paper.rows)
    assert [run.get("host") for run in runs[:3]] == [None, "fedavg", "fedavg"]
    assert "host" not in settings_that_count(make_config("anti", {"host": "fedbabu"}))


def test_a_line_is_short():
    assert max(len(line) for path in RECORDED.glob("*.jsonl") for line in path.read_text().splitlines()) < 4096


def test_a_run_fills_every_table_that_asks_for_it(capsys):
    alone = {"method": "local", "data": "cifar10", "clients": 10, "partition": "dir:5.0", "epochs": 5}
    [line] = [line for line in LINES if line.seed == 0 and line.run.items() >= alone.items()]
    shown = f"{100 * line.value('received.best.acc_pooled'):.2f}"
    for table, column in {"fedtc/table2": "CIFAR-10 Dir(5.0)", "fedtc/figure3": "Dir(5.0)"}.items():
        asked = ["reproduce", table, "--recorded", "--rows", "Local", "--columns", column]
        table = succeed(capsys, *asked, "--seeds", "0")
        assert shown in table and "not recorded" not in table
        assert f"recorded: 1 runs on {line.device}, torch {line.torch}, {line.date[:10]}\n" in table
        without = succeed(capsys, *asked, "--seeds", "99")
        assert shown not in without and "not recorded" in without and "recorded: " not in without


def test_readings_have_a_line_each(capsys):
    """What no paper has stands beside nothing published; a setting that a method has not leaves its run as it is."""
    shown = succeed(capsys, "reproduce", "fedtc/readings", "--recorded", "--seeds", "0")
    names = [column.name for column in read_paper("fedtc/readings").columns]
    lines = [next(line for line in shown.splitlines() if line.strip().startswith(f"{name}  ")) for name in names]
    values = [line.removeprefix(f" {name}").split() for name, line in zip(names, lines, strict=True)]
    assert [len(each) for each in values] == len(names) * [6]  # two methods, three values
    as_printed, other_rate, *_ = values
    assert as_printed[:3] == other_rate[:3] and as_printed[3:] != other_rate[3:]  # FedPer has no second rate
    assert "published" not in shown and "not in the paper" in shown


def test_the_list_counts_the_cells(capsys, tables, monkeypatch):
    some = ["fedtc/table2", "scheduling/table4"]  # all of them take seconds
    monkeypatch.setattr(recorded, "papers", lambda: some)
    _, *lines = succeed(capsys, "reproduce", "--recorded").splitlines()
    for name, line in zip(some, lines, strict=True):
        assert line.startswith(f"{name} ") and f" {tables[name].filled} of {len(tables[name].cells)} " in line


@pytest.mark.parametrize("option", ["--overwrite", "--out=there"])
def test_what_is_recorded_is_not_run(capsys, option):
    line = refuse(capsys, "reproduce", "fedtc/table2", "--recorded", option)
    assert line == f"error: --recorded neither runs nor writes anything: leave out {option.partition('=')[0]}"


def test_what_is_recorded_is_at_full_scale(capsys):
    line = refuse(capsys, "reproduce", "fedtc/table2", "--recorded", "--scale", "small")
    assert line == "error: --recorded shows runs at full scale: leave out --scale small"


def test_a_verdict_without_a_recorded_number_is_refused(tables):
    words = {"paper": "fedtc", "claim": "Green is better.", "verdict": "holds", "evidence": ""}
    cell = {"table": "fedtc/table2", "row": "Local", "column": "CIFAR-10 Dir(5.0)", "value": "received"}
    assert "| 58.59 |" in reproduction_page.block(tables, **words, cells=[cell])
    with pytest.raises(LookupError, match=r"not recorded: fedtc/table2: Green, CIFAR-10 Dir\(5.0\), received"):
        reproduction_page.block(tables, **words, cells=[{**cell, "row": "Green"}])
    with pytest.raises(ValueError, match="Green is better"):  # on nothing
        reproduction_page.block(tables, **words, cells=[])
    with pytest.raises(LookupError, match="received, seed 99"):
        reproduction_page.block(tables, **words, cells=[{**cell, "seed": 99}])
    with pytest.raises(ValueError, match="Green is better"):  # if what?
        reproduction_page.block(tables, **{**words, "verdict": "holds if"}, cells=[cell])


def test_runs_that_are_taken(tmp_path, monkeypatch):
    """A finished run becomes a line, once; if a folder of the same run holds more, the line holds more."""
    monkeypatch.setattr(reproduction, "RECORDED", tmp_path)
    monkeypatch.setattr(reproduction, "is_a_cell", lambda record: True)
    folder = tmp_path / "out" / "fedtc" / "table2" / "full" / "fedavg" / "made" / "seed-3"
    assert main(["run", "fedavg", *FEW, "--seed", "3", "--no-save-models", "--quiet", "--out", str(folder)]) == 0
    (unfinished := folder.with_name("seed-4")).mkdir()
    (unfinished / "config.toml").write_text("")
    clients = (folder / "clients.csv").read_bytes()
    (folder / "clients.csv").unlink()
    reproduction.take(tmp_path / "out", "v1")
    [first] = read_lines(tmp_path / "fedtc.jsonl")
    settings = {"data": "made", "clients": 4, "train_samples": 64, "model": "mlp-100", "rounds": 2}
    options = "--data made --clients 4 --train-samples 64 --model mlp-100 --rounds 2"
    assert first.run == {"method": "fedavg", **settings}
    assert first.command == f"partwise run fedavg {options} --seed 3"
    assert (first.seed, first.rounds, first.commit, len(first.curve)) == (3, 2, "v1", 2)
    pooled = value_of(folder, "received.last.acc_pooled")
    assert first.value("received.last.acc_pooled") == pytest.approx(pooled, rel=1e-5)
    assert first.value("clients.min.received") is None and first.value("clients.0.received") is None
    (folder / "clients.csv").write_bytes(clients)
    reproduction.take(tmp_path / "out", "v2")
    reproduction.take(tmp_path / "out", "v3")
    [second] = read_lines(tmp_path / "fedtc.jsonl")
    assert second.commit == "v2" and second.value("clients.0.received") is not None
    assert second.numbers["cost"] == first.numbers["cost"] and json.loads(key_of(first.run)) == second.run


def test_runs_that_are_missing_are_listed_once(capfd, tmp_path):
    """What is recorded is not run again, and what two tables ask for is run once."""
    both = ["fedtc/figure3", "fedtc/table2:CIFAR-10 Dir(0.1)", "fedtc/table2:CIFAR-10 Dir(5.0)"]
    runs = list(reproduction_runs.missing(both, [0], {}))
    assert [run.row for run in runs if run.table == "fedtc/figure3"] == 3 * ["FedAvg", "Local"]
    others = ["FedPer", "FedTC (classifier reset)", "FedTC (guided by its own)", "FedTC"]
    assert [run.row for run in runs if run.table == "fedtc/table2"] == 2 * others
    assert not list(reproduction_runs.missing(both[:2], [0], recorded.read_records()))
    reproduction_runs.carry_out([replace(runs[0], row="Green")], tmp_path, 1)
    [log] = (tmp_path / "logs").iterdir()
    assert "unknown row 'green'" in log.read_text() and "ended with 2: fedtc-figure3-green" in capfd.readouterr().out


# ---------------------------------------------------------------------------------------- runs of older code

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BEFORE, AFTER = "2026-01-01T11:59:59+00:00", "2026-01-01T13:00:00+01:00"


@pytest.fixture
def fedper_changed(monkeypatch):
    """At noon FedPer became another method."""
    monkeypatch.setattr(recorded, "changes", lambda: {"fedper": Change(NOON, "it is better")})


def test_a_run_is_superseded_if_it_began_before_its_method_changed(fedper_changed):
    own, other, hosted = {"method": "fedper"}, {"method": "fedavg"}, {"method": "anti", "host": "fedper"}
    assert superseded(own, BEFORE) and superseded(own, None) and superseded(hosted, BEFORE)
    assert not superseded(own, AFTER) and not superseded(other, BEFORE) and not superseded(hosted, AFTER)


def test_a_change_may_concern_some_settings_or_some_moments_alone(monkeypatch):
    record = replace(LINES[0], numbers={"received": {"last": 0.5}, "clients": {"min": {"adapted": 0.2}}}, date=BEFORE)
    change = Change(NOON, "it is better", moments=["adapted"], settings=["lr_decay"])
    monkeypatch.setattr(recorded, "changes", lambda: {"fedgh": change})
    without = replace(record, run={"method": "fedgh"})
    decayed = replace(record, run={"method": "fedgh", "lr_decay": 0.9})
    assert without.superseded is None and without.value("clients.min.adapted") == 0.2
    assert decayed.superseded == change and decayed.value("clients.min.adapted") is None
    assert decayed.value("received.last") == 0.5


def test_every_change_names_a_method_and_what_it_has():
    for method, change in changes().items():
        fields = known_fields(find(method))
        assert {*change.settings} <= fields.keys() and {*change.moments} <= {*reproduction.MOMENTS}
        assert change.why and change.since.tzinfo


def test_a_superseded_run_says_to_be_run_and_why(capsys, monkeypatch):
    [line] = [line for line in LINES if line.run["method"] == "fedamp" and line.run["partition"] == "pat:2"]
    asked = ["reproduce", "fedfcd/table1", "--recorded", "--rows", "FedAMP", "--columns", "FMNIST Pat"]
    monkeypatch.setattr(recorded, "changes", dict)
    shown = succeed(capsys, *asked)
    assert f"{100 * line.value('received.best.acc_pooled'):.2f}" in shown and "recorded: 1 runs" in shown
    later = datetime.fromisoformat(line.date).replace(year=2100)
    monkeypatch.setattr(recorded, "changes", lambda: {"fedamp": Change(later, "it is better")})
    shown = succeed(capsys, *asked)
    assert f"to be run: recorded by commit {line.commit}; since then it is better" in " ".join(shown.split())
    assert "recorded: 1 runs" not in shown and "97." not in shown
    records = recorded.read_records()
    runs = list(reproduction_runs.missing(["fedfcd/table1:FMNIST Pat"], [0], records))
    assert [run.row for run in runs] == ["FedAMP"]


def test_no_verdict_but_an_open_one_rests_on_older_code(monkeypatch):
    monkeypatch.setattr(recorded, "changes", lambda: {"local": Change(datetime(2100, 1, 1, tzinfo=UTC), "better")})
    paper = read_paper("fedtc/table2")
    cells, _ = recorded.recorded_cells(paper, paper.seeds, records := recorded.read_records())
    tables = {paper.name: reproduction_page.Table(paper, cells, records)}
    cell = {"table": paper.name, "row": "Local", "column": "CIFAR-10 Dir(5.0)", "value": "received"}
    words = {"paper": "fedtc", "claim": "Green is better.", "evidence": "", "cells": [cell]}
    assert "| 58.59 | to be run | - |" in reproduction_page.block(tables, **words, verdict="open")
    with pytest.raises(ValueError, match="rests on runs of older code"):
        reproduction_page.block(tables, **words, verdict="holds")


def test_a_new_run_takes_the_place_of_a_superseded_one_and_an_old_one_is_not_taken(
    tmp_path, monkeypatch, capsys, fedper_changed
):
    monkeypatch.setattr(reproduction, "RECORDED", tmp_path)
    monkeypatch.setattr(reproduction, "is_a_cell", lambda record: True)
    folder = tmp_path / "out" / "fedtc" / "table2" / "full" / "fedper" / "made" / "seed-3"
    assert main(["run", "fedper", *FEW, "--seed", "3", "--no-save-models", "--quiet", "--out", str(folder)]) == 0
    today = reproduction.record_of(folder, "new")
    more = {**today.numbers, "green": {"more": 1.0, "and_more": 1.0}}
    older = replace(today, commit="old", date=BEFORE, numbers=more)
    monkeypatch.setattr(recorded, "changes", lambda: {"fedper": Change(datetime.fromisoformat(today.date), "better")})
    (tmp_path / "fedtc.jsonl").write_text(reproduction.as_line(older) + "\n")
    reproduction.take(tmp_path / "out", "new")
    [line] = read_lines(tmp_path / "fedtc.jsonl")
    assert asdict(line) == json.loads(reproduction.as_line(today))
    monkeypatch.setattr(recorded, "changes", lambda: {"fedper": Change(datetime(2100, 1, 1, tzinfo=UTC), "better")})
    (tmp_path / "fedtc.jsonl").unlink()
    reproduction.take(tmp_path / "out", "new")
    assert not read_lines(tmp_path / "fedtc.jsonl") and "of older code (better)" in capsys.readouterr().out


def test_seconds_side_by_side_count_once():
    begun = ("00:00:00", "00:00:05", "00:01:00")
    runs = [replace(LINES[0], date=f"2026-01-01T{time}+00:00", seconds=10) for time in begun]
    assert reproduction_page.busy(runs) == 15 + 10


@pytest.mark.parametrize(
    ("page", "table", "column", "values", "rows"),
    [
        (
            "scheduling",
            "scheduling/table2",
            "CIFAR-10",
            ["T=100", "T=200", "T=300"],
            [(row, f"{row} (50 epochs)") for row in ("FedBABU", "Anti", "Vanilla")],
        ),
        (
            "fedtc",
            "fedtc/table2",
            "CIFAR-10 Dir(0.1)",
            ["received", "trained"],
            [(row,) for row in ("Local", "FedAvg", "FedPer", "FedTC (classifier reset)", "FedTC")],
        ),
        (
            "scheduling",
            "scheduling/table2",
            "CIFAR-100",
            ["T=500", "T=1000", "T=1500"],
            [("FedBABU",), ("Anti",), ("Vanilla",)],
        ),
        *(
            (
                "fedfcd",
                "fedfcd/table1",
                column,
                ["best", "last"],
                [("FedAvg",), ("FedProto",), ("FedGH",), ("FedFCD",)],
            )
            for column in ("FMNIST Pat", "FMNIST Dir(0.1)")
        ),
        (
            "dualfed",
            "dualfed/table3",
            "PACS-96",
            ["best", "best round"],
            [("DualFed",), ("DualFed-P",), ("DualFed-G",)],
        ),
        (
            "fed3p2p",
            "fed3p2p/table1",
            "CIFAR-10",
            ["GM", "GM/client", "LM"],
            [("FedAvg",), ("FedRoD",), ("Fed3+2p 50+50",), ("Fed3+2p",)],
        ),
    ],
)
def test_the_numbers_of_a_methods_page_are_those_of_its_runs(tables, page, table, column, values, rows):
    written = (reproduction_page.DOCS / "methods" / f"{page}.md").read_text(encoding="utf-8")
    for names in rows:
        cells = [tables[table].cells[name, column].values for name in names]
        means = [[f"{100 * sum(cell[value]) / len(cell[value]):.2f}" for value in values] for cell in cells]
        joined = [" / ".join(each) for each in means] if len(names) > 1 else means[0]
        assert "| " + " | ".join([names[0], *joined]) + " |" in written, names


@pytest.mark.parametrize(
    ("page", "table", "column", "value", "said"),
    [
        ("fedtc", "fedtc/readings", "classifier's rate 0.01", "received", {"FedTC": "86.51"}),
        ("fed3p2p", "fed3p2p/readings", "as in Table 1", "GM best", {"Central": "73.82"}),
        ("fed3p2p", "fed3p2p/table3", "CIFAR-10", "LM", {"Fed3+2p": "84.3", "FedAvg": "83.3", "FedRoD": "82.6"}),
        ("fed3p2p", "fed3p2p/table3", "CIFAR-10", "GM", {"Fed3+2p": "65.0", "FedAvg": "65.4", "FedRoD": "67.5"}),
        (
            "dualfed",
            "dualfed/readings",
            "CIFAR-10 Dir(0.1)",
            "adapted",
            {
                "FedPer": "84.56",
                "FedPer with projector": "87.08",
                "DualFed without contrast": "85.77",
                "DualFed": "86.38",
            },
        ),
        (
            "dualfed",
            "dualfed/readings",
            "CIFAR-10 Dir(0.1)",
            "received",
            {
                "FedPer": "83.24",
                "FedPer with projector": "83.69",
                "DualFed without contrast": "71.75",
                "DualFed": "78.26",
            },
        ),
        ("fedfcd", "fedfcd/table1", "FMNIST Pat", "adapted", {"FedAvg": "97.37"}),
        ("fedfcd", "fedfcd/table1", "FMNIST Dir(0.1)", "adapted", {"FedAvg": "98.25"}),
        ("fedfcd", "fedfcd/figure7", "FMNIST Dir(0.1)", "best", {"weight 0": "98.06", "weight 1": "98.10"}),
        ("fedfcd", "fedfcd/figure7", "FMNIST Dir(0.1)", "last", {"weight 0": "97.94", "weight 1": "97.77"}),
        (
            "scheduling",
            "scheduling/readings",
            "momentum 0.9",
            "adapted",
            {"FedBABU": "90.48", "Vanilla": "88.45", "Anti": "89.55"},
        ),
    ],
)
def test_numbers_in_the_sentences_of_a_page_are_recorded(tables, page, table, column, value, said):
    written = (reproduction_page.DOCS / "methods" / f"{page}.md").read_text(encoding="utf-8")
    for row, text in said.items():
        digits = len(text.partition(".")[2])
        [found] = tables[table].values(row, column, value, seed=0)
        assert f"{100 * found:.{digits}f}" == text and text in written, row
