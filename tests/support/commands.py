"""Command lines carried out in this process."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.shell_completion import BashComplete

from partwise.cli import main, program

TINY = ("--data", "made", "--model", "mlp-100", "--clients", "4", "--rounds", "2")
FEW = (*TINY, "--train-samples", "64")  # where nothing depends on how many there are: two steps a round


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


def invoke(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Outcome:
    """What a command line returns and prints."""
    capsys.readouterr()
    code = main(list(map(str, arguments)))
    return Outcome(code, *capsys.readouterr())


def succeed(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The standard output of a command line that must succeed."""
    outcome = invoke(capsys, *arguments)
    assert outcome.code == 0, outcome.err
    return outcome.out


def refusals(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 2) -> list[str]:
    """The lines with which a command line must be refused; there is nothing else, and no traceback."""
    outcome = invoke(capsys, *arguments)
    assert outcome.code == code, outcome
    assert outcome.out == ""
    lines = outcome.err.splitlines()
    assert all(line.startswith("error: ") for line in lines)
    return lines


def refuse(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 2) -> str:
    """The one line with which a command line must be refused."""
    [line] = refusals(capsys, *arguments, code=code)
    return line


def without_seconds(metrics: Path) -> list[str]:
    """The lines of metrics.jsonl up to their last field, the only one that may differ between equal runs."""
    lines = metrics.read_text().splitlines()
    assert all(list(json.loads(line))[-1] == "seconds" for line in lines)
    return [line[: line.rindex(', "seconds"')] for line in lines]


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def completed(*words, begun=""):
    """What is offered after some words; the shell's own completion of files shows as `file`."""
    found = BashComplete(program, {}, "partwise", "_PARTWISE_COMPLETE").get_completions(list(words), begun)
    return [item.value if item.type == "plain" else item.type for item in found]
