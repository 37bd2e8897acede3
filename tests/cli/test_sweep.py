"""`partwise sweep`: what is tried, what is chosen, and on which data."""

import csv
import json
import os
import re
import shlex
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from partwise.cli import main
from partwise.errors import DataError
from partwise.methods import find
from partwise.records.rounds import MomentScores
from partwise.records.summaries import Headline, RunSummary
from partwise.reporting import sweeps
from partwise.runs.config import known_fields
from partwise.runs.simulation import Simulation
from partwise.studies.search import Search
from partwise.studies.sweep import Range, SweepTrial, choose_trials, values_of
from tests.support.commands import FEW, invoke, read_json, refusals, refuse, succeed

SMALL = (*FEW, "--eval-every", "2", "--quiet")


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_grid_is_tried_and_the_best_on_validation_data_is_shown_on_test_data(tmp_path, capsys):
    grid = ["--lr", "0.5", "--proximal-weight", "5", "--proximal-weight", "0", "--seeds", "0,1"]
    arguments = ["sweep", "fedprox", "local", *SMALL, *grid, "--out", tmp_path]
    shown = succeed(capsys, *arguments)
    trials = rows_of(tmp_path / "trials.csv")
    tried = [(row["method"], row["proximal_weight"]) for row in trials]
    assert tried == [("fedprox", "5"), ("fedprox", "0"), ("local", "")]  # which has no such weight
    for row in trials:
        runs = [read_json(tmp_path / row["folder"] / f"seed-{seed}" / "summary.json") for seed in (0, 1)]
        last = [run["accuracy"]["received"]["last"]["acc_pooled"] for run in runs]
        lines = [(tmp_path / row["folder"] / f"seed-{seed}" / "metrics.jsonl").read_text() for seed in (0, 1)]
        validation = [json.loads(line.splitlines()[-1])["validation"]["acc_pooled"] for line in lines]
        assert float(row["test"]) == pytest.approx(sum(last) / 2)
        assert float(row["validation"]) == pytest.approx(sum(validation) / 2)
    best = {}
    for row in trials:
        if float(row["validation"]) > float(best.get(row["method"], row)["validation"]) or row["method"] not in best:
            best[row["method"]] = row
    assert [row for row in trials if row["chosen"] == "yes"] == list(best.values())
    for row in rows_of(tmp_path / "table.csv"):
        own = best[row["method"]]
        assert (row["last"], row["validation"]) == (own["test"], own["validation"])
        assert row["proximal_weight"] == own["proximal_weight"]
        assert f"{100 * float(own['test']):.2f} ± " in shown
    assert (tmp_path / "table.txt").read_text().split() == shown.split()[:-4]  # results: ..., report: ...
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(page) > 1e6
    names = re.findall(r'<th scope="row" data-value="(.*?)"', page)
    assert [name.split()[0].lower() for name in names[:2]] == [row["method"] for row in rows_of(tmp_path / "table.csv")]
    [said] = [line for line in shown.splitlines() if "too few seeds to say" in line]
    assert f"<li>{said.strip()}</li>" in page  # the page says what the table says
    assert r"\textbf{" in (tmp_path / "table.tex").read_text() and "| **" in (tmp_path / "table.md").read_text()
    assert not (tmp_path / trials[0]["folder"] / "seed-0" / "models").exists()

    # The same command runs nothing again.
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*/*/summary.json")}
    assert succeed(capsys, *arguments) == shown
    assert {path: path.stat().st_mtime_ns for path in before} == before and len(before) == 6


def summary(method, seed, validation, last, **about):
    scores = {"acc_pooled": last, "acc_mean": last, "acc_std": 0.0}
    accuracy = {"received": {"last": scores, "best": scores}}
    about = {"data": "made", "partition": "iid", "clients": 4, "rounds": 2, "bytes_per_participant": 0, **about}
    about |= {"method": method, "seed": seed, "moment": "received", "metric": "accuracy", "seconds": 1.0}
    return RunSummary.from_json({**about, "validation": validation, "accuracy": accuracy})


def trial(method, settings, *values):
    """A trial with a (validation, test) for each seed; None: the seed diverged."""
    runs = [summary(method, seed, *pair) for seed, pair in enumerate(values) if pair is not None]
    return SweepTrial(method, settings, [None] * len(values), runs)


def test_the_choice_never_looks_at_test_data():
    lucky = trial("fedper", {"lr": 1.0}, (0.5, 0.9), (0.5, 0.9))
    sound = trial("fedper", {"lr": 0.1}, (0.8, 0.6), (0.4, 0.6))  # 0.6 in the mean
    equal = trial("fedper", {"lr": 0.2}, (0.6, 0.8), (0.6, 0.8))
    died = trial("fedper", {"lr": 9.0}, (0.9, 0.9), None)
    assert choose_trials([lucky, sound, equal, died]) == {(): {"fedper": sound}}
    assert choose_trials([died]) == {(): {}}
    local = trial("local", {}, (0.1, 0.7), (0.1, 0.7))
    cells = sweeps.sweep_table([lucky, sound, equal, died, local], ["lr"])
    assert [row[:5] for row in cells.rows] == [
        ["Local", "70.00 ± 0.00", "10.00", "-", "1"],
        ["FedPer", "60.00 ± 0.00", "60.00", "0.1", "4"],
    ]
    assert "1 of 5 settings diverged with a seed and could not be chosen: trials.csv" in cells.notes
    assert sweeps.test_values(lucky) == {0: 0.9, 1: 0.9}


def of_numbers(lr, *values):
    """A trial with an RMSE on validation and on test data for each seed."""
    found = trial("fedper", {"lr": lr}, *[None] * len(values))
    for seed, (validation, last) in enumerate(values):
        one = summary("fedper", seed, validation, 0.0)
        scores = MomentScores.from_json({"rmse": last, "rmse_mean": last, "rmse_std": 0.0, "clients": 4})
        headline = {"received": Headline(best=scores, last=scores)}
        found.summaries.append(replace(one, metric="rmse", task="numbers", moments=headline))
    return found


def test_of_errors_the_lowest_is_chosen():
    lucky, sound = of_numbers(1.0, (2.0, 0.5), (2.0, 0.5)), of_numbers(0.1, (1.5, 3.0), (0.5, 3.0))
    assert choose_trials([lucky, sound]) == {(): {"fedper": sound}}
    assert (lucky.rank, sound.rank, lucky.validation) == (-2.0, -1.0, 2.0)
    cells = sweeps.sweep_table([lucky, sound], ["lr"])
    assert cells.rows[0][:5] == ["FedPer", "3.000 ± 0.000", "1.000", "0.1", "2"]
    assert cells.ranked == {"test": -1, "mean": -1}
    assert any(note.startswith("test: RMSE of LM received after the last round") for note in cells.notes)


def test_clients_that_were_held_out_have_a_column():
    one, other = trial("fedper", {"lr": 1}, (0.5, 0.6)), trial("local", {}, (0.4, 0.5))
    assert "LM joined" not in sweeps.sweep_table([one, other], ["lr"]).header
    joined = Headline(last=MomentScores.from_json({"clients": 1, "acc_pooled": 0.25}))
    one.summaries[0] = replace(
        one.summaries[0], moments={**one.summaries[0].moments, "joined": joined}, held_out=["Graz"]
    )
    cells = sweeps.sweep_table([one, other], ["lr"])
    at = cells.header.index("LM joined")
    assert [row[at] for row in cells.rows] == ["25.00", "-"] and "held out with seed 0: Graz" in cells.notes


def test_a_problem_has_a_column_and_a_choice_of_its_own():
    def tried(partition, lr, validation, last):
        return trial("fedper", {"partition": partition, "lr": lr}, (validation, last))

    trials = [
        tried("iid", 1, 0.5, 0.6),
        tried("iid", 2, 0.4, 0.7),
        tried("pat:2", 1, 0.5, 0.8),
        tried("pat:2", 2, 0.6, 0.3),
    ]
    cells = sweeps.sweep_table(trials, ["partition", "lr"])
    assert cells.header == ["method", "partition=iid", "partition=pat:2"] and cells.rows == [
        ["FedPer", "60.00", "30.00"]
    ]
    assert "partition=pat:2, chosen: FedPer lr=2" in cells.notes


@pytest.mark.parametrize(
    ("name", "given", "values"),
    [
        ("lr", ["0.1,0.2", "0.10"], [0.1, 0.2]),
        ("lr", ["0.001..0.1"], Range(0.001, 0.1)),
        ("epochs", ["1..9"], Range(1, 9)),
        ("partition", ["dir:0.1,iid"], ["dir:0.1", "iid"]),
        ("data", ["../here"], ["../here"]),
        ("augment", ["flip,crop:4", "flip"], ["flip,crop:4", "flip"]),
        ("label", ["sick,exang", "stay"], ["sick,exang", "stay"]),
        ("eval_at", ["1,2", "3"], [(1, 2), (3,)]),
        ("batch_norm", [True, False], [True, False]),
    ],
)
def test_commas_separate_values_but_not_those_of_lists(name, given, values):
    assert values_of(known_fields(find("fedavg"))[name], given) == values


def test_a_range_over_a_factor_of_ten_is_logarithmic():
    assert Range(0.01, 0.1).log and Range(1, 20).log
    assert not Range(0.5, 0.9).log and not Range(0, 1).log


def test_a_search_draws_the_same_settings_again_and_within_its_ranges():
    known = known_fields(find("fedavg"))
    values = {"lr": Range(0.001, 0.1), "epochs": Range(1, 3), "optimizer": ["sgd", "adamw"]}

    def drawn(worth):
        search, every = Search(values, known), []
        for _ in range(12):
            asked, settings = search.draw()
            every.append(settings)
            search.tell(asked, worth(settings))
        return every

    rates = drawn(lambda settings: settings["lr"])
    assert rates == drawn(lambda settings: settings["lr"])
    assert rates[:10] == drawn(lambda settings: None)[:10]  # the first ten are drawn blindly
    assert all(0.001 <= each["lr"] <= 0.1 and each["epochs"] in (1, 2, 3) for each in rates)
    assert {each["optimizer"] for each in rates} == {"sgd", "adamw"}


def test_a_search_gives_every_method_the_same_budget_and_goes_on(tmp_path, capsys):
    ranges = ["--lr", "0.01..1", "--proximal-weight", "0..1", "--seeds", "0"]
    arguments = ["sweep", "local", "fedprox", *SMALL, *ranges, "--out", tmp_path]
    succeed(capsys, *arguments, "--search", "1")
    first = rows_of(tmp_path / "trials.csv")
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*/*/summary.json")}
    succeed(capsys, *arguments, "--search", "2")
    rows = rows_of(tmp_path / "trials.csv")
    assert [row["method"] for row in rows] == ["local", "local", "fedprox", "fedprox"]
    assert [row["folder"] for row in rows[::2]] == [row["folder"] for row in first]
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_a_search_on_numbers_chooses_the_lowest_error(tmp_path, capsys):
    x = np.random.default_rng(0).normal(size=(120, 3)).astype(np.float32)
    np.savez(tmp_path / "made.npz", x=x, y=x.sum(1) * 10 + 0.5)
    arguments = ["sweep", "local", "fedavg", "--data", tmp_path / "made.npz", "--clients", "3", "--rounds", "2"]
    arguments += ["--lr", "0.0001..0.2", "--search", "3", "--partition", "iid", "--quiet", "--out", tmp_path / "out"]
    shown = succeed(capsys, *arguments)
    rows = rows_of(tmp_path / "out" / "trials.csv")
    for method in ("local", "fedavg"):
        own = {float(row["validation"]): row for row in rows if row["method"] == method}
        assert len(own) == 3 and [row for row in own.values() if row["chosen"] == "yes"] == [own[min(own)]]
    chosen = rows_of(tmp_path / "out" / "table.csv")
    assert float(chosen[0]["last"]) < float(chosen[1]["last"]) and chosen[0]["rmse_mean"]
    assert "test: RMSE of LM received after the last round" in shown and " below " in shown


