"""Which method for which data: rates are chosen on validation data, for each moment, methods ranked on test data."""

from datetime import UTC, datetime

import pytest

from benchmarks import choosing
from benchmarks.lines import lines
from partwise.papers import recorded
from partwise.papers.recorded import Change, key_of, settings_that_count


def line(method, lr, **scores):
    """Validation and test accuracy at each moment, and those of two clients, from (validation, test, clients)."""
    run = settings_that_count(choosing.config_of("here", method, lr))
    by_moment = zip(*scores.values(), strict=True)
    return {"run": run, "seed": 0, "bytes_per_participant": 2e6} | {
        name: dict(zip(scores, values, strict=True))
        for name, values in zip(("validation", "test", "clients"), by_moment, strict=True)
    }


@pytest.fixture
def two_rates(monkeypatch):
    """All runs of one of two situations; FedPer's better rate on test data is the worse one on validation data."""
    monkeypatch.setattr(choosing, "SITUATIONS", {"here": {}, "there": {"clients": 10}})
    monkeypatch.setattr(choosing, "METHODS", ("fedper",))
    monkeypatch.setattr(choosing, "RATES", (0.1, 0.2))
    alone = {"received": (0.5, 0.5, [0.4, 0.6]), "adapted": (0.5, 0.5, [0.4, 0.6])}
    return [
        line("local", 0.1, **alone),
        line("local", 0.2, **alone),
        line("fedper", 0.1, received=(0.6, 0.9, [0.9, 0.5]), adapted=(0.7, 0.6, [0.7, 0.5])),
        line("fedper", 0.2, received=(0.7, 0.8, [0.9, 0.7]), adapted=(0.6, 0.7, [0.7, 0.7])),
    ]


def test_a_rate_is_chosen_on_validation_data_for_each_moment(two_rates):
    head, _, row = choosing.section(two_rates)
    assert head.startswith("| | received: 1. | received: 2. | received: 3. | adapted: 1. |")
    received = "fedper 80.0 (2 MB, 0% worse off) | local 50.0 (2 MB) | -"
    assert row == f"| here | {received} | fedper 60.0 (2 MB, 50% worse off) | local 50.0 (2 MB) | - |"


def test_a_situation_is_shown_once_every_method_has_every_rate(two_rates):
    assert len([*choosing.section(two_rates[:-1])]) == 2  # the head alone
    elsewhere = {**two_rates[-1], "run": {**two_rates[-1]["run"], "epochs": 3}}  # a run with other settings
    assert len([*choosing.section([*two_rates[:-1], elsewhere])]) == 2


def test_a_rate_at_which_a_seed_diverged_is_not_chosen(two_rates):
    kept, best = two_rates[2], two_rates[3]
    diverged = {"diverged": "after round 3"}
    for rates in ({0.1: [kept, kept], 0.2: [best, diverged]}, {0.1: [kept, kept], 0.2: [best]}):  # or has not ended
        assert choosing.chosen({"fedper": rates}, "received") == {"fedper": [kept, kept]}
    assert choosing.chosen({"fedper": {0.2: [diverged]}}, "received") == {}


def test_runs_of_older_code_make_no_situation_whole(two_rates, monkeypatch):
    change = Change(datetime(2100, 1, 1, tzinfo=UTC), "it is better")
    monkeypatch.setattr(recorded, "changes", lambda: {"fedper": change})
    assert len([*choosing.section(two_rates)]) == 2  # the head alone
    today = [{**each, "date": "2100-01-01T00:00:00+00:00"} for each in two_rates]
    assert len([*choosing.section([*two_rates, *today[2:]])]) == 3


@pytest.mark.parametrize("method", [choosing.REFERENCE, "anti"])
def test_a_run_becomes_a_line_once(method, tmp_path, monkeypatch):
    small = {"data": "digits", "model": "cnn-digits", "clients": 4, "rounds": 2, "eval_every": 2, "train_samples": 32}
    small |= {"finetune_epochs": 1, "dtype": "float32"}  # a CPU takes long for bfloat16
    monkeypatch.setattr(choosing, "CENTRE", {**choosing.CENTRE, **small})
    for _ in range(2):
        choosing.run("dir:5", method, 0.02, [0], tmp_path / "runs.jsonl")
    [made] = lines(tmp_path / "runs.jsonl")
    assert made["run"] == settings_that_count(choosing.config_of("dir:5", method, 0.02))
    assert {*made["validation"]} == {*made["test"]} == {"received", "adapted"}
    assert len(made["clients"]["adapted"]) == 4 and (made["bytes_per_participant"] > 0) == (method == "anti")


def test_a_run_that_diverges_becomes_a_line_that_says_so(tmp_path, monkeypatch):
    small = {"data": "digits", "model": "cnn-digits", "clients": 4, "rounds": 2, "eval_every": 2, "clip_norm": None}
    monkeypatch.setattr(choosing, "CENTRE", {**choosing.CENTRE, **small, "dtype": "float32"})
    for _ in range(2):
        choosing.run("dir:5", "fedavg", 1e30, [0], tmp_path / "runs.jsonl")
    [made] = lines(tmp_path / "runs.jsonl")
    assert "diverged" in made and "test" not in made


def test_every_situation_is_whole_and_no_run_is_there_twice():
    every = lines(choosing.RUNS)
    assert {*choosing.whole_situations(every)} == {*choosing.SITUATIONS}
    assert len({(key_of(each["run"]), each["seed"]) for each in every}) == len(every) == 270
