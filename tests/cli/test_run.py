"""`partwise run`: its folder, its options, and what it shows."""

import csv
import json
import tomllib

import pytest
import torch
from safetensors import safe_open

import partwise
from partwise.methods import find, names
from partwise.runs.config import known_fields
from partwise.runs.simulation import Simulation
from partwise.studies import seeds
from tests.support.commands import FEW, TINY, invoke, read_json, refuse, succeed, without_seconds

OWN_METHOD = '''"""Pulled: a method in a file of the user's."""
from partwise import ALL, LOCAL, Method, option

class Pulled(Method):
    share = {"body": ALL, "head": LOCAL}
    pull: float = option(0.5, "How strong the pull is.", minimum=0)
    loud: bool = option(False, "Whether it says so.")
'''


KINDS = (("round", ".json"), ("server", ".state"))  # of FedBABU's clients, who keep nothing, there are no rows


def test_a_run_leaves_every_file(tmp_path, capsys):
    """The one list of names: what may appear in a folder is decided here."""
    out = tmp_path / "deep" / "x"
    shown = succeed(capsys, "run", "fedbabu", *TINY, "--validation", "0.2", "--out", out)
    models = [*(f"models/client-00{client}.safetensors" for client in range(4)), "models/global.safetensors"]
    checkpoints = [f"checkpoints/{kind}-00000{n}{end}" for kind, end in KINDS for n in (1, 2)]
    files = [
        *checkpoints,
        "clients.csv",
        "config.toml",
        "environment.json",
        "events.jsonl",
        "leaves.json",
        "ledger.json",
        "metrics.jsonl",
        "model.json",
        *models,
        "setup.json",
        "summary.json",
    ]
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()) == files

    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [1, 2]
    with open(out / "clients.csv") as file:
        clients = list(csv.DictReader(file))
    samples = ("train_samples", "validation_samples", "test_samples")
    assert sum(int(row[name]) for row in clients for name in samples) == 2500
    assert [row["client"] for row in clients] == ["0", "1", "2", "3"]
    ledger = read_json(out / "ledger.json")
    assert sum(ledger["total"]["down"].values()) == sum(row["bytes_down"] for row in rows)
    environment = read_json(out / "environment.json")
    assert environment["partwise"] == partwise.__version__ and environment["notes"] == ["engine: vector on cpu"]

    summary = read_json(out / "summary.json")
    assert summary["accuracy"]["method_adapted"]["last"]["acc_pooled"] == rows[-1]["method_adapted"]["acc_pooled"]
    adapted, chosen = summary["accuracy"]["method_adapted"]["last"]["acc_pooled"], summary["accuracy"]["chosen"]
    assert chosen["acc_pooled"] == rows[chosen["round"] - 1]["received"]["acc_pooled"]
    table = [line.removeprefix(" LM ").split()[:4] for line in shown.splitlines()]
    assert ["method_adapted", f"{100 * adapted:.2f}", f"{100 * adapted:.2f}", "2"] in table
    assert ["chosen", "-", f"{100 * chosen['acc_pooled']:.2f}", str(chosen["round"])] in table
    assert shown.splitlines()[-1] == f"results: {out}"


def test_python_writes_the_same_folder(tmp_path, capsys):
    succeed(capsys, "run", "fedbabu", *FEW, "--out", tmp_path / "shell")
    settings = {"data": "made", "model": "mlp-100", "clients": 4, "rounds": 2, "train_samples": 64}
    result = partwise.run("fedbabu", **settings, out=tmp_path / "python")
    for name in ("config.toml", "clients.csv", "ledger.json"):
        assert (tmp_path / "python" / name).read_bytes() == (tmp_path / "shell" / name).read_bytes()
    for client, model in result.models.items():
        with safe_open(tmp_path / "shell" / "models" / f"client-00{client}.safetensors", "pt") as file:
            about = {"method": "fedbabu", "client": str(client), "partwise": partwise.__version__}
            about |= {"name": str(client), "moment": "method_adapted", "stage": "0"}
            assert file.metadata() == {**about, "format": "partwise models", "version": "1"}
            assert sorted(file.keys()) == sorted(model.tensors)
            assert all(torch.equal(file.get_tensor(name), value) for name, value in model.tensors.items())
    with pytest.raises(partwise.ConfigError, match="finished run"):
        partwise.run("fedbabu", **settings, out=tmp_path / "python")


