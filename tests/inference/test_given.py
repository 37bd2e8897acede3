"""Tables whose columns are found by their names, and images as the readers of a run's data would have made them."""

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

import partwise
from partwise.errors import DataError
from tests.support.patients import CITIES, COLUMNS, run_patients


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on a table, its folder, and the table as it was read and as pandas has it."""
    folder = tmp_path_factory.mktemp("patients")
    return run_patients(folder), folder / "run", pandas.read_csv(folder / "patients.csv")


@pytest.fixture(scope="module")
def graz(trained):
    return partwise.load_model(trained[1], client="Graz")


def test_a_client_has_a_name_and_a_number(trained, graz):
    names = trained[0].federation.names
    assert names == CITIES and graz.classes == ("no", "yes")
    other = partwise.load_model(trained[1], client=0)
    assert all(torch.equal(one, two) for one, two in zip(graz.parameters(), other.parameters(), strict=True))
    assert "Graz of fedper" in repr(graz)


def test_a_table_gives_what_the_run_saw(trained, graz):
    result, folder, frame = trained
    inside = result.models[0](result.federation.source.x).softmax(1).detach().numpy()
    features = frame[list(COLUMNS)]
    for given in (folder.parent / "patients.csv", frame, features, features.to_dict("list")):
        assert np.abs(graz.predict_proba(given) - inside).max() < 1e-10
    assert (graz.predict(frame) == np.array(["no", "yes"])[inside.argmax(1)]).all()
    assert 0 < (graz.predict(frame) == "yes").sum() < len(frame)


def test_columns_in_another_order_are_put_right(trained, graz):
    swapped = trained[2][list(COLUMNS)[::-1]]
    assert np.array_equal(graz.predict_proba(swapped), graz.predict_proba(trained[2]))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda t: t.rename(columns={"age": "Age"}), "lacks 'age'; did you mean 'Age'? it has 'Age', 'dose'"),
        (lambda t: t.drop(columns=["dose", "sex"]), "lacks 'dose', 'sex'; it has 'age', 'blood pressure'"),
        (lambda t: t.assign(doses=1), "unknown column 'doses'; did you mean 'dose'?"),
        (lambda t: t.assign(sex="d"), "row 0, column 'sex': unknown text 'd'"),
        (lambda t: t.assign(age="old"), "column 'age': string, but the model learned from numbers"),
        (lambda t: t.assign(age=t["age"].where(t.index != 4)), "row 4, column 'age': empty or not finite"),
        (lambda t: t.iloc[:0], "there are no samples to predict"),
        (lambda t: t.to_numpy(), "this model takes a table"),
        (lambda t: ".", "'.' is not a table (.csv, "),
        (lambda t: __file__, "' is not a table (.csv, "),
    ],
)
def test_another_table_is_refused_in_one_line(change, line, trained, graz):
    with pytest.raises(DataError) as refused:
        graz.predict(change(trained[2][list(COLUMNS)]))
    assert line in str(refused.value) and "\n" not in str(refused.value)


def test_an_empty_text_is_none_of_those_that_are_known(trained, graz):
    row = trained[2][list(COLUMNS)].iloc[:1].assign(sex=None)
    assert graz.read(row).x[0, 2:4].tolist() == [0, 0]
    assert graz.read(row.assign(sex="m")).x[0, 2:4].tolist() == [0, 1]


def test_empty_numbers_get_the_mean_where_the_run_did_so(tmp_path):
    run_patients(tmp_path, "local", missing="mean")
    model = partwise.load_model(tmp_path / "run", "Linz")
    frame = pandas.read_csv(tmp_path / "patients.csv").iloc[:2].assign(age=[None, 30.0])
    mean = model.manifest.standardise.centre[0]
    assert model.read(frame).x[:, 0].tolist() == pytest.approx([mean, 30])


# ---- images


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A run on a folder of coloured pictures of 12x10 pixels, brought to 8x8."""
    folder, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for number in range(40):
        name, bright = (("dark", 60), ("light", 190))[number % 2]
        (folder / "data" / name).mkdir(parents=True, exist_ok=True)
        pixels = np.clip(random.normal(bright, 30, (10, 12, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "data" / name / f"{number:02}.png")
    common = {"data": str(folder / "data"), "image_size": 8, "model": "mlp-100", "partition": "iid", "clients": 2}
    result = partwise.run("fedavg", **common, rounds=2, dtype="float64", out=folder / "run")
    return result, partwise.load_model(folder / "run"), folder / "data"


def test_images_give_what_the_run_saw(pictures):
    result, model, folder = pictures
    x = result.federation.source.x
    expected = model(x).softmax(1).detach().numpy()
    paths = sorted(folder.rglob("*.png"))
    images = [Image.open(path) for path in paths]
    colours_last = x.permute(0, 2, 3, 1).numpy()
    for given in (folder, paths, images, x, x.float(), colours_last):
        assert np.array_equal(model.predict_proba(given), expected)
    assert np.abs(model.predict_proba(paths[3]) - expected[3:4]).max() < 1e-10
    assert set(model.predict(folder)) == {"dark", "light"}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda x: x.float() / 255, "values from 0 to 255, got 0 to"),
        (lambda x: x.float() - 128, "values from 0 to 255, got -"),
        (lambda x: x[:, :2], "images must be (samples, 3, 8, 8), got (40, 2, 8, 8)"),
        (lambda x: [], "there are no samples"),
        (lambda x: "nowhere", "there is no 'nowhere'"),
        (lambda x: 3, "this model takes images"),
        (lambda x: [3], "an image is an array, a PIL image or a path, not a int"),
    ],
)
def test_other_images_are_refused_in_one_line(change, line, pictures):
    with pytest.raises(DataError) as refused:
        pictures[1].predict(change(pictures[0].federation.source.x))
    assert line in str(refused.value) and "\n" not in str(refused.value)


def test_images_of_another_size_are_refused_where_the_run_resized_none(tmp_path):
    partwise.run("fedavg", data="made", model="mlp-100", clients=2, rounds=1, train_samples=16, out=tmp_path / "run")
    model = partwise.load_model(tmp_path / "run")
    Image.new("RGB", (9, 9)).save(tmp_path / "nine.png")
    with pytest.raises(DataError, match=r"nine.png: 9x9 pixels, but the model takes 8x8"):
        model.predict(tmp_path / "nine.png")
    white = model.manifest.input.white
    assert model.read(Image.new("RGB", (8, 8), "white")).x.unique().tolist() == [white]  # in the units of the data


def test_other_samples_are_arrays(tmp_path):
    x, y = torch.randn(40, 2, 5), torch.arange(40) % 2
    partwise.run("fedavg", data=(x, y), clients=2, partition="iid", rounds=1, out=tmp_path)
    model = partwise.load_model(tmp_path)
    assert np.array_equal(model.predict_proba(x.tolist()), model.predict_proba(x))
    with pytest.raises(DataError, match=r"samples must be \(samples, 2, 5\), got \(40, 5, 2\)"):
        model.predict(x.permute(0, 2, 1))
