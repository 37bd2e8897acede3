"""`partwise compare`: who gets which setting, the runs, and the leaderboard."""

import csv
import json
import re
import time
import tomllib
from itertools import chain

import pytest

import partwise
from partwise.errors import ConfigError, Diverged
from partwise.methods import names
from partwise.methods.fedprox import FedProx
from partwise.records.metrics import METRICS_OF, TITLES
from partwise.records.rounds import global_key
from partwise.records.summaries import RunSummary
from partwise.runs.config import make_config
from partwise.runs.simulation import Simulation
from partwise.studies.leaderboard import differences, standings
from tests.support.commands import FEW, invoke, read_json, refuse, succeed


def read_leaderboard(path):
    with open(path / "leaderboard.csv") as file:
        return {row["method"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize("moment", ["received", "adapted"])
def test_two_methods_with_two_seeds(moment, tmp_path, capsys):
    arguments = ["compare", "local", "fedbabu", *FEW, "--seeds", "3,5", "--finetune-epochs", "2", "--out", tmp_path]
    arguments += ["--moment", moment]
    shown = succeed(capsys, *arguments)
    runs = {name: [tmp_path / name / f"seed-{seed}" for seed in (3, 5)] for name in ("local", "fedbabu")}
    board = read_leaderboard(tmp_path)
    for name in runs:
        first, second = (
            read_json(run / "summary.json")["accuracy"][moment]["last"]["acc_pooled"] for run in runs[name]
        )
        assert board[name]["moment"] == moment
        assert float(board[name]["last"]) == pytest.approx((first + second) / 2)
        assert float(board[name]["last_std"]) == pytest.approx(abs(first - second) / 2**0.5)  # divided by n - 1 = 1
        cell = f"{100 * float(board[name]['last']):.2f} ± {100 * float(board[name]['last_std']):.2f}"
        assert cell in shown and cell in (tmp_path / "leaderboard.md").read_text()
        assert cell.replace("±", r"$\pm$") in (tmp_path / "leaderboard.tex").read_text()
    assert shown.startswith(f"Leaderboard: made, 4 clients, dir:0.1, 2 rounds, LM {moment}\n")
    assert board["local"]["method_adapted"] == ""  # FedBABU's own fine-tuning is the one that all may have
    assert board["fedbabu"]["adapted"] == ("" if moment == "received" else board["fedbabu"]["method_adapted"])
    assert board["local"]["bytes_per_participant"] == "0.0" and board["local"]["g_test"] == ""
    accuracies = {name: [read_json(run / "summary.json")["client_scores"] for run in runs[name]] for name in runs}
    lose = [a < b for pair in zip(*accuracies.values(), strict=True) for b, a in zip(*pair, strict=True)]
    assert float(board["fedbabu"]["worse"]) == pytest.approx(sum(lose) / 8) and board["local"]["worse"] == ""
    assert list(board) == sorted(board, key=lambda name: -float(board[name]["last"]))

    written = {name: tomllib.loads((runs[name][0] / "config.toml").read_text()) for name in runs}
    assert [written[name]["train"]["finetune_epochs"] for name in runs] == [2, 2]
    assert [(written[name]["run"]["seed"], written[name]["run"]["moment"]) for name in runs] == [(3, moment)] * 2

    # Finished runs are kept by --resume; without it or --overwrite nothing is touched.
    assert "an earlier comparison" in refuse(capsys, *arguments)
    (runs["local"][1] / "summary.json").unlink()
    code, _, err = invoke(capsys, *arguments, "--resume")
    assert code == 0 and err.splitlines()[1:] == ["goes on after round 2, from a checkpoint"]
    assert read_leaderboard(tmp_path)["fedbabu"] == board["fedbabu"]
    assert read_leaderboard(tmp_path)["local"]["last"] == board["local"]["last"]


def test_the_metric_ranks(tmp_path, capsys):
    shown = succeed(capsys, "compare", "fedavg", "local", *FEW, "--metric", "auroc", "--out", tmp_path)
    board = read_leaderboard(tmp_path)
    assert shown.startswith("Leaderboard by AUROC: made, 4 clients")
    assert "last, best: AUROC of LM received in %" in shown
    assert "AUROC: mean over classes" in " ".join(shown.split())
    for row in board.values():
        assert row["metric"] == "auroc" and row["last"] == row["auroc"] != row["accuracy"]
    assert list(board) == sorted(board, key=lambda name: -float(board[name]["auroc"]))


def test_a_finished_run_of_an_earlier_version_is_shown_without_what_it_lacks(tmp_path, capsys):
    arguments = ["compare", "local", "fedavg", *FEW, "--out", tmp_path]
    succeed(capsys, *arguments)
    later = [name for name in METRICS_OF["classes"][1:] if name != "balanced"]
    for path in tmp_path.glob("*/*/summary.json"):
        old = read_json(path)
        for name in ("restored", "moment", "metric", "positive", "client_scores"):
            del old[name]
        for headline in old["accuracy"].values():
            for name in later:
                headline["last"].pop(name, None)
            for name in METRICS_OF["classes"][1:]:
                headline["last"].pop(global_key(name), None)
        path.write_text(json.dumps(old))
    shown = succeed(capsys, *arguments, "--resume")
    assert "worse" not in shown and read_leaderboard(tmp_path)["fedavg"]["worse"] == ""
    run = ["run", "fedavg", *FEW, "--out", tmp_path / "fedavg" / "seed-0", "--resume"]
    lines = [re.split(" {2,}", line.strip()) for line in succeed(capsys, *run).splitlines()]
    titles, cells = ([line for line in lines if line[0] == first] for first in ("accuracy in %", "LM received"))
    received = dict(zip(chain(*titles), chain(*cells), strict=True))  # of a table that may go on below
    assert {received[TITLES[name].removesuffix(" accuracy")] for name in later} == {"-"}


def test_seeds_come_from_the_options_before_the_file(tmp_path, capsys):
    config = tmp_path / "base.toml"
    config.write_text('data = "made"\n[model]\nmodel = "mlp-100"\n[train]\nrounds = 1\n[run]\nseed = 7\n')
    succeed(capsys, "compare", "local", "--config", config, "--out", tmp_path / "file")
    succeed(capsys, "compare", "local", "--config", config, "--seeds", "8", "--out", tmp_path / "options")
    assert [path.name for path in tmp_path.glob("*/local/*")] == ["seed-7", "seed-8"]


def test_a_diverging_method_does_not_take_the_others_with_it(tmp_path, capsys):
    weight = ("--proximal-weight", "1e30")
    code, out, err = invoke(capsys, "compare", "fedprox", "local", *FEW, *weight, "--out", tmp_path)
    assert code == 4 and err.splitlines()[-1].startswith("error: fedprox seed 0 (1/2) diverged at round")
    assert "local" in out and list(read_leaderboard(tmp_path)) == ["local"]
    assert not (tmp_path / "fedprox" / "seed-0" / "summary.json").exists()


def test_what_rows_differ_in_stands_above_the_table(tmp_path, capsys):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from partwise import ALL, Method, option\n"
        "class Mine(Method):\n"
        "    aggregation = 'uniform'\n"
        "    epochs = 2\n"
        "    depth: int = option(3, 'Only mine.')\n"
    )
    lines = ["epochs: 2 (mine), 1 (others)", "aggregation: uniform (mine), samples (others)"]
    assert above(succeed(capsys, "compare", "local", mine, "fedavg", *FEW, "--out", tmp_path / "out")) == lines
    markdown = (tmp_path / "out" / "leaderboard.md").read_text().splitlines()
    assert markdown[2:5] == [*(f"- {line}" for line in lines), ""] and markdown[5].startswith("| method |")
    assert above(succeed(capsys, "compare", "local", "fedavg", *FEW)) == []


def above(shown):
    """The lines between the title and the table."""
    lines = shown.splitlines()
    return [line for line in lines[1 : [line.split()[:1] for line in lines].index(["method"])] if line.strip()]


def test_methods_without_options_train_alike():
    """A comparison with no options is a fair one: what differs is the method itself."""
    every = [make_config(name, {}) for name in names()]
    assert differences(every) == [
        "aggregation: uniform (CFL, DualFed, FedDyn, SCAFFOLD), samples (others)",
        # options that only have the name in common
        "proximal_weight: 1 (Ditto), 0.01 (FedProx), 15 (pFedMe)",
        "personal_epochs: unset (Ditto), 3 (FedETF)",
        "temperature: 0.2 (DualFed), 0.5 (MOON)",
        "head_epochs: 1 (FedPAC), unset (FedRep)",
    ]


def test_rounds_that_differ_have_a_column(capsys):
    phases = ("--rounds-1", "2", "--rounds-2", "1", "--coordinators-a", "2", "--coordinators-b", "2")
    shown = succeed(capsys, "compare", "fed3p2p", "local", *FEW[:2], "--clients", "4", "--rounds", "2", *phases)
    assert shown.startswith("Leaderboard: made, 4 clients, dir:0.1, LM received\nrounds: 3 (Fed3+2p), 2 (Local)\n")
    cells = {words[0]: words[1] for line in shown.splitlines() if len(words := line.split()) > 2}
    assert (cells["method"], cells["Fed3+2p"], cells["Local"]) == ("rounds", "3", "2")


def test_fault_52_rows_that_lack_seeds_are_marked(capsys, monkeypatch):
    train = Simulation.run

    def one_diverges(self, *arguments):
        if self.config.name == "fedavg" and self.config.run.seed == 1:
            raise Diverged("diverged at round 1")
        return train(self, *arguments)

    monkeypatch.setattr(Simulation, "run", one_diverges)
    code, out, _ = invoke(capsys, "compare", "fedavg", "local", *FEW, "--seeds", "0,1,2", "--engine", "loop")
    cells = {words[0]: words[1] for line in out.splitlines() if len(words := line.split()) > 2}
    assert code == 4 and (cells["method"], cells["FedAvg*"], cells["Local"]) == ("seeds", "2", "3")
    assert "*: not all of the 3 seeds came to an end, so the row is the mean of fewer" in out


def files_below(folder):
    """What every file below a folder holds; of an environment without its time and its command."""
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    texts = {name: path.read_bytes() for name, path in found.items()}
    for name in [name for name in texts if name.endswith("environment.json")]:
        own = json.loads(texts[name])
        texts[name] = {key: value for key, value in own.items() if key not in ("started", "command")}
    return texts


def test_python_writes_what_the_command_writes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)  # no run takes longer than another
    succeed(capsys, "compare", "fedper", "local", *FEW, "--seeds", "0,1", "--out", tmp_path / "command")
    settings = {"data": "made", "model": "mlp-100", "clients": 4, "rounds": 2, "train_samples": 64, "seeds": [0, 1]}
    methods, out = ["fedper", "local"], tmp_path / "python"
    comparison = partwise.compare(methods, out=out, **settings)
    command, python = files_below(tmp_path / "command"), files_below(out)
    assert {"leaderboard.csv", "leaderboard.md", "leaderboard.tex", "local/seed-1/summary.json"} <= set(command)
    assert command == python
    assert [run.config.run.seed for run in comparison.results] == [0, 1, 0, 1]

    # What is there is refused, kept or replaced as by the command.
    told = refuse(capsys, "compare", *methods, *FEW, "--seeds", "0,1", "--out", out)
    with pytest.raises(ConfigError) as refused:
        partwise.compare(methods, out=out, **settings)
    assert told == f"error: {refused.value}" and "holds an earlier comparison" in told
    with pytest.raises(ConfigError, match="holds a run with other settings: lr = "):
        partwise.compare(methods, out=out, resume=True, lr=0.5, **settings)
    with pytest.raises(ConfigError, match="overwrite and resume cannot be combined"):
        partwise.compare(methods, out=out, resume=True, overwrite=True, **settings)
    (out / "local" / "seed-1" / "summary.json").unlink()
    times = {path: path.stat().st_mtime_ns for path in out.glob("*/*/summary.json")}
    resumed = partwise.compare(methods, out=out, resume=True, **settings)
    assert {path: path.stat().st_mtime_ns for path in times} == times and len(times) == 3
    assert [each["last"] for each in resumed.standings] == [each["last"] for each in comparison.standings]
    assert [run.metrics for run in resumed.results] == [run.metrics for run in comparison.results]
    partwise.compare(methods, out=out, overwrite=True, **settings)
    assert files_below(out) == python


