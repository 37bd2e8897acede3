"""What runs write down so that a page can be made of them."""

import csv
import json

from tests.cli.helpers import FEW, read_json, succeed


def test_who_has_and_who_shares_what_and_what_leaves(tmp_path, capsys):
    few = [*FEW[: FEW.index("--rounds")], *FEW[FEW.index("--rounds") + 2 :]]
    succeed(capsys, "run", "pacfl", *few, "--rounds", "1", "--out", tmp_path)
    setup = read_json(tmp_path / "setup.json")
    with open(tmp_path / "clients.csv", encoding="utf-8", newline="") as file:
        samples = [int(row["train_samples"]) for row in csv.DictReader(file)]
    assert [sum(row) for row in setup["counts"]] == samples
    assert setup["clients"] == ["0", "1", "2", "3"]
    [stage] = setup["stages"]
    assert (stage["rounds"], {*stage["share"].values()}) == (1, {"GROUP"})
    leaves = read_json(tmp_path / "leaves.json")
    assert leaves["head"]["numbers"] == 100 * len(setup["classes"]) + len(setup["classes"])
    assert leaves["directions"]["classes"] == "a row for each"
    # Directions are sent before the first round alone: who goes on knows of them all the same.
    succeed(capsys, "run", "pacfl", *few, "--rounds", "2", "--out", tmp_path, "--resume")
    assert read_json(tmp_path / "leaves.json") == leaves
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert ["groups" in row for row in rows] == [True, False]  # only where they are others than before
    assert len(rows[0]["groups"]) == 4


def test_nothing_leaves_a_client_that_is_alone(tmp_path, capsys):
    succeed(capsys, "run", "local", *FEW, "--out", tmp_path)
    assert read_json(tmp_path / "leaves.json") == {}
    assert "groups" not in json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
