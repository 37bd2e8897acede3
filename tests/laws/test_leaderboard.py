"""The leaderboards: one moment a column, rates chosen on validation data, and runs of older code do not count."""

import json
import shlex
from datetime import UTC, datetime

import pytest

from benchmarks import leaderboard
from benchmarks.lines import lines
from partwise.papers import recorded
from partwise.papers.recorded import Change, command_of, key_of, settings_that_count

TODAY, YESTERDAY = "2026-02-02T12:00:00+00:00", "2026-02-01T12:00:00+00:00"
MIDNIGHT = datetime(2026, 2, 2, tzinfo=UTC)


def line(config, date=TODAY, validation=None, **accuracy):
    """Make the line of a run with two clients: the first is at each moment as good as all, the second half as good."""
    run, seed = settings_that_count(config), config.run.seed
    made = {"run": run, "seed": seed, "command": command_of(run, seed), "test": {"method_adapted": None} | accuracy}
    made |= {"validation": {"adapted": validation}, "clients": {at: [each, each / 2] for at, each in accuracy.items()}}
    made |= {"bytes_per_participant": 2e6, "g_test": None, "training_flops": 3e15}
    return made | {"device": "abacus", "torch": None, "commit": "c0ffee", "date": date}


def untuned(method, seed, **accuracy):
    return line(leaderboard.config_of(method, leaderboard.RATES[0], seed), **accuracy)


def rows_of(text, board):
    """Return the rows of a board's table as cells by the names of columns, by method."""
    section = text.partition(f"## {board}\n")[2].partition("\n## ")[0]
    table = section[section.index("| method") :].partition("\n\n")[0].splitlines()
    head, _, *body = [[cell.strip() for cell in each.strip("|").split("|")] for each in table]
    return {cells[0]: dict(zip(head, cells, strict=True)) for cells in body}


@pytest.fixture(autouse=True)
def three_methods(monkeypatch):
    """No method has changed, and there are three."""
    monkeypatch.setattr(recorded, "changes", dict)
    monkeypatch.setattr(leaderboard, "changes", dict)
    monkeypatch.setattr(leaderboard.methods, "names", lambda: ["fedavg", "fedper", "local"])


def change(monkeypatch, **changes):
    for module in (recorded, leaderboard):
        monkeypatch.setattr(module, "changes", lambda: changes)


def test_a_column_is_one_moment_and_adapted_ranks():
    text = leaderboard.page(
        [
            untuned("local", 0, received=0.6, adapted=0.7),
            untuned("fedper", 0, received=0.9, adapted=0.65),
            untuned("fedavg", 0, received=0.4, adapted=0.8, method_adapted=0.75),
        ]
    )
    rows = rows_of(text, "Untuned")
    assert [*rows] == ["FedAvg", "Local", "FedPer"]
    moments = ("LM received", "LM adapted", "own adaptation", "worse off, received", "worse off, adapted")
    assert [rows["FedAvg"][each] for each in moments] == ["40.00", "80.00", "75.00", "100%", "0%"]
    assert [rows["FedPer"][each] for each in moments] == ["90.00", "65.00", "-", "0%", "100%"]
    assert [rows["Local"][each] for each in moments] == ["60.00", "70.00", "-", "-", "-"]
    assert rows["FedPer"]["MB"] == "2" and rows["FedPer"]["PFLOP"] == "3" and rows["FedPer"]["seeds"] == "1"
    assert "3 runs on abacus; torch: unknown; commits: c0ffee." in text
    assert "**To be run**: FedAvg, FedPer, Local." in text  # two seeds each
    assert "**To be run**: all 3 methods." in text.partition("## Tuned")[2]
    assert "**Ranked**: 3 of 3 methods.\n" in text.partition("## Tuned")[0]
    assert "**Ranked**: 0 of 3 methods. This board is empty" in text.partition("## Tuned")[2]


def test_the_tuned_rate_is_chosen_on_validation_data():
    """The best on test data is another one; at the untuned rate both boards show the same run."""
    first, better, best = leaderboard.rates("fedper")
    tried = [
        line(leaderboard.choosing_config("fedper", first), validation=0.5, received=0.1, adapted=0.1),
        line(leaderboard.choosing_config("fedper", better), validation=0.7, received=0.1, adapted=0.1),
        line(leaderboard.choosing_config("fedper", best), validation=0.6, received=0.9, adapted=0.9),
    ]
    ended = [
        line(leaderboard.config_of("fedper", rate, 0), received=0.2, adapted=accuracy)
        for rate, accuracy in {first: 0.3, better: 0.4, best: 0.5}.items()
    ]
    assert "## Tuned" in (text := leaderboard.page([*tried, *ended]))
    assert (own := rows_of(text, "Tuned")["FedPer"])["rate"] == f"{better:g}" and own["LM adapted"] == "40.00"
    assert rows_of(text, "Untuned")["FedPer"]["LM adapted"] == "30.00"
    tried[1]["validation"]["adapted"] = 0.4
    tried[2]["validation"]["adapted"] = 0.3
    assert rows_of(leaderboard.page([*tried, *ended]), "Tuned")["FedPer"]["LM adapted"] == "30.00"
    found = leaderboard.today(tried[:2])
    assert leaderboard.rate_of("tuned", "fedper", found) is None  # until all three are tried
    del tried[0]["test"]
    tried[0]["diverged"] = "after round 3"
    assert leaderboard.rate_of("tuned", "fedper", leaderboard.today(tried)) == better