def test_what_a_comparison_cannot_be_is_refused_before_its_first_run(tmp_path):
    folder = tmp_path / "out" / "fedavg" / "seed-0"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text("")
    with pytest.raises(ConfigError, match=r"fedavg/seed-0' holds an unfinished run"):
        partwise.compare(["local", "fedavg"], data="made", out=tmp_path / "out")
    assert not (tmp_path / "out" / "local").exists()
    with pytest.raises(ConfigError, match="two methods are called 'fedprox'"):
        partwise.compare([FedProx(proximal_weight=0.1), FedProx(proximal_weight=1.0)], data="made")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["local", "fedper", "--head-epochs", "2"],
            "local and fedper have no option head_epochs; fedpac and fedrep have",
        ),
        (["local", "local"], "two methods are called 'local'; each needs a different name"),
        (["local", "fedct"], "unknown method 'fedct'"),
        (["local", "--lrr", "0.1", "fedper"], "unknown option '--lrr'; did you mean '--lr'?"),
        (["local", "--seed", "1", "--seeds", "1,2"], "--seed and --seeds exclude each other"),
        (["local", "--seeds", "1,1"], "seeds = 1,1 is not allowed: give every seed once"),
        (
            ["local", "fedavg", "--moment", "trained", "--participation", "0.5"],
            "moment = trained measures a round's participants only: let all clients take part",
        ),
    ],
)
def test_refusals(arguments, line, capsys):
    assert line in refuse(capsys, "compare", *arguments)


