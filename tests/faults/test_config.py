"""Faults 1 to 4, 7 and 8: settings that cannot be run are refused, all at once, before anything is written."""

import pytest

import partwise
from partwise.errors import ConfigError
from partwise.methods import names
from partwise.runs import toml as files
from tests.support.commands import TINY, refusals, refuse


def toml(folder, text):
    path = folder / "settings.toml"
    path.write_text(text)
    return path


def test_fault_01_unknown_method(capsys, tmp_path):
    expected = "error: unknown method 'fedpox'; did you mean 'fedprox'?"  # where nothing is near, all are named
    assert refuse(capsys, "run", "fedpox", *TINY) == expected
    assert refuse(capsys, "run", "--config", toml(tmp_path, 'method = "fedpox"')) == expected
    assert refuse(capsys, "compare", "local", "fedpox", *TINY) == expected
    assert refuse(capsys, "run", "fedct").startswith("error: unknown method 'fedct'; did you mean 'fed")
    assert refuse(capsys, "run", "xyzzy") == f"error: unknown method 'xyzzy'; known: {', '.join(names())}"


def test_fault_02_unknown_option(capsys):
    line = refuse(capsys, "run", "fedavg", *TINY, "--lrr", "0.1")
    assert line == "error: unknown option '--lrr'; did you mean '--lr'?"


def test_fault_02_option_of_other_methods(capsys):
    have = "no option proximal_weight; ditto, fedprox and pfedme have"
    assert refuse(capsys, "run", "fedper", *TINY, "--proximal-weight", "1") == f"error: fedper has {have}"
    line = refuse(capsys, "compare", "local", "fedper", *TINY, "--proximal-weight", "1")
    assert line == f"error: local and fedper have {have}"
    with pytest.raises(ConfigError, match=f"^fedper has {have}$"):
        partwise.run("fedper", data="made", proximal_weight=1.0)
    assert refuse(capsys, "run", "local", *TINY, "--align").endswith("local has no option align; fedfcd has")


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
    assert in_file.startswith(f"error: '{written}' line 2: ")
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


MISTAKES = """\
method = "fedper"
[data]
clients = 4
partition = "dri:0.1"

[trian]
epochs = 2
[train]
lrr = 0.1
lr = -1
batch = "many"
clients_per_round = 5
"""


def check_beginnings(lines, expected):
    assert [line[: len(begun)] for line, begun in zip(lines, expected, strict=True)] == expected


@pytest.mark.parametrize("command", ["run", "compare", "partition"])
def test_all_mistakes_of_a_file_are_shown_at_once(command, capsys, tmp_path):
    path = toml(tmp_path, MISTAKES)
    expected = [
        f"error: '{path}' line 6: unknown table 'trian'; did you mean 'train'? known: method, data, model",
        f"error: '{path}' line 9: unknown setting 'train.lrr'; did you mean 'train.lr'?",
        f"error: '{path}' line 4: unknown partition 'dri'; did you mean 'dir'?",
        f"error: '{path}' line 10: lr = -1 is not allowed: lr takes a number at least 0",
        f"error: '{path}' line 11: batch = 'many' is not allowed: batch takes a whole number at least 1",
        "error: clients_per_round = 5 is more than the 4 clients",
    ]
    check_beginnings(refusals(capsys, command, "--config", path), expected)


def test_all_mistakes_of_a_command_line_are_shown_at_once(capsys, tmp_path):
    wrong = ("--lrr", "0.1", "--optimizer", "admw", "--momentmu=0.9", "--lr", "-1", "--rounds", "0", "--seeds", "1,x")
    expected = [
        "error: cannot read 'none.toml': No such file or directory",
        "error: unknown method 'fedpr'; did you mean 'fedper'?",
        "error: unknown option '--lrr'; did you mean '--lr'?",
        "error: unknown option '--momentmu'; did you mean '--momentum'?",
        "error: seeds = '1,x' is not allowed: seeds takes whole numbers",
        "error: rounds = '0' is not allowed: rounds takes a whole number at least 1",
        "error: lr = '-1' is not allowed: lr takes a number at least 0",
        "error: unknown optimizer 'admw'; did you mean 'adamw'? known: sgd",
    ]
    check_beginnings(refusals(capsys, "compare", "local", "fedpr", *wrong, "--config", "none.toml"), expected)
    expected = ["error: unknown option '--cleints'; did you mean '--clients'?", "error: unknown option '--plto'"]
    check_beginnings(refusals(capsys, "partition", "--cleints", "3", "--plto", "x.png"), expected)


