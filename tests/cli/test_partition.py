"""`partwise partition`: the division that a run with the same settings uses."""

import json

import numpy as np
import pytest

from partwise.runs.config import make_config
from partwise.runs.partitioning import partitioned
from tests.support.commands import refuse, succeed

SETTINGS = ("--data", "made", "--clients", "4", "--partition", "pat:3", "--seed", "5", "--validation", "0.2")


def test_it_is_the_division_of_a_run(capsys):
    federation = partitioned(
        make_config("local", {"data": "made", "clients": 4, "partition": "pat:3", "seed": 5, "validation": 0.2}), None
    )
    about = json.loads(succeed(capsys, "partition", *SETTINGS, "--json"))
    assert about["counts"] == federation.class_counts().T.tolist()
    assert about["validation"] == [len(own) for own in federation.validation]
    rows = [line.split()[:5] for line in succeed(capsys, "partition", *SETTINGS).splitlines()]
    for client in range(4):
        sizes = [about[name][client] for name in ("train", "validation", "test")]
        assert [str(client), *map(str, sizes), "3"] in rows


def test_settings_of_a_run_and_files(capsys, tmp_path):
    config, saved, picture = tmp_path / "config.toml", tmp_path / "partition.json", tmp_path / "picture.svg"
    config.write_text(make_config("fedrep", {"data": "made", "clients": 4, "partition": "pat:3"}).to_toml())
    shown = succeed(capsys, "partition", "--config", config, "--seed", "5", "--save", saved, "--plot", picture)
    assert "pat:3" in shown and "<svg" in picture.read_text()
    again = json.loads(succeed(capsys, "partition", "--data", "made", "--partition", f"file:{saved}", "--json"))
    first = json.loads(succeed(capsys, "partition", "--config", config, "--seed", "5", "--json"))
    assert again["counts"] == first["counts"] and again["test"] == first["test"]


@pytest.mark.parametrize(
    ("y", "columns", "name", "meaning"),
    [
        (np.arange(40) / 8, ["bins", "largest", "bin"], "0.5 to 1", "bin: a range of the first number"),
        (np.tile([[0.0, 1], [1, 0]], (20, 1)), ["patterns", "largest", "pattern"], "y1", "pattern: the labels"),
        (np.tile([[0, 0, 1], [2, 1, 2]], (20, 1)), ["classes", "largest", "class"], "2", "class: the most frequent"),
    ],
    ids=["numbers", "labels", "places"],
)
def test_labels_that_are_no_classes_are_divided_by_their_bins(capsys, tmp_path, y, columns, name, meaning):
    np.savez(tmp_path / "made.npz", x=np.zeros((40, 1, 3), np.float32), y=y)
    given = ("partition", "--data", tmp_path / "made.npz", "--clients", "2", "--partition", "iid")
    header, *_ = [line.split() for line in succeed(capsys, *given).splitlines() if line.split()[:1] == ["client"]]
    assert header == ["client", "train", "validation", "test", *columns]
    assert meaning in " ".join(succeed(capsys, *given).split())
    about = json.loads(succeed(capsys, *given, "--json"))
    assert name in about["classes"] and about["task"] in ("numbers", "labels", "places")


def test_refusals(capsys, tmp_path):
    assert "unknown data set 'digist'" in refuse(capsys, "partition", "--data", "digist")
    assert "unknown option '--rounds'" in refuse(capsys, "partition", "--rounds", "3")
    assert "cannot draw" in refuse(capsys, "partition", "--data", "made", "--plot", tmp_path / "picture.txt")
    assert list(tmp_path.iterdir()) == []
