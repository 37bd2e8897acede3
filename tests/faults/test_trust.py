"""Faults 54 and 59: a method file is code, and paths mean what they say."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

import partwise
from partwise.cli import program
from partwise.errors import ConfigError
from partwise.runs.config import make_config
from tests.support.commands import TINY, invoke, refuse, succeed

TELLTALE = """
import pathlib
from partwise import Method, option
pathlib.Path(__file__).with_suffix(".executed").touch()

class {name}(Method):
    pull: float = option(0.1, "Weight.")
"""
CONFIGS = {
    "method": '[method]\nname = "others.py"\npull = 0.3\n[data]\ndata = "made"\nclients = 4\n',
    "host": '[method]\nname = "anti"\nhost = "others.py"\npull = 0.3\n[data]\ndata = "made"\nclients = 4\n',
}


@pytest.fixture(params=CONFIGS)
def config(request, tmp_path, monkeypatch):
    """A configuration of somebody else's, which names a file of theirs."""
    monkeypatch.chdir(tmp_path)
    Path("others.py").write_text(TELLTALE.format(name="Others"))
    Path("mine.py").write_text(TELLTALE.format(name="Mine"))
    Path("theirs.toml").write_text(CONFIGS[request.param])
    return request.param


def executed(name="others"):
    """Whether a file was, since this was last asked."""
    mark = Path(f"{name}.executed")
    found = mark.exists()
    mark.unlink(missing_ok=True)
    return found


SAID = "'theirs.toml' names the method file '{}/others.py', which is code"


def test_fault_54_a_method_file_that_nobody_typed_is_told_of_before_it_is_executed(config, capsys, tmp_path):
    said = SAID.format(tmp_path)
    options = ("--config", "theirs.toml", "--model", "mlp-100", "--rounds", "1", "--unfreeze", "0")
    options = options if config == "host" else options[:-2]
    code, _, err = invoke(capsys, "run", *options)
    assert (code, err.splitlines()[0], executed()) == (0, f"{said}; executing it now (--trust hides this line)", True)
    Path("others.py").write_text("raise SystemError")
    _, out, err = invoke(capsys, "run", *options)
    assert out == "" and err.splitlines()[0] == f"{said}; executing it now (--trust hides this line)"  # it came first


def test_fault_54_looking_at_a_configuration_executes_nothing(config, capsys, tmp_path):
    for command in ("run", "compare"):
        line = refuse(capsys, command, "--config", "theirs.toml", "--dry-run")
        assert line == (
            f"error: {SAID.format(tmp_path)}: read it first, then execute it with --trust, or name it as METHOD"
        )
        assert "--lr" in succeed(capsys, command, "--config", "theirs.toml", "--help")
        words = f"partwise {command} --config theirs.toml --pu"
        completing = {"COMP_WORDS": words, "COMP_CWORD": "4", "_PARTWISE_COMPLETE": "bash_complete"}
        assert CliRunner().invoke(program, prog_name="partwise", env=completing).output.strip() == ""
    shown = succeed(capsys, "partition", "--config", "theirs.toml", "--clients", "5")
    assert "5 clients" in shown and not executed()


def test_fault_54_what_is_typed_or_trusted_is_executed_as_it_always_was(config, capsys):
    given = ("run", "--config", "theirs.toml")
    dry = ("--dry-run", "--model", "mlp-100", *(("--unfreeze", "0") if config == "host" else ()))
    assert "--pull" in succeed(capsys, *given, "--trust", "--help") and executed()
    _, out, err = invoke(capsys, *given, "--trust", *dry)
    assert out and "is code" not in err and executed()
    typed = ("--host", "others.py") if config == "host" else ("others.py",)
    assert "is code" not in invoke(capsys, *given, *typed, *dry).err and executed()
    # Where another method is typed, that of the file is not executed at all.
    succeed(capsys, "run", "mine.py", "--config", "theirs.toml", *dry[:3]) if config == "method" else None
    assert not executed() and executed("mine") == (config == "method")