def test_the_written_config_repeats_the_run_and_options_win_over_it(tmp_path, capsys):
    first, again, other = (tmp_path / name for name in ("first", "again", "other"))
    succeed(capsys, "run", "fedrep", *FEW, "--head-epochs", "2", "--lr", "0.03", "--cap", "--out", first)
    succeed(capsys, "run", "--config", first / "config.toml", "--out", again)
    assert (again / "config.toml").read_bytes() == (first / "config.toml").read_bytes()
    assert without_seconds(again / "metrics.jsonl") == without_seconds(first / "metrics.jsonl")

    succeed(capsys, "run", "--config", first / "config.toml", "--lr", "0.3", "--no-cap", "--out", other)
    written = tomllib.loads((other / "config.toml").read_text())
    assert (written["train"]["lr"], written["data"]["cap"]) == (0.3, False)
    assert written["method"] == {"name": "fedrep", "head_epochs": 2, "body_epochs": 1}


def test_without_out_nothing_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = succeed(capsys, "run", "local", *TINY)
    assert list(tmp_path.iterdir()) == []
    assert shown.splitlines()[-1] == "nothing was written; --out DIR keeps the results"


def test_no_save_models(tmp_path, capsys):
    succeed(capsys, "run", "local", *TINY, "--no-save-models", "--out", tmp_path)
    assert (tmp_path / "summary.json").exists() and not (tmp_path / "models").exists()