def summary(method, last, best, received=0.25, seed=0, clients=(), **about):
    def moment(value, highest):
        return {
            "last": {"acc_pooled": value, "acc_mean": value / 2, "acc_std": 0.125, "clients": 4, "auroc": 1 - value},
            "best": {"acc_pooled": highest, "auroc": 1 - highest},
        }

    accuracy = {"received": moment(received, received), "trained": moment(0.5, 0.5), "adapted": moment(last, best)}
    if method == "adapts":
        accuracy["method_adapted"] = moment(1.0, 1.0)
    about = {"method": method, "seed": seed, "bytes_per_participant": 1000.0, "seconds": 2.0, "rounds": 9, **about}
    about |= {"data": "made", "partition": "iid", "clients": 4, "moment": "adapted"}
    return RunSummary.from_json({**about, "accuracy": accuracy, "client_accuracy": list(clients)})


def ranked(runs):
    """The rows of leaderboard.csv."""
    return [standing.as_row() for standing in standings(runs)]


def test_standings_by_hand():
    runs = [summary("keeps", 0.75, 0.75), summary("adapts", 0.75, 1.0), summary("adapts", 0.5, 1.0, seed=1)]
    first, second = ranked(runs)
    assert (second["method"], second["moment"], second["seeds"], second["rounds"]) == ("adapts", "adapted", 2, 9)
    assert (second["last"], second["best"], second["best_std"]) == (0.625, 1.0, 0.0)
    assert second["last_std"] == pytest.approx(0.25 / 2**0.5)
    assert (second["acc_mean"], second["acc_std"], second["trained"], second["seconds"]) == (0.3125, 0.125, 0.5, 2.0)
    assert second["method_adapted"] == 1.0  # beside the ranking, not in it
    assert (first["method"], first["last"], first["last_std"], first["method_adapted"]) == ("keeps", 0.75, None, None)
    assert first["g_test"] is None and first["chosen"] is None and first["worse"] is None  # nobody is called local


def test_a_client_is_compared_with_itself_alone_seed_by_seed():
    rows = ranked(
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
    runs = [summary(method, last, last, metric="auroc") for method, last in (("good", 0.75), ("bad", 0.5))]
    first, second = ranked(runs)
    assert (first["method"], first["last"], first["best"], first["accuracy"]) == ("bad", 0.5, 0.5, 0.5)
    assert (second["method"], second["last"], second["accuracy"]) == ("good", 0.25, 0.75)


def test_what_ranks_clients_is_read_by_its_earlier_name():
    old = summary("local", 0.5, 0.5, clients=[0.25, None])  # as `client_accuracy`
    assert old.client_scores == [0.25, None]
    written = old.as_json()
    assert written["client_scores"] == [0.25, None] and "client_accuracy" not in written
    assert RunSummary.from_json(written).client_scores == old.client_scores