def test_runs_of_older_code_do_not_count(monkeypatch):
    older = [untuned("fedper", seed, date=YESTERDAY, received=0.5, adapted=0.6) for seed in leaderboard.SEEDS]
    older += [untuned("fedavg", 0, date=None, received=0.5, adapted=0.6)]
    change(monkeypatch, fedper=Change(MIDNIGHT, "it is better"))
    text = leaderboard.page(older)
    assert [*rows_of(text, "Untuned")] == ["FedAvg"] and "**To be run**: FedAvg, FedPer, Local." in text
    assert "| FedPer | 50.00 → to be run | 60.00 → to be run | - | c0ffee | it is better |" in text
    text = leaderboard.page([*older, untuned("fedper", 0, received=0.7, adapted=0.8)])
    assert rows_of(text, "Untuned")["FedPer"]["seeds"] == "1"
    assert "| FedPer | 50.00 → 70.00 | 60.00 → 80.00 | - | c0ffee | it is better |" in text


def test_moments_that_did_not_change_still_count(monkeypatch):
    every = [untuned("fedavg", 0, date=YESTERDAY, received=0.5, adapted=0.6, method_adapted=0.7)]
    every += [untuned("local", 0, received=0.4, adapted=0.4)]
    change(monkeypatch, fedavg=Change(MIDNIGHT, "it is better", moments=["adapted", "method_adapted"]))
    text = leaderboard.page(every)
    own = rows_of(text, "Untuned")["FedAvg"]
    assert [own[each] for each in ("LM received", "LM adapted", "own adaptation")] == [
        "50.00",
        "to be run",
        "to be run",
    ]
    assert (own["worse off, received"], own["worse off, adapted"]) == ("0%", "to be run")
    assert "**To be run**: FedAvg, FedPer, Local." in text
    assert "**Ranked**: 1 of 3 methods." in text  # FedAvg has no LM adapted of today's code
    assert "| FedAvg | 50.00 → 50.00 | 60.00 → to be run | 70.00 → to be run |" in text


def test_both_boards_of_a_method_are_run_once(tmp_path, monkeypatch, capsys):
    """Three rates are tried with a fifth held out; the three seeds then train on all samples."""
    small = {"data": "digits", "model": "cnn-digits", "clients": 4, "rounds": 2, "eval_every": 2, "train_samples": 64}
    monkeypatch.setattr(leaderboard, "SETTINGS", leaderboard.SETTINGS | small | {"finetune_epochs": 1})
    monkeypatch.setattr(leaderboard.methods, "names", lambda: ["fedavg"])
    runs, page = tmp_path / "runs.jsonl", tmp_path / "page.md"
    asked = ["leaderboard", "fedavg", "--device", "cpu", "--commit", "c0ffee", "--runs", str(runs), "--page", str(page)]
    for _ in range(2):
        monkeypatch.setattr("sys.argv", asked)
        leaderboard.main()
    made = lines(runs)
    tried = [each for each in made if each["validation"]]
    assert len(tried) == len(leaderboard.RATES) and {each["run"]["validation"] for each in tried} == {0.2}
    best = max(tried, key=lambda each: each["validation"]["adapted"])["run"].get("lr", leaderboard.RATES[0])
    assert len(made) == len(tried) + (3 if best == leaderboard.RATES[0] else 6)
    assert {each["commit"] for each in made} == {"c0ffee"} and all(each["date"] and each["torch"] for each in made)
    assert len({(key_of(each["run"]), each["seed"]) for each in made}) == len(made)
    assert rows_of(page.read_text(), "Tuned")["FedAvg"]["rate"] == f"{best:g}"
    assert rows_of(page.read_text(), "Untuned")["FedAvg"]["seeds"] == "3"
    monkeypatch.setattr("sys.argv", [*asked[:2], "--runs", str(runs)])
    with pytest.raises(SystemExit):
        leaderboard.main()
    assert "a line names its commit" in capsys.readouterr().err


def test_the_page_is_what_its_script_makes(monkeypatch):
    monkeypatch.undo()
    made = leaderboard.page(lines(leaderboard.RUNS))
    assert leaderboard.PAGE.read_text(encoding="utf-8") == made, (
        "make it again: python -m benchmarks.leaderboard --table-only"
    )


def test_no_run_is_there_twice_and_each_has_its_command(monkeypatch):
    monkeypatch.undo()
    every = leaderboard.today(lines(leaderboard.RUNS)).values()
    assert len(every) == len([each for each in lines(leaderboard.RUNS) if not leaderboard.changed(each)])
    for each in every:
        assert shlex.split(each["command"])[2] == each["run"]["method"]
        assert each["commit"] and json.loads(key_of(each["run"])) == each["run"]
