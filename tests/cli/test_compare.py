"""`partwise compare`: who gets which setting, the runs, and the leaderboard."""

import csv
import json
import tomllib

import pytest

from partwise.runs.compare import standings
from tests.cli.helpers import TINY, invoke, read_json, refuse, succeed


def read_leaderboard(path):
    with open(path / "leaderboard.csv") as file:
        return {row["method"]: row for row in csv.DictReader(file)}


def test_two_methods_with_two_seeds(tmp_path, capsys):
    arguments = ["compare", "local", "fedbabu", *TINY, "--seeds", "3,5", "--finetune-epochs", "2", "--out", tmp_path]
    shown = succeed(capsys, *arguments)
    runs = {name: [tmp_path / name / f"seed-{seed}" for seed in (3, 5)] for name in ("local", "fedbabu")}
    board = read_leaderboard(tmp_path)
    for name, moment in (("local", "received"), ("fedbabu", "adapted")):
        first, second = (
            read_json(run / "summary.json")["accuracy"][moment]["last"]["acc_pooled"] for run in runs[name]
        )
        assert board[name]["moment"] == moment
        assert float(board[name]["last"]) == pytest.approx((first + second) / 2)
        assert float(board[name]["last_std"]) == pytest.approx(abs(first - second) / 2**0.5)  # divided by n - 1 = 1
        cell = f"{100 * float(board[name]['last']):.2f} ± {100 * float(board[name]['last_std']):.2f}"
        assert cell in shown and cell in (tmp_path / "leaderboard.md").read_text()
    assert board["local"]["bytes_per_participant"] == "0.0" and board["local"]["g_test"] == ""
    accuracies = {name: [read_json(run / "summary.json")["client_accuracy"] for run in runs[name]] for name in runs}
    lose = [a < b for pair in zip(*accuracies.values(), strict=True) for b, a in zip(*pair, strict=True)]
    assert float(board["fedbabu"]["worse"]) == pytest.approx(sum(lose) / 8) and board["local"]["worse"] == ""
    assert list(board) == sorted(board, key=lambda name: -float(board[name]["last"]))

    # A method's own option goes to the methods that have it.
    written = {name: tomllib.loads((runs[name][0] / "config.toml").read_text()) for name in runs}
    assert written["fedbabu"]["method"]["finetune_epochs"] == 2 and written["local"]["method"] == {"name": "local"}
    assert [written[name]["run"]["seed"] for name in runs] == [3, 3]

    # Finished runs are kept by --resume; without it or --overwrite nothing is touched.
    assert "an earlier comparison" in refuse(capsys, *arguments)
    (runs["local"][1] / "summary.json").unlink()
    code, _, err = invoke(capsys, *arguments, "--resume")
    assert code == 0 and {line.split(":")[0] for line in err.splitlines()[1:]} == {"local seed 5 (2/4)"}
    assert read_leaderboard(tmp_path)["fedbabu"] == board["fedbabu"]
    assert read_leaderboard(tmp_path)["local"]["last"] == board["local"]["last"]


def test_the_metric_ranks(tmp_path, capsys):
    shown = succeed(capsys, "compare", "fedavg", "local", *TINY, "--metric", "auroc", "--out", tmp_path)
    board = read_leaderboard(tmp_path)
    assert shown.startswith("Leaderboard by AUROC: made, 4 clients")
    assert "last, best: AUROC in %" in shown and "AUROC: means over classes" in shown
    for row in board.values():
        assert row["metric"] == "auroc" and row["last"] == row["auroc"] != row["accuracy"]
    assert list(board) == sorted(board, key=lambda name: -float(board[name]["auroc"]))


def test_a_finished_run_of_an_earlier_version_is_shown_without_what_it_lacks(tmp_path, capsys):
    arguments = ["compare", "local", "fedavg", *TINY, "--out", tmp_path]
    succeed(capsys, *arguments)
    for path in tmp_path.glob("*/*/summary.json"):
        old = read_json(path)
        for name in ("restored", "metric", "positive", "client_accuracy"):
            del old[name]
        for headline in old["accuracy"].values():
            for name in ("f1", "auroc", "ece", "g_f1", "g_auroc", "g_ece", "g_balanced"):
                headline["last"].pop(name, None)
        path.write_text(json.dumps(old))
    shown = succeed(capsys, *arguments, "--resume")
    assert "worse" not in shown and read_leaderboard(tmp_path)["fedavg"]["worse"] == ""
    run = ["run", "fedavg", *TINY, "--out", tmp_path / "fedavg" / "seed-0", "--resume"]
    [received] = [line.split() for line in succeed(capsys, *run).splitlines() if line.lstrip().startswith("received ")]
    assert received[-4:-1] == ["-", "-", "-"]  # F1, AUROC and ECE


