"""Fault 74: one run at a time over the silos of a federation."""

import json

import pytest

pytest.importorskip("flwr", reason="pip install 'partwise[flower]'")

from partwise.commands.federating import alone
from partwise.errors import ConfigError
from tests.support.commands import refuse, succeed


def test_fault_74_of_two_launches_the_second_is_refused_and_the_first_goes_on(tmp_path):
    with alone(tmp_path):
        for _ in range(2):
            line = r"runs a launch already: process \d+ on .*; wait for its end"
            with pytest.raises(ConfigError, match=line), alone(tmp_path):
                raise AssertionError("two at once")
    with alone(tmp_path):  # and another one after it
        pass


def test_fault_74_the_command_says_who_runs(tmp_path, capsys):
    (tmp_path / "run.toml").write_text('[method]\nname = "fedavg"\n')
    served = tmp_path / "federation" / "state" / "superlink.json"
    served.parent.mkdir(parents=True)
    served.write_text(json.dumps({"address": "127.0.0.1:9", "plain": True}))
    with alone(tmp_path / "federation"):
        command = ("launch", tmp_path / "run.toml", "--folder", tmp_path / "federation", "--out", tmp_path / "out")
        assert "runs a launch already: process" in refuse(capsys, *command)


def test_fault_75_keys_on_the_command_line(tmp_path, capsys):
    """A silo makes its own; the server takes its public one, makes another silo's, and does not keep that."""
    server, graz = tmp_path / "federation", tmp_path / "graz"
    assert succeed(capsys, "keys", graz, "--own", "Graz").split() == [f"{graz / 'Graz.key'}", f"{graz / 'Graz.pub'}"]
    made = succeed(
        capsys, "keys", server, "--server", "a.example", "--public", f"Graz={graz / 'Graz.pub'}", "--silo", "Linz"
    )
    assert f"{server / 'silos' / 'Graz.pub'}" in made.split() and "Graz.key" not in made
    assert succeed(capsys, "keys", server, "--handed-over", "Linz") == f"removed {server / 'silos' / 'Linz.key'}\n"
    assert "stand alone" in refuse(capsys, "keys", server, "--own", "Graz", "--silo", "Wien")
    assert "NAME=FILE" in refuse(capsys, "keys", server, "--public", "Graz.pub")
