"""What the README shows works as it stands there."""

import re
import shlex
from pathlib import Path

from partwise.cli import main

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_example_in_python():
    (example,) = [block for block in PYTHON if "import partwise\n" in block]
    names: dict = {}
    exec(example.replace("rounds=50", "rounds=2").replace('data="digits"', 'data="made"'), names)
    assert names["model"](names["result"].simulation.federation.source.x[:5]).shape == (5, 10)


def test_the_method_of_ones_own(tmp_path, monkeypatch, capsys):
    (example,) = [block for block in PYTHON if block.startswith("# pulled.py")]
    (tmp_path / "pulled.py").write_text(example, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"^partwise (run pulled.py .*)$", README, re.MULTILINE)
    assert main([*shlex.split(command), "--rounds", "1", "--clients", "4"]) == 0
    assert "pulled" in capsys.readouterr().out


def test_the_commands_one_after_the_other(tmp_path, monkeypatch):
    commands = re.findall(r"^partwise ([^#\n]*?)\s*(?:#.*)?$", README, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    for command in (command for command in commands if "pulled.py" not in command):
        small = [] if command.startswith("methods") else ["--rounds", "1", "--clients", "4", "--quiet"]
        assert main([*shlex.split(command), *small]) == 0, command
    assert (tmp_path / "runs" / "again" / "summary.json").exists()
