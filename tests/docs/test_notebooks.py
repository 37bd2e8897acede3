"""The notebooks run, cell after cell, as plain Python."""

import json
from pathlib import Path

import matplotlib
import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def carried_out(path: Path) -> dict:
    """Return the names that a notebook's cells leave."""
    names: dict = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    return names


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")


def test_the_first_comparison():
    names = carried_out(EXAMPLES / "first_comparison.ipynb")
    assert len(names["comparison"].to_pandas()) == 4
    assert 0 <= names["fedper"].worse_off(names["alone"]) < 1


def test_a_method_of_ones_own(capsys):
    carried_out(EXAMPLES / "own_method.ipynb")
    assert "unknown part 'neck'; known: body, head" in capsys.readouterr().out


def test_own_data():
    names = carried_out(EXAMPLES / "own_data.ipynb")
    assert names["result"].summary.last("received").accuracy > 0.8
    assert np.array_equal(
        names["model"].predict(names["pd"].DataFrame({"sex": ["m"], "dose": [8.0], "age": [80]})), ["yes"]
    )


def test_notebooks_are_stored_without_output():
    assert [path.stem for path in NOTEBOOKS] == ["first_comparison", "own_data", "own_method"]
    for path in NOTEBOOKS:
        assert not any(cell.get("outputs") for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]), path