def test_a_setting_that_diverges_is_out_and_a_method_without_any_is_an_error(tmp_path, capsys):
    arguments = ["sweep", "fedprox", "local", *SMALL, "--epochs", "1,2", "--out", tmp_path]
    code, out, err = invoke(capsys, *arguments, "--proximal-weight", "0,1e30")
    assert code == 0 and "2 of 6 settings diverged with a seed" in out and err == ""
    code, out, err = invoke(capsys, *arguments, "--proximal-weight", "1e30")
    assert code == 4 and "local" in out
    assert err.startswith("error: every setting of fedprox diverged: fedprox epochs=1 seed 0 (1/4) diverged at round")


def test_an_interrupted_sweep_goes_on(tmp_path, capsys, monkeypatch):
    arguments = ["sweep", "local", *SMALL, "--lr", "0.1,0.2,0.3", "--out", tmp_path]
    train = Simulation.run

    def interrupted(self, *arguments, **keywords):
        if self.config.method.lr == 0.2:
            signal.raise_signal(signal.SIGINT)  # noted, and heeded after the round
        return train(self, *arguments, **keywords)

    monkeypatch.setattr(Simulation, "run", interrupted)
    outcome = invoke(capsys, *arguments)
    assert outcome.code == 130 and outcome.err.endswith("after round 1; run the same command again to continue\n")
    assert [row["lr"] for row in rows_of(tmp_path / "trials.csv")] == ["0.1"] and not (tmp_path / "table.csv").exists()
    monkeypatch.setattr(Simulation, "run", train)
    first = (tmp_path / "local" / "lr=0.1" / "seed-0" / "summary.json").stat().st_mtime_ns
    succeed(capsys, *arguments)
    assert [row["lr"] for row in rows_of(tmp_path / "trials.csv")] == ["0.1", "0.2", "0.3"]
    assert (tmp_path / "local" / "lr=0.1" / "seed-0" / "summary.json").stat().st_mtime_ns == first


