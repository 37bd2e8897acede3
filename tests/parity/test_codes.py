"""Texts of tables as codes that a network looks up: the codes themselves, all engines, and saved models."""

from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

import partwise
from partwise import ConfigError
from partwise.data import load
from partwise.data.readers.tables import CODED_TEXTS, TEXTS
from partwise.errors import DataError
from partwise.federation.protocol.launch import Members, federated
from partwise.network import models
from partwise.runs.config import make_config
from tests.support.files import refusal
from tests.support.runs import simulate
from tests.support.states import distance

COLUMNS = {"categories": "codes", "missing": "mean"}


def table(rows: int = 90) -> pandas.DataFrame:
    """Rows whose class is told by a text and a number; some cells are empty."""
    at = np.arange(rows)
    frame = pandas.DataFrame(
        {
            "age": 30.0 + at * 7 % 50,
            "drug": np.array(["a", "b", "c", "d"])[at % 4],
            "dose": at % 3 * 0.5,
            "ward": np.array(["x", "y"])[at // 2 % 2],
            "client": np.array(["Graz", "Linz", "Wien"])[at * 11 % 3],
            "label": (at % 4 < 2) ^ (at % 3 == 0),
        }
    )
    frame["label"] = frame["label"].astype(int)
    frame.loc[5, "drug"] = frame.loc[6, "ward"] = None
    frame.loc[7, "age"] = np.nan
    return frame


@pytest.fixture
def path(tmp_path: Path) -> str:
    table().to_csv(tmp_path / "rows.csv", index=False)
    return str(tmp_path / "rows.csv")


def test_a_text_becomes_its_number_and_an_empty_one_0(path):
    source, frame = load(path, **COLUMNS), table()
    assert source.model == "tabular-embedding" and source.code_sizes == (5, 3)
    assert source.shape == {"codes": (2,), "row": (2,)} and source.feature_names == ("age", "dose")
    drug = [0 if at == 5 else 1 + "abcd".index(text) for at, text in enumerate(frame["drug"].fillna("a"))]
    ward = [0 if at == 6 else 1 + "xy".index(text) for at, text in enumerate(frame["ward"].fillna("x"))]
    assert source.x["codes"].T.tolist() == [drug, ward]
    assert source.x["row"].nan_to_num().tolist() == torch.tensor(frame[["age", "dose"]].fillna(0).values).tolist()
    plain = load(path, missing="mean")
    assert plain.model == "tabular" and plain.shape == (8,)


@pytest.mark.parametrize("method", ["fedper", "fedtc"])
def test_all_engines_end_equal(path, method):
    settings = {"rounds": 2, "lr": 0.1, "momentum": 0.5, "dropout": 0.2, "data": path, "clients": 3, **COLUMNS}
    loop, vector, workers = (
        simulate_table(method, engine=engine, **settings) for engine in ("loop", "vector", "workers")
    )
    assert vector.notes[0] == "engine: vector on cpu"
    assert distance(loop, vector) < 1e-10
    assert distance(loop, workers) == 0


def simulate_table(method, **settings):
    """A run in float64 on the table's own clients."""
    source = load(settings.pop("data"), **COLUMNS)
    federation = partwise.partition(source, "auto", None, seed=0)
    return simulate(method, None, federation, **settings)


def test_numbers_are_standardised_by_the_training_rows(path):
    run = partwise.run("fedavg", data=path, rounds=1, seed=0, **COLUMNS)
    source, train = run.federation.source, torch.cat([*run.federation.train])
    plain = partwise.run("fedavg", data=path, rounds=1, seed=0, missing="mean").federation.source
    assert source.centre == plain.centre[:1] + plain.centre[5:6] and source.scale == plain.scale[:1] + plain.scale[5:6]
    assert torch.allclose(source.x["row"][train].mean(0), torch.tensor(source.centre), atol=1e-4)


def test_a_saved_model_codes_new_rows_as_its_run_did(path, tmp_path):
    run = partwise.run("fedper", data=path, rounds=1, out=tmp_path / "run", **COLUMNS)
    model = partwise.load_model(tmp_path / "run", client="Graz")
    rows = table(8).drop(columns=["label", "client"])
    number = run.federation.names.index("Graz")
    with torch.no_grad():
        theirs = run.models[number](load_rows(run)).softmax(1).numpy()
    assert np.allclose(model.predict_proba(rows), theirs, atol=1e-6)  # an empty age is the mean in both
    new = rows[:1].assign(drug="never seen")
    empty = rows[:1].assign(drug=None)
    assert np.array_equal(model.predict_proba(new), model.predict_proba(empty))


def load_rows(run) -> dict[str, torch.Tensor]:
    """The first 8 rows as the run has them."""
    return {name: own[:8] for name, own in run.federation.source.x.items()}


def test_more_texts_may_be_codes_than_columns(tmp_path):
    frame = pandas.DataFrame({"text": [f"t{at}" for at in range(TEXTS + 1)] * 2, "label": [0, 1] * (TEXTS + 1)})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    assert "51 different texts, more than 50" in refusal(DataError, lambda: load(str(tmp_path / "rows.csv")))
    source = load(str(tmp_path / "rows.csv"), categories="codes")
    assert source.shape == {"codes": (1,)} and source.code_sizes == (TEXTS + 2,) and not source.standardise
    partwise.run("fedavg", data=source, clients=2, partition="iid", rounds=1)
    assert CODED_TEXTS > TEXTS


def test_sizes():
    """8 features for each code of 5 and 3; then 2 numbers and 2 x 8 features, 64, 32 and the classes."""
    parts = models.build("tabular-embedding", {"row": (2,), "codes": (2,)}, 3, code_sizes=(5, 3))
    count = sum(value.numel() for value in parts.tensors().values())
    assert count == 8 * (5 + 3) + (2 + 2 * 8 + 1) * 64 + 65 * 32 + 33 * 3


def test_what_does_not_fit_is_refused_in_one_line(path, tmp_path):
    assert "no feature is a text; leave it out" in refusal(
        DataError, lambda: load(path, drop=("drug", "ward"), **COLUMNS)
    )
    assert "categories: applies only to tables" in refusal(ConfigError, lambda: load("made", categories="codes"))
    with pytest.raises(ConfigError, match="takes tables whose texts are codes; set categories = codes"):
        partwise.run("fedavg", data=path, model="tabular-embedding", rounds=1, missing="mean")
    with pytest.raises(ConfigError, match="which no built-in network takes"):
        partwise.run("fedavg", data=path, model="tabular", rounds=1, **COLUMNS)
    with pytest.raises(ConfigError, match=r"^categories = codes works in simulations only so far"):
        federated(make_config("fedavg", {"categories": "codes"}), Members(None, "run", None, []))
