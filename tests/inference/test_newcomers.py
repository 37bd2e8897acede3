"""`partwise.join`: whoever was not in training gets a model of its own from the finished run's folder."""

import numpy as np
import pytest
import torch

import partwise
from partwise.errors import ConfigError, DataError
from tests.support.listed import LISTED
from tests.support.parity import CALMER, DEEPER

SETTINGS = {"rounds": 3, "lr": 0.02, "batch": 8, "join_rounds": 2, "threads": 1, "dtype": "float64", "eval_every": 3}


def digits(number, seed):
    random = np.random.default_rng(seed)
    x, y = random.integers(0, 255, (number, 1, 8, 8)).astype(np.uint8), random.integers(0, 4, number)
    return np.clip(x // 3 + 40 * y[:, None, None, None], 0, 255).astype(np.uint8), y


@pytest.mark.parametrize("method", LISTED)
def test_it_joins(method, tmp_path):
    """From the folder alone a newcomer gets a model that another program can load, the same each time."""
    model = "cnn-digits" if method == "fedbn" or method in DEEPER else "mlp-100"
    settings = {**SETTINGS, **CALMER.get(method, {}), "model": model, "batch_norm": method == "fedbn"}
    clients = {name: digits(24 + 4 * number, number) for number, name in enumerate("ABCDEFGH")}
    partwise.run(method, data=clients, out=tmp_path / "run", **{**settings, "rounds": 3})
    x, y = digits(40, 9)
    joined = partwise.join(tmp_path / "run", (x, y), name="Graz")
    [graz] = joined.newcomers
    assert graz.name == "Graz" and graz.train_samples + graz.test_samples == 40
    assert graz.joined is not None and graz.alone is not None and joined.how
    again = partwise.join(tmp_path / "run", (x, y), name="Graz", out=tmp_path / "again")
    assert np.array_equal(joined.model().predict_proba(x), again.model().predict_proba(x))


def table(rows, seed):
    pandas = pytest.importorskip("pandas")
    random = np.random.default_rng(seed)
    label = random.integers(0, 2, rows)
    ages = 50 + 20 * label + random.normal(0, 5, rows)
    return pandas.DataFrame({"age": ages, "dose": random.normal(0, 1, rows), "label": np.array(["ill", "well"])[label]})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("joining") / "run"
    partwise.run("fedper", data={"A": table(60, 0), "B": table(60, 1)}, out=folder, **{**SETTINGS, "lr": 0.1})
    return folder


def test_a_newcomers_samples_are_standardised_as_the_runs_were(run, tmp_path):
    """Its columns may stand in another order, and its ages are measured by the run's scale, not by its own."""
    new = table(40, 5)
    one = partwise.join(run, new, name="Graz", out=tmp_path / "one")
    two = partwise.join(run, new[["label", "dose", "age"]], name="Graz", out=tmp_path / "two")
    plain = new[["age", "dose"]]
    assert np.array_equal(one.model().predict_proba(plain), two.model().predict_proba(plain))
    models = partwise.load_model(run, client="A"), one.model()
    assert torch.equal(*(model.personal.centre for model in models))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            lambda new: new.rename(columns={"dose": "weight"}),
            "lacks 'dose' and has 'weight' besides; the run learned from 'age', 'dose'",
        ),
        (lambda new: new.drop(columns="label"), "lacks 'label'; it has 'age', 'dose'"),
        (lambda new: digits(40, 9), "is no table, but the run learned from a table"),
        (
            lambda new: new.assign(label=new["label"].replace("ill", "dead")),
            "the class 'dead'; the run knows ill",
        ),
    ],
)
def test_other_columns_and_classes_are_refused(run, change, what):
    with pytest.raises(DataError, match=what):
        partwise.join(run, change(table(40, 5)), name="Graz")


def test_a_table_and_images_are_not_taken_for_each_other(run, tmp_path):
    partwise.run("fedper", data={"A": digits(24, 0), "B": digits(24, 1)}, out=tmp_path / "run", **SETTINGS)
    table(40, 5).to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(DataError, match=r"new\.csv' is a table, but the run learned from images"):
        partwise.join(tmp_path / "run", tmp_path / "new.csv")
    with pytest.raises(DataError, match="is a table, but the run learned from images"):
        partwise.join(tmp_path / "run", table(40, 5), name="Graz")
    with pytest.raises(DataError, match=r"new\.csv' is a table; this model takes images"):
        partwise.load_model(tmp_path / "run", "A").predict(tmp_path / "new.csv")
    (tmp_path / "images" / "ill").mkdir(parents=True)
    with pytest.raises(DataError, match="images' is no table, but the run learned from a table"):
        partwise.join(run, tmp_path / "images")


def test_the_column_of_the_runs_clients_is_no_feature_and_a_model_is_not_replaced(tmp_path):
    every = table(80, 0).assign(city=np.repeat(["Graz", "Linz"], 40))
    settings = {**SETTINGS, "lr": 0.1, "partition": "column:city"}
    partwise.run("fedper", data=every, out=tmp_path / "run", **settings)
    new = table(40, 5)
    new.assign(city="Wien").to_csv(tmp_path / "wien.csv", index=False, sep=";")
    joined = partwise.join(tmp_path / "run", tmp_path / "wien.csv")
    other = partwise.join(tmp_path / "run", new, name="Steyr")
    assert np.array_equal(
        joined.model("wien").predict(new[["age", "dose"]]), other.model().predict(new[["age", "dose"]])
    )
    assert np.array_equal(other.model().predict(tmp_path / "wien.csv"), other.model().predict(new[["age", "dose"]]))
    with pytest.raises(ConfigError, match="holds models already; choose another name"):
        partwise.join(tmp_path / "run", tmp_path / "wien.csv")


def test_a_name_that_is_taken_and_a_run_that_is_not_finished_are_refused(run, tmp_path):
    with pytest.raises(ConfigError, match="the run already has a client 'A'"):
        partwise.join(run, table(40, 5), name="A")
    with pytest.raises(DataError, match=r"has no model\.json"):
        partwise.join(tmp_path, table(40, 5), name="Graz")