def test_every_gpu_gets_its_share(tmp_path, capsys, monkeypatch):
    """The processes are played by calls here; what they leave is kept, and the whole is shown once."""
    started = []

    class Played:
        def __init__(self, words, env):
            started.append((env["CUDA_VISIBLE_DEVICES"], words[-2:], main(words[3:])))

        def wait(self):
            return 0

    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr(subprocess, "Popen", Played)
    monkeypatch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", "4,7")
    done = Simulation.run
    trained = []

    def noted(self, *arguments, **keywords):
        trained.append((os.environ["CUDA_VISIBLE_DEVICES"], len(started), self.config.method.lr))
        return done(self, *arguments, **keywords)

    monkeypatch.setattr(Simulation, "run", noted)
    shown = succeed(capsys, "sweep", "local", *SMALL, "--lr", "0.1,0.2,0.3", "--out", tmp_path)
    assert started == [("4", ["0", "2"], 0), ("7", ["1", "2"], 0)]
    assert [(number, lr) for _, number, lr in trained] == [(0, 0.1), (0, 0.3), (1, 0.2)]
    assert shown.count("Sweep: made") == 1 and len(rows_of(tmp_path / "trials.csv")) == 3


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--lr", "0.1"], "nothing is varied: give an option several values (--lr 0.01,0.05), or use compare"),
        (["--lr", "0.1..1"], "lr = 0.1..1 is a range: --search NUMBER draws from ranges; give values"),
        (["--lr", "1..0.1", "--search", "2"], "a range goes from the lower to the higher number"),
        (["--lr", "0.1..1,2", "--search", "2"], "a range is LOW..HIGH, without further values"),
        (["--clients", "2..5", "--search", "2"], "clients = 2..5 is a range: each of its values is a problem"),
        (["--seed", "1,2"], "seed takes one value in a sweep: --seeds takes several"),
        (["--moment", "received,adapted"], "moment takes one value in a sweep: settings are compared at it"),
        (["--lr", "0.1,0.2", "--validation", "0"], "validation = 0 leaves no samples to choose settings on"),
        (["--lr", "0.1,x"], "lr = 'x' is not allowed: lr takes a number at least 0"),
        (["--head-epochs", "1,2"], "fedavg has no option head_epochs; fedpac and fedrep have"),
        (["--lr", "1,2", "--seed", "1", "--seeds", "1,2"], "--seed and --seeds exclude each other"),
    ],
)
def test_refusals(arguments, line, tmp_path, capsys):
    assert line in refuse(capsys, "sweep", "fedavg", *arguments, "--out", tmp_path)