def test_an_option_wins_over_a_mistake_in_the_file(capsys, tmp_path):
    path = toml(tmp_path, "[train]\nlr = -1\nbatch = 0\n")
    assert refuse(capsys, "run", "fedavg", "--config", path, "--lr", "0.1").startswith(f"error: '{path}' line 3: batch")


LEVEL = files.LARGEST_TOML // 5
BROKEN = {
    "a key twice": ("[train]\nlr = 1\nlr = 2", 3, "train.lr is set twice, first in line 2"),
    "a table twice": ("[train]\nlr = 1\n\n[train]", 4, "train is set twice, first in line 1"),
    "in its table and before": ("lr = 1\n[train]\nlr = 2", 3, "lr is set twice, also in 'FILE' line 1"),
    "a wrong type": ("[train]\n# a rate\nlr = [1]", 3, "lr = [1] is not allowed: lr takes a number at least 0"),
    "a table as a value": ("[data]\nclients = {number = 3}", 2, "clients = {'number': 3} is not allowed"),
    "a value as a table": ("[data]\n[data.clients]\nx = 1", 2, "clients = {'x': 1} is not allowed"),
    "a list of tables": ("[[train]]\nlr = 1", 1, "unknown setting 'train'"),
    "a name that is none": ("[method]\nname = 3", 2, "the method's name must be a text, not 3"),
    "an unknown table": ("[train]\n[train.deeper]\nlr = 1", 2, "unknown setting 'train.deeper'"),
    "half a line": ("[train]\nlr =", 2, "Invalid value"),
    "a text that does not end": ('data = "digits\nlr = 1', 1, "Illegal character"),
    "a long text that does not end": ('lr = 1\ndata = """\n\n', 3, "Unterminated string"),
    "lists in lists": ("\nlr = " + "[" * LEVEL, 2, "nested more than 16 levels deep"),
    "lists in lists, a line each": ("lr = " + "[\n" * LEVEL, 17, "nested more than 16 levels deep"),
    "tables in tables": ("lr = " + "{a = " * (LEVEL - 9), 1, "nested more than 16 levels deep"),
    "a key in a key": ("x = 1\n" + "a." * LEVEL + "a = 1", 2, "nested more than 16 levels deep"),
    "a key in a key in a table": ("x = {" + "a." * LEVEL + "a = 1}", 1, "nested more than 16 levels deep"),
    "a table in a table": ("[" + "a." * LEVEL + "a]", 1, "nested more than 16 levels deep"),
    "ten million bytes": ("a = " + "[" * 10_000_000, 1, "the file is longer than 1000000 bytes"),
    "a million digits": ("\n\nlr = " + "1" * 900_000, 3, "a word of 900000 letters"),
    "twenty thousand tables": ("".join(f"[a{n}]\n" for n in range(20_000)), 1, "unknown table 'a0'"),
    "not UTF-8": (b"[train]\nlr = 1 # na\xefve", 2, "not UTF-8"),
    "zeros": (b"\0" * 100, 1, "Invalid statement"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_fault_08_a_file_that_is_no_configuration_is_refused_with_its_line(name, capsys, tmp_path):
    content, line, words = BROKEN[name]
    path = tmp_path / "settings.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    first = refusals(capsys, "run", "fedavg", "--config", path)[0]
    assert first.startswith(f"error: '{path}' line {line}: {words.replace('FILE', str(path))}")
    assert len(first) < 1000


def test_fault_08_a_folder_is_no_file(capsys, tmp_path):
    line = refuse(capsys, "run", "fedavg", "--config", tmp_path)
    assert line == f"error: cannot read '{tmp_path}': Is a directory"
