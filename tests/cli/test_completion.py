"""Completion: of commands, methods, options and their values, by click's own scripts."""

import os
import shutil
import subprocess
import sys

import pytest

from partwise.data import CATALOGUE, RULE_KINDS
from partwise.methods import names
from partwise.network.models import NETWORKS
from tests.support.commands import completed, refuse, succeed


def test_commands_and_shells():
    known = ["run", "compare", "sweep", "report", "plot", "reproduce", "audit", "predict", "export", "join", "methods"]
    known += ["data", "partition"]
    assert completed() == [*known, "keys", "serve", "node", "launch", "completion"]
    assert completed(begun="com") == ["compare", "completion"]
    assert completed("completion", begun="") == ["bash", "zsh", "fish"]


def test_methods_and_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("fed_mine.py", "notes.txt", "sub/deeper.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert completed("run") == [*names(), "fed_mine.py"]
    assert completed("compare", "local", begun="fedb") == ["fedbabu", "fedbn"]
    assert completed("methods", begun="fed_") == ["fed_mine.py"]
    assert completed("run", begun="sub/") == ["sub/deeper.py"]
    assert completed("run", begun="no") == ["file"]


@pytest.mark.parametrize(
    ("option", "begun", "expected"),
    [
        ("--optimizer", "", ["sgd", "adamw"]),
        ("--engine", "v", ["vector"]),
        ("--data", "", list(CATALOGUE)),
        ("--data", "./", ["file"]),
        ("--model", "", ["auto", "cnn", *NETWORKS]),
        ("--partition", "", ["auto", *RULE_KINDS]),
        ("--device", "c", ["cpu", "cuda"]),
        ("--config", "", ["file"]),
        ("--out", "", ["file"]),
        ("--lr", "", []),
    ],
)
def test_values(option, begun, expected):
    assert completed("run", "fedavg", "--rounds", "3", option, begun=begun) == expected


def test_options_of_the_method_and_of_a_users_file(tmp_path):
    assert {"--lr", "--cap", "--no-cap", "--dry-run"} <= set(completed("run", "fedrep", begun="--"))
    assert completed("run", "fedrep", begun="--head") == ["--head-epochs"]
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from partwise import Method, option\nclass Mine(Method):\n    pull: float = option(1.0, 'A pull.')\n"
    )
    assert completed("run", str(mine), begun="--pu") == ["--pull"]
    assert completed("partition", begun="--pa") == ["--partition"]
    assert completed("data", "cifar10", begun="--d") == ["--download", "--data-root", "--debug"]


def test_mistakes_on_the_line_do_not_stop_it(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_this_name")
    for words in (["fedpox"], [str(broken)], ["fedavg", "--lrr", "3"], ["--config", str(tmp_path / "none.toml")]):
        assert completed("run", *words, begun="--eval-e") == ["--eval-every"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell(shell, capsys, tmp_path):
    script = succeed(capsys, "completion", shell)
    assert "_PARTWISE_COMPLETE" in script and f"{shell}_complete" in script
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([shell, "-n", tmp_path / "script"], check=True)


def test_another_shell_is_refused(capsys):
    assert (
        refuse(capsys, "completion", "bsh") == "error: unknown shell 'bsh'; did you mean 'bash'? known: bash, zsh, fish"
    )
    assert refuse(capsys, "completion") == "error: missing argument 'bash|zsh|fish'"


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_asks_the_program_itself(capsys, tmp_path):
    """The script, loaded into a shell, calls `partwise` and takes over what it says."""
    (tmp_path / "partwise").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m partwise "$@"\n')
    (tmp_path / "partwise").chmod(0o755)
    ask = "COMP_WORDS=(partwise run fedavg --optimizer ''); COMP_CWORD=4; _partwise_completion partwise"
    script = f'{succeed(capsys, "completion", "bash")}\n{ask}\necho "${{COMPREPLY[@]}}"'
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, check=True)
    assert (done.stdout, done.stderr) == ("sgd adamw\n", "")