def test_all_mistakes_are_told_at_once(tmp_path, capsys):
    lines = refusals(capsys, "sweep", "fedavg", "--lrr", "1,2", "--epochs", "1,0", "--seeds", "1,1", "--out", tmp_path)
    assert len(lines) == 3


def test_a_file_whose_name_has_a_comma_is_refused(tmp_path, capsys):
    (tmp_path / "a,b.csv").write_text("")
    line = refuse(capsys, "sweep", "local", "--lr", "1,2", "--data", tmp_path / "a,b.csv", "--out", tmp_path)
    assert "is the name of a file, but its commas separate values: rename the file" in line


@pytest.mark.parametrize("moment", ["adapted", "received", "trained"])
def test_settings_are_chosen_at_the_moment_at_which_methods_are_compared(moment, tmp_path, capsys):
    arguments = ["sweep", "fedavg", *SMALL, "--lr", "0.1,0.5", "--moment", moment, "--out", tmp_path]
    succeed(capsys, *arguments)
    for row in rows_of(tmp_path / "trials.csv"):
        run = tmp_path / row["folder"] / "seed-0"
        last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
        name = "validation" if moment == "received" else f"validation_{moment}"
        assert float(row["validation"]) == last[name]["acc_pooled"]
        assert float(row["test"]) == last[moment]["acc_pooled"]
        assert last[name]["clients"] == 4
    assert moment == "received" or last["validation"] != last[name]


def test_the_commands_of_the_page_are_understood(tmp_path, capsys, monkeypatch):
    """Each gets as far as its data."""

    def reached(*arguments, **keywords):
        raise DataError("got as far as the data")

    monkeypatch.setattr("partwise.studies.seeds.prepare", reached)
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "sweeps.md").read_text(encoding="utf-8").replace("\\\n", " ")
    commands = re.findall(r"^partwise (sweep .*)$", page, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        assert invoke(capsys, *shlex.split(command)) == (3, "", "error: got as far as the data\n")