def test_seeds_come_from_the_options_before_the_file(tmp_path, capsys):
    config = tmp_path / "base.toml"
    config.write_text('data = "made"\n[model]\nmodel = "mlp-100"\n[train]\nrounds = 1\n[run]\nseed = 7\n')
    succeed(capsys, "compare", "local", "--config", config, "--out", tmp_path / "file")
    succeed(capsys, "compare", "local", "--config", config, "--seeds", "8", "--out", tmp_path / "options")
    assert [path.name for path in tmp_path.glob("*/local/*")] == ["seed-7", "seed-8"]


def test_a_diverging_method_does_not_take_the_others_with_it(tmp_path, capsys):
    weight = ("--proximal-weight", "1e30")
    code, out, err = invoke(capsys, "compare", "fedprox", "local", *TINY, *weight, "--out", tmp_path)
    assert code == 4 and err.splitlines()[-1].startswith("error: fedprox seed 0 (1/2) diverged at round")
    assert "local" in out and list(read_leaderboard(tmp_path)) == ["local"]
    assert not (tmp_path / "fedprox" / "seed-0" / "summary.json").exists()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["local", "fedper", "--head-epochs", "2"], "unknown setting 'head_epochs'; did you mean 'epochs'?"),
        (["local", "local"], "two methods are called 'local'; each must have a name of its own"),
        (["local", "fedct"], "unknown method 'fedct'"),
        (["local", "--lrr", "0.1", "fedper"], "unknown option '--lrr'; did you mean '--lr'?"),
        (["local", "--seed", "1", "--seeds", "1,2"], "--seed and --seeds exclude each other"),
        (["local", "--seeds", "1,1"], "seeds = 1,1 is not allowed: a seed occurs twice"),
    ],
)
def test_refusals(arguments, line, capsys):
    assert line in refuse(capsys, "compare", *arguments)


def summary(method, last, best, received=0.25, seed=0, clients=()):
    def moment(value, highest):
        return {
            "last": {"acc_pooled": value, "acc_mean": value / 2, "acc_std": 0.125, "clients": 4, "auroc": 1 - value},
            "best": {"acc_pooled": highest, "auroc": 1 - highest},
        }

    accuracy = {"received": moment(received, received), "trained": moment(0.5, 0.5)}
    accuracy["adapted" if method == "adapts" else "received"] = moment(last, best)
    about = {"method": method, "seed": seed, "bytes_per_participant": 1000.0, "seconds": 2.0}
    return {**about, "accuracy": accuracy, "client_accuracy": list(clients)}


def test_standings_by_hand():
    rows = standings([summary("keeps", 0.5, 0.5), summary("adapts", 0.75, 1.0), summary("adapts", 0.5, 1.0, seed=1)])
    first, second = rows
    assert (first["method"], first["moment"], first["seeds"]) == ("adapts", "adapted", 2)
    assert (first["last"], first["best"], first["best_std"]) == (0.625, 1.0, 0.0)
    assert first["last_std"] == pytest.approx(0.25 / 2**0.5)
    assert (first["acc_mean"], first["acc_std"], first["trained"], first["seconds"]) == (0.3125, 0.125, 0.5, 2.0)
    assert (second["method"], second["moment"], second["last"], second["last_std"]) == ("keeps", "received", 0.5, None)
    assert second["g_test"] is None and second["chosen"] is None and second["worse"] is None  # nobody is called local


def test_a_client_is_compared_with_itself_alone_seed_by_seed():
    rows = standings(
        [
            summary("local", 0.5, 0.5, seed=0, clients=[0.5, 0.5, None, 0.5]),
            summary("local", 0.5, 0.5, seed=1, clients=[0.9, 0.9, 0.9, 0.9]),
            summary("keeps", 0.75, 1.0, seed=0, clients=[0.4, 0.6, 0.1, 0.5]),  # one of three is worse off
            summary("keeps", 0.75, 1.0, seed=1, clients=[0.4, 0.6, 0.1, 0.9]),  # three of four
            summary("keeps", 0.75, 1.0, seed=2, clients=[0.4, 0.6, 0.1, 0.9]),  # local did not finish
        ]
    )
    assert {row["method"]: row["worse"] for row in rows} == {"keeps": pytest.approx((1 / 3 + 3 / 4) / 2), "local": None}


def test_standings_by_another_metric():
    runs = [{**summary(method, last, last), "metric": "auroc"} for method, last in (("good", 0.75), ("bad", 0.5))]
    first, second = standings(runs)
    assert (first["method"], first["last"], first["best"], first["accuracy"]) == ("bad", 0.5, 0.5, 0.5)
    assert (second["method"], second["last"], second["accuracy"]) == ("good", 0.25, 0.75)
