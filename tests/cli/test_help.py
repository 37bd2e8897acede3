"""The help of every command: it fits on a page's width, and its examples are understood."""

import shlex

import pytest

from partwise.cli import program
from partwise.errors import DataError
from partwise.methods import names
from tests.support.commands import invoke, succeed

PAGES = [[], *([name] for name in program.commands), *(["run", name] for name in names())]


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_help(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    page = succeed(capsys, *words, "--help")
    assert page.startswith(f"Usage: partwise {' '.join(words[:1])}".rstrip())
    assert max(map(len, page.splitlines())) <= 120
    assert not words or "Show the traceback of an error." in page


def examples(page):
    """The command lines below `Examples:`, without what the shell would do with them."""
    for line in page.partition("Examples:\n")[2].splitlines():
        words = shlex.split(line.strip().removeprefix('eval "$(').partition(">")[0].replace(')"', ""), comments=True)
        if words:
            assert words[0] == "partwise"
            yield words[1:]


@pytest.mark.parametrize("name", ["", *program.commands])
def test_the_examples_are_understood(name, capsys, monkeypatch, tmp_path):
    """Each gets as far as its data."""

    def reached(*arguments, **keywords):
        raise DataError("got as far as the data")

    for place in (
        "commands.running.prepare",
        "commands.partitioning.partitioned",
        "commands.serving.RunModels",
        "commands.serving.load_model",
        "commands.federating.read_config",
        "commands.federating.read_silo",
        "commands.reporting.find_runs",
        "federation.transport.superlink.serve_superlink",
        "data.readers.download.download",
        "studies.audit.prepare",
        "studies.seeds.prepare",
        "inference.newcomers.RunModels",
    ):
        monkeypatch.setattr(f"partwise.{place}", reached)
    monkeypatch.chdir(tmp_path)
    found = list(examples(succeed(capsys, *name.split(), "--help")))
    assert 2 <= len(found) <= 4
    for words in found:
        if "--config" in words:  # of an earlier example's run
            (tmp_path / "runs" / "fedper").mkdir(parents=True)
            (tmp_path / "runs" / "fedper" / "config.toml").write_text('method = "fedper"\n')
        code, _, err = invoke(capsys, *words)
        assert (code, err) in ((0, ""), (3, "error: got as far as the data\n")), words


def test_the_help_of_a_schedule_is_that_of_its_host(capsys):
    shown = succeed(capsys, "run", "anti", "--host", "fedrep", "--help")
    assert "--head-epochs" in shown and "--unfreeze" in shown
    assert "--head-epochs" not in succeed(capsys, "run", "anti", "--help")
