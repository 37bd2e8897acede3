"""Fault 56: names in other people's files do nothing to a terminal, nor to a spreadsheet."""

import csv

from partwise.errors import one_line, printable
from partwise.records.formats import safe_cell
from tests.support.commands import invoke, succeed

WINDOW = "\x1b]0;owned\x07"  # would change a terminal's title
CLIENTS = (f"a{WINDOW}", "=cmd|' /C calc'!A0", "+1+1", "-2-3", "@SUM(1)", "\u202egnp", "-7")
HARMLESS = ("a\\x1b]0;owned\\x07", "'=cmd|' /C calc'!A0", "'+1+1", "'-2-3", "'@SUM(1)", "\\u202egnp", "-7")


def table(path):
    rows = [
        (number, f"{word}{WINDOW}", client) for client in CLIENTS for number in range(12) for word in ("sick", "well")
    ]
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("x", "label", "client"), *rows])
    return path


def signs(text):
    return [letter for letter in text if not letter.isprintable() and letter != "\n"]


def test_fault_56_names_of_clients_and_classes(capsys, tmp_path):
    path, out = table(tmp_path / "a.csv"), tmp_path / "x"
    options = ("--data", path, "--partition", "column:client", "--rounds", "1")
    for command in (
        ("run", "fedavg", *options, "--out", out),
        ("compare", "local", *options),
        ("run", "fedavg", *options, "--dry-run"),
        ("partition", *options[:4]),
        ("partition", *options[:4], "--json"),
        ("data", path),
        ("data", path, "--json"),
    ):
        code, shown, told = invoke(capsys, *command)
        assert code == 0 and signs(shown + told) == [], command
    assert "\\x1b]0;owned" in succeed(capsys, "partition", *options[:4])
    with open(out / "clients.csv", newline="") as file:
        assert sorted(row["name"] for row in csv.DictReader(file)) == sorted(HARMLESS)
    assert signs((out / "clients.csv").read_text()) == []


def test_fault_56_names_in_refusals(capsys, tmp_path):
    path = tmp_path / f"b{WINDOW}.csv"
    path.write_text(f"x{WINDOW},y\n1,a\n2,b\n")
    assert signs(succeed(capsys, "data", path)) == []
    for command in (("run", "fedavg", "--data", path), ("run", "fedavg", "--data", f"{path}x")):
        code, shown, told = invoke(capsys, *command)
        assert code and shown == "" and signs(told) == [] and told.count("\n") == 1


def test_what_is_printable_stays_as_it_is():
    assert printable("größe Λ 中 =1") == "größe Λ 中 =1"
    assert printable("a\u00a0b\tc") == "a b c" and one_line("a\nb\x00") == "a b\\x00"
    assert [safe_cell(value) for value in (None, -3, 0.5, "-inf", "-1e3", "plain")] == (
        [None, -3, 0.5, "'-inf", "-1e3", "plain"]
    )