NETWORK = """
import pathlib
from torch import nn
pathlib.Path(__file__).with_suffix(".executed").touch()

def net(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
"""


def test_fault_54_a_network_file_is_code_as_a_method_file_is(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("others.py").write_text(NETWORK)
    Path("theirs.toml").write_text(
        '[method]\nname = "fedavg"\nrounds = 1\n[data]\ndata = "made"\nclients = 4\n[model]\nmodel = "others.py:net"\n'
    )
    said, given = SAID.format(tmp_path).replace("method", "network"), ("run", "--config", "theirs.toml")
    code, _, err = invoke(capsys, *given)
    assert (code, err.splitlines()[0], executed()) == (0, f"{said}; executing it now (--trust hides this line)", True)
    refused = f"error: {said}: read it first, then execute it with --trust, or name it with --model"
    assert refuse(capsys, *given, "--dry-run") == refused
    assert "--lr" in succeed(capsys, *given, "--help")
    succeed(capsys, "partition", "--config", "theirs.toml", "--clients", "5")
    succeed(capsys, *given, "--model", "mlp-100", "--dry-run")  # that of the file is not used
    assert not executed()
    for more in (("--trust", "--dry-run"), ("--model", "others.py:net", "--dry-run"), ("--trust",)):
        assert "is code" not in invoke(capsys, *given, *more).err and executed()


# ------------------------------------------------------------------------------------------------------ 59: paths


def test_fault_59_a_tilde_is_the_home_in_every_path(capsys, tmp_path, monkeypatch):
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(elsewhere)
    (home / "mine.py").write_text(TELLTALE.format(name="Mine"))
    (home / "table.csv").write_text("x,label\n" + "1,a\n2,b\n" * 20)
    data = ("--data", "~/table.csv", "--data-root", "~", "--partition", "iid", "--clients", "2")
    drawn = ("--plot", "~/a.svg", "--save", "~/a.json")
    succeed(capsys, "partition", *data, *drawn)
    data = (*data[:4], "--partition", "file:~/a.json")
    succeed(capsys, "run", "~/mine.py", *data, "--rounds", "1", "--out", "~/x")
    weights = ("--weights", "~/x/models/client-000.safetensors")
    succeed(capsys, "run", "--config", "~/x/config.toml", "--trust", *weights, "--out", "~/y")
    succeed(capsys, "compare", "~/mine.py", *data, "--rounds", "1", "--out", "~/z")
    partwise.run("~/mine.py", data="made", clients=4, rounds=1, out="~/api")
    written = ("a.json", "a.svg", "api/summary.json", "x/summary.json", "y/summary.json", "z/leaderboard.csv")
    assert all((home / name).exists() for name in written)
    assert (home / "x" / "method-copy.py").exists() and list(elsewhere.iterdir()) == []
    with pytest.raises(ConfigError, match="no method file '~nobody"):  # whose home is not known
        make_config("~nobody-of-that-name/mine.py", {})


@pytest.mark.parametrize("command", [("run", "local"), ("compare", "local", "fedavg"), ("reproduce", "fedtc/figure4")])
def test_fault_59_an_empty_folder_is_refused(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    more = TINY if command[0] != "reproduce" else ("--scale", "smoke")
    line = refuse(capsys, *command, *more, "--out", "")
    assert line == "error: out = '' names no folder; '.' is the current one" and os.listdir() == []


def test_fault_59_overwriting_and_going_on_exclude_each_other(capsys, tmp_path):
    for command in (("run", "local"), ("compare", "local", "fedavg")):
        line = refuse(capsys, *command, *TINY, "--out", tmp_path / "x", "--overwrite", "--resume")
        assert line.startswith("error: overwrite and resume cannot be combined")
    with pytest.raises(ConfigError, match="cannot be combined"):
        partwise.run("local", data="made", clients=4, out=tmp_path / "x", overwrite=True, resume=True)
    assert os.listdir(tmp_path) == []
