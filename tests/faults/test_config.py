"""Faults 1 to 4 and 7: settings that cannot be run are refused in one line, before anything is written."""

import pytest

from partwise.methods import names
from tests.cli.helpers import TINY, refuse


def toml(folder, text):
    path = folder / "settings.toml"
    path.write_text(text)
    return path


def test_fault_01_unknown_method(capsys, tmp_path):
    expected = f"error: unknown method 'fedpox'; did you mean 'fedprox'? known: {', '.join(names())}"
    assert refuse(capsys, "run", "fedpox", *TINY) == expected
    assert refuse(capsys, "run", "--config", toml(tmp_path, 'method = "fedpox"')) == expected
    assert refuse(capsys, "compare", "local", "fedpox", *TINY) == expected
    assert refuse(capsys, "run", "fedct").startswith("error: unknown method 'fedct'; did you mean 'fed")


def test_fault_02_unknown_option(capsys):
    line = refuse(capsys, "run", "fedavg", *TINY, "--lrr", "0.1")
    assert line.startswith("error: unknown option '--lrr'; did you mean '--lr'? known: ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[train]\nlrr = 0.1", "unknown setting 'train.lrr'; did you mean 'train.lr'?"),
        ("lrr = 0.1", "unknown setting 'lrr'; did you mean 'lr'?"),
        ("[method]\nfinetune_epoch = 1", "unknown setting 'finetune_epoch'; did you mean 'finetune_epochs'?"),
        ("[trian]\nlr = 0.1", "unknown table 'trian'; did you mean 'train'?"),
    ],
)
def test_fault_02_unknown_key_in_a_file(text, expected, capsys, tmp_path):
    for command in ("run", "compare"):
        assert expected in refuse(capsys, command, "fedbabu", "--config", toml(tmp_path, text))


VALUES = [
    ("train", "lr", "-1", "lr takes a number at least 0"),
    ("train", "lr", "nan", "lr takes a number at least 0"),
    ("train", "rounds", "0", "rounds takes a whole number at least 1"),
    ("train", "batch", "0", "batch takes a whole number at least 1"),
    ("train", "participation", "1.5", "participation takes a number above 0 and at most 1"),
    ("data", "clients", "0", "clients takes a whole number at least 1"),
    ("data", "partition", "dir:0", "it must be dir:ALPHA with a finite ALPHA > 0"),
]


@pytest.mark.parametrize(("table", "name", "value", "expected"), VALUES)
def test_fault_03_value_out_of_range(table, name, value, expected, capsys, tmp_path):
    settings = [item for pair in zip(TINY[::2], TINY[1::2], strict=True) if pair[0] != f"--{name}" for item in pair]
    out = ("--out", tmp_path / "x")
    on_command_line = refuse(capsys, "run", "fedavg", *settings, f"--{name}", value, *out)
    written = toml(tmp_path, f"[{table}]\n{name} = " + (f'"{value}"' if ":" in value else value))
    in_file = refuse(capsys, "run", "fedavg", *settings, "--config", written, *out)
    for line in (on_command_line, in_file):
        assert name in line and value in line and expected in line
    assert not (tmp_path / "x").exists()


def test_fault_03_no_seeds(capsys, tmp_path):
    for text in ("", ",", "one", "-1"):
        line = refuse(capsys, "compare", "local", *TINY, "--seeds", text)
        assert (
            line == f"error: seeds = '{text}' is not allowed: seeds takes whole numbers separated by commas at least 0"
        )
    assert "did you mean 'run.seed'?" in refuse(
        capsys, "compare", "local", "--config", toml(tmp_path, "[run]\nseeds = []")
    )


@pytest.mark.parametrize(
    "body",
    [
        'share = {"*": ALL, "hed": LOCAL}',
        'def phases(self): return train("body hed")',
        'def adapt(self): return train("hed")',
    ],
)
def test_fault_04_unknown_part(body, capsys, tmp_path):
    method = tmp_path / "mine.py"
    method.write_text(f"from partwise import ALL, LOCAL, Method, train\nclass Mine(Method):\n    {body}\n")
    line = refuse(capsys, "run", method, *TINY, "--out", tmp_path / "x")
    assert "'hed'" in line and "body" in line and "head" in line
    assert not (tmp_path / "x").exists()


def test_fault_07_more_participants_than_clients(capsys, tmp_path):
    line = refuse(capsys, "run", "fedavg", *TINY, "--clients-per-round", "5")
    assert line == "error: clients_per_round = 5 is more than the 4 clients"
    written = toml(tmp_path, "[train]\nclients_per_round = 5")
    assert refuse(capsys, "run", "fedavg", *TINY, "--config", written) == line