def test_a_value_that_does_not_exist_is_an_empty_cell(tmp_path, capsys):
    succeed(capsys, "run", "local", *TINY, "--clients-per-round", "1", "--rounds", "1", "--out", tmp_path)
    with open(tmp_path / "clients.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["method_adapted"] for row in rows] == [""] * 4  # Local does not adapt
    assert [row["trained"] == "" for row in rows] == [row["rounds"] == "0" for row in rows]


def test_quiet_shows_the_result_alone(capsys):
    code, out, err = invoke(capsys, "run", "local", *TINY, "--quiet")
    assert (code, err) == (0, "") and "received" in out


def test_a_users_file_has_options_of_its_own(tmp_path, capsys):
    mine, out = tmp_path / "pulled.py", tmp_path / "x"
    mine.write_text(OWN_METHOD)
    # Before or after the file, and without it where a config file names it.
    succeed(capsys, "run", "--pull", "2", mine, *TINY, "--loud", "--out", out)
    written = tomllib.loads((out / "config.toml").read_text())
    assert written["method"] == {"name": str(mine), "pull": 2.0, "loud": True}
    succeed(capsys, "run", "--config", out / "config.toml", "--pull", "3", "--no-loud", "--out", tmp_path / "y")
    written = tomllib.loads((tmp_path / "y" / "config.toml").read_text())
    assert written["method"] == {"name": str(mine), "pull": 3.0, "loud": False}
    page = " ".join(succeed(capsys, "run", mine, "--help").split())
    assert "How strong the pull is. [a number at least 0; default: 0.5]" in page
    assert "pull takes a number at least 0" in refuse(capsys, "run", mine, *TINY, "--pull", "-1")


OWN_KINDS = """
from partwise import Method, option

class Aligned(Method):
    align: float = option(1.0, "Weight of the alignment, which is a switch of FedFCD.")
    fusion: str = option("none", "Kind of the fusion, which is a switch there too.")
"""


def test_an_option_of_a_users_file_may_be_a_switch_of_a_method_that_is_not_named(tmp_path, capsys):
    mine = tmp_path / "aligned.py"
    mine.write_text(OWN_KINDS)
    lines = {
        "behind": ("run", mine, "--align", "5", "--fusion", "late", *TINY),
        "before": ("run", "--align", "5", "--fusion", "late", mine, *TINY),
    }
    for name, line in lines.items():
        succeed(capsys, *line, "--out", tmp_path / name)
        written = tomllib.loads((tmp_path / name / "config.toml").read_text())
        assert written["method"] == {"name": str(mine), "align": 5.0, "fusion": "late"}
    succeed(capsys, "compare", "local", mine, "--align", "5", *TINY, "--dry-run")
    succeed(capsys, "sweep", mine, "--align", "5,6", *TINY, "--out", tmp_path / "sweep")
    for command, more in {"compare": (), "sweep": ("--out", tmp_path / "both")}.items():
        line = refuse(capsys, command, "fedfcd", mine, "--align", "5", *TINY, *more)
        assert line.startswith("error: --align is a switch of fedfcd and takes a value in aligned; run them one by one")
    succeed(capsys, "compare", "fedfcd", mine, *TINY, "--dry-run")


def test_a_users_file_cannot_take_the_name_of_an_option(tmp_path, capsys):
    mine = tmp_path / "mine.py"
    mine.write_text(OWN_METHOD.replace("pull:", "overwrite:"))
    assert "a setting called 'overwrite'" in refuse(capsys, "run", mine, *TINY)


@pytest.mark.parametrize("name", names())
def test_every_setting_is_an_option_with_its_sentence(name, capsys):
    page = " ".join(succeed(capsys, "run", name, "--help").split())
    for spec in known_fields(find(name)).values():
        assert f"--{spec.name.replace('_', '-')} " in page
        assert spec.metadata["help"] in page


def test_help_without_a_method_shows_what_all_have(capsys):
    page = succeed(capsys, "run", "--help")
    assert "--participation NUMBER" in page and "--head-epochs" not in page
    assert [line for line in page.splitlines() if line in ("Data:", "Model:", "Train:", "Run:")] == [
        "Data:",
        "Model:",
        "Train:",
        "Run:",
    ]
    assert succeed(capsys) == succeed(capsys, "--help")
    assert succeed(capsys, "--version") == f"partwise {partwise.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["run"], "error: no method is named; known: "),
        (["run", "fedavg", "fedper"], "error: run takes one method, not 2; compare takes several"),
        (["run", "fedavg", "--lr"], "error: option '--lr' requires an argument"),
        (["run", "fedavg", "--head-epochs", "2"], "error: fedavg has no option head_epochs; fedpac and fedrep have"),
        (["run", "--config", "nowhere.toml"], "error: cannot read 'nowhere.toml': "),
        (["rnu"], "error: unknown command 'rnu'; did you mean 'run'? known: run, compare, sweep, report, plot, "),
        (["--verison"], "error: unknown option '--verison'; did you mean '--version'? known: --version, --help"),
        (["run", "fedavg", "--optimizer", "admw"], "error: unknown optimizer 'admw'; did you mean 'adamw'? known: sgd"),
        (["run", "fedavg", "--device", "cdua"], "error: unknown device 'cdua'; did you mean 'cuda'? known: auto, cpu"),
        (["run", "fedavg", "--data", "digist"], "error: unknown data set 'digist'; did you mean 'digits'?"),
        (["run", "fedavg", *TINY, "--model", "mpl-100"], "error: unknown model 'mpl-100'; did you mean 'mlp-100'?"),
        (["run", "FedAvg"], "error: unknown method 'FedAvg'; did you mean 'fedavg'?"),
    ],
)
def test_refusals(arguments, line, capsys):
    assert refuse(capsys, *arguments).startswith(line)


def test_an_interrupted_run_exits_with_130_and_leaves_what_it_has(tmp_path, capsys, monkeypatch):
    row = Simulation.record

    def interrupted(self, number, updates):
        if number == 2:
            raise KeyboardInterrupt
        return row(self, number, updates)

    monkeypatch.setattr(Simulation, "record", interrupted)
    code, _, err = invoke(capsys, "run", "local", *TINY, "--out", tmp_path)
    assert code == 130 and err.splitlines()[-1] == "error: interrupted"
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1
    assert not (tmp_path / "summary.json").exists()
    assert len(list((tmp_path / "checkpoints").glob("round-*.json"))) == 1


def test_a_bug_is_one_line_and_debug_shows_the_traceback(capsys, monkeypatch):
    def broken(config, data, **going_on):
        raise ZeroDivisionError("nothing\nto divide by")

    monkeypatch.setattr(seeds, "prepare", broken)
    line = refuse(capsys, "run", "local", *TINY, code=1)
    assert line == "error: ZeroDivisionError: nothing to divide by (--debug shows where)"
    code, _, err = invoke(capsys, "run", "local", *TINY, "--debug")
    assert code == 1 and "Traceback" in err and "in broken" in err
