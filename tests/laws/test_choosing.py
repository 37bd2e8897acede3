"""Which method for which data: rates are chosen on validation data, for each moment, methods ranked on test data."""

import pytest

from benchmarks import choosing


def line(method, lr, seed=0, **scores):
    """Validation and test accuracy at each moment, and those of two clients, from (validation, test, clients)."""
    made = {"situation": "here", "method": method, "lr": lr, "seed": seed, "bytes_per_participant": 2e6}
    by_moment = zip(*scores.values(), strict=True)
    return made | {
        name: dict(zip(scores, values, strict=True))
        for name, values in zip(("validation", "test", "clients"), by_moment, strict=True)
    }


LINES = [
    line("local", 0.1, received=(0.5, 0.5, [0.4, 0.6]), adapted=(0.5, 0.5, [0.4, 0.6])),
    line(
        "fedper", 0.1, received=(0.6, 0.9, [0.9, 0.5]), adapted=(0.7, 0.6, [0.7, 0.5])
    ),  # best on test data, not chosen
    line("fedper", 0.2, received=(0.7, 0.8, [0.9, 0.7]), adapted=(0.6, 0.7, [0.7, 0.7])),
]


def test_a_rate_is_chosen_on_validation_data_for_each_moment(monkeypatch):
    monkeypatch.setattr(choosing, "SITUATIONS", {"here": {}, "there": {}, "nowhere": {}})
    monkeypatch.setattr(choosing, "METHODS", ("fedper",))
    there = {**LINES[0], "situation": "there"}  # where not all methods were run
    head, _, row = choosing.section([*LINES, there])
    assert head.startswith("| | received: 1. | received: 2. | received: 3. | adapted: 1. |")
    received = "fedper 80.0 (2 MB, 0% worse off) | local 50.0 (2 MB) | -"
    assert row == f"| here | {received} | fedper 60.0 (2 MB, 50% worse off) | local 50.0 (2 MB) | - |"


def test_a_rate_at_which_a_seed_diverged_is_not_chosen():
    again = line("fedper", 0.1, seed=1, received=(0.6, 0.6, [0.6, 0.6]), adapted=(0.6, 0.6, [0.6, 0.6]))
    assert {each["lr"] for each in choosing.chosen([*LINES[1:], again], "received")} == {0.1}


@pytest.mark.parametrize("method", [choosing.REFERENCE, "anti"])
def test_a_run_becomes_a_line_once(method, tmp_path, monkeypatch):
    small = {"data": "digits", "model": "cnn-digits", "clients": 4, "rounds": 2, "eval_every": 2, "train_samples": 32}
    small |= {"finetune_epochs": 1, "dtype": "float32"}  # a CPU takes long for bfloat16
    monkeypatch.setattr(choosing, "CENTRE", {**choosing.CENTRE, **small})
    for _ in range(2):
        choosing.run("dir:5", method, 0.02, [0], tmp_path / "runs.jsonl")
    [made] = choosing.lines(tmp_path / "runs.jsonl")
    assert (made["situation"], made["method"], made["lr"]) == ("dir:5", method, 0.02)
    assert {*made["validation"]} == {*made["test"]} == {"received", "adapted"}
    assert len(made["clients"]["adapted"]) == 4 and (made["bytes_per_participant"] > 0) == (method == "anti")
