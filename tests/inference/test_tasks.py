"""Models of numbers, labels and places: saved, loaded, asked, exported, joined; classes are in the other files."""

import json
import math
import subprocess
import sys

import numpy as np
import pandas
import pytest
import torch
from torch import Tensor, nn

import partwise
from partwise import Method
from partwise.errors import ConfigError, DataError, PartwiseError
from partwise.inference.exporting import export
from tests.support.commands import refuse, succeed
from tests.support.patients import in_the_run, taken

SETTINGS = {"rounds": 2, "lr": 0.05, "batch": 8, "dtype": "float64", "threads": 1, "join_rounds": 2}
TASKS = ("numbers", "labels", "places")


class EachPixel(nn.Module):
    """Three classes for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU()), nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def stays(seed, rows=40):
    """Patients of one hospital: how long they stay in days, and what that costs."""
    random = np.random.default_rng(seed)
    age, dose = random.integers(20, 90, rows), random.normal(5, 2, rows)
    stay = 0.1 * age + seed + random.normal(0, 1, rows)
    return pandas.DataFrame({"age": age, "dose": dose, "stay": stay, "cost": 1e6 + 5e3 * stay})


def diagnoses(seed, rows=40):
    """Patients of one hospital: two diagnoses, some of them unknown."""
    random = np.random.default_rng(seed)
    age, dose = random.integers(20, 90, rows), random.normal(5, 2, rows)
    late = np.where(dose > 5, 1.0, 0.0)
    late[::7] = np.nan
    return pandas.DataFrame({"age": age, "dose": dose, "sick": 1.0 * (age > 55), "late": late})


def images(seed, rows=24):
    """Images and the class of each of their pixels; -1 has none."""
    random = np.random.default_rng(seed)
    x = random.normal(0, 1, (rows, 1, 4, 5)).astype(np.float32)
    y = np.digitize(x[:, 0], [-0.5, 0.5])
    y[:, 0, 0] = -1
    return x, y


MADE = {"numbers": stays, "labels": diagnoses, "places": images}
OWN = {"numbers": {"label": "stay,cost"}, "labels": {"label": "sick,late"}, "places": {"model": EachPixel}}


def run(task, folder, method="fedper", **settings):
    data = {name: MADE[task](seed) for seed, name in enumerate(("Graz", "Linz", "Wien"))}
    own = {**SETTINGS, **OWN[task], **settings}
    own["model"] = own["model"]() if task == "places" else "auto"
    return partwise.run(method, data=data, out=folder, **own)


def loaded(task, folder, client=None):
    return partwise.load_model(folder, client, model=EachPixel() if task == "places" else None)


def features(task, seed=9):
    """Samples of a hospital without their labels."""
    data = MADE[task](seed)
    return data[0] if task == "places" else data[["dose", "age"]]


@pytest.fixture(scope="module", params=TASKS)
def kept(request, tmp_path_factory):
    """A task, a run of it, and what of its folder the models need, elsewhere."""
    folder = tmp_path_factory.mktemp(request.param)
    result = run(request.param, folder / "run")
    return request.param, result, taken(folder / "run", folder / "elsewhere"), folder / "run"


def test_what_is_loaded_gives_what_the_run_gave(kept):
    task, result, folder, _ = kept
    x, given = in_the_run(result)
    for name, output in given.items():
        model = loaded(task, folder, None if name == "global" else int(name))
        assert torch.equal(model(x), output) and model.task == result.federation.source.task


def test_a_model_of_numbers_predicts_in_the_labels_unit(tmp_path):
    result = run("numbers", tmp_path)
    model, new = partwise.load_model(tmp_path, "Linz"), stays(9)
    trained = torch.cat(list(result.federation.train)).numpy()
    every = pandas.concat([stays(seed) for seed in range(3)])[["stay", "cost"]].to_numpy()[trained]
    standardised = model(model.read(new).x).detach().numpy()
    expected = every.mean(0) + every.std(0) * standardised
    assert np.allclose(model.predict(new), expected, rtol=1e-12, atol=0)
    with pytest.raises(ConfigError, match=r"^a model of numbers \(stay, cost\) gives no probabilities; use predict$"):
        model.predict_proba(new)


def test_one_number_a_sample_is_one_number(tmp_path):
    run("numbers", tmp_path, label="stay", drop="cost")
    assert partwise.load_model(tmp_path, 0).predict(features("numbers")).shape == (40,)


def test_a_model_of_labels_predicts_each_by_its_own_probability(tmp_path):
    run("labels", tmp_path)
    model, new = partwise.load_model(tmp_path, "Linz"), features("labels")
    logits = model(model.read(new).x).detach().numpy()
    assert np.allclose(model.predict_proba(new), 1 / (1 + np.exp(-logits)), rtol=1e-12)
    assert np.array_equal(model.predict(new), (logits > 0).astype(int)) and model.task.names == ("sick", "late")


def test_a_model_of_places_predicts_a_class_for_each(tmp_path):
    run("places", tmp_path)
    model, new = loaded("places", tmp_path, "Linz"), features("places")
    logits = model(torch.from_numpy(new)).detach().numpy()
    assert logits.shape == (24, 3, 4, 5)
    assert np.array_equal(model.predict(new), logits.argmax(1).astype(str))
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert np.allclose(model.predict_proba(new), shares, rtol=1e-12)


# ---- exported

ALONE = """
import json, sys
import numpy as np, onnxruntime
folder, = sys.argv[1:]
session = onnxruntime.InferenceSession(f"{folder}/model.onnx", providers=["CPUExecutionProvider"])
names = [each.name for each in session.get_outputs()]
given = session.run(names, {"x": np.load(f"{folder}/x.npy")})
assert not {"torch", "partwise"} & set(sys.modules)
np.savez(f"{folder}/given.npz", **dict(zip(names, given)))
"""


def test_a_process_without_partwise_predicts_the_same(kept, tmp_path):
    """Also in the unit of the label, whose standardisation is inside; any number of rows."""
    pytest.importorskip("onnxruntime")
    task, _, folder, _ = kept
    model = loaded(task, folder, "Linz")
    export(model, tmp_path, ("pt2", "onnx"))
    x = model.read(features(task)).x.float()
    np.save(tmp_path / "x.npy", x.numpy())
    done = subprocess.run([sys.executable, "-c", ALONE, tmp_path], capture_output=True, text=True, env={})
    assert done.returncode == 0, done.stderr
    program = torch.export.load(tmp_path / "model.pt2").module()
    expected = (
        {"numbers": model.predict(features(task))}
        if task == "numbers"
        else {
            "logits": model(x).detach().numpy(),
            "probabilities": model.predict_proba(features(task)),
        }
    )
    with np.load(tmp_path / "given.npz") as alone:
        for given in (alone, program(x)):
            assert set(given) == set(expected)
            for name, values in expected.items():
                assert np.allclose(np.asarray(given[name]), values, rtol=1e-5, atol=1e-5)


def test_numbers_far_from_zero_are_exported_as_they_are(tmp_path):
    """A cost of a million with a deviation of thousands: in float32 its units would be rounded to sixteenths."""
    run("numbers", tmp_path / "run", dtype="float32")
    model = partwise.load_model(tmp_path / "run", "Linz")
    export(model, tmp_path / "to", ("pt2",))
    x = model.read(features("numbers")).x.float()
    given = torch.export.load(tmp_path / "to" / "model.pt2").module()(x)["numbers"].numpy()
    assert np.allclose(given, model.predict(features("numbers")), rtol=1e-8, atol=0)


def test_an_export_says_what_it_is_and_is_read_again(kept, tmp_path):
    task, _, folder, whole = kept
    export(loaded(task, whole, "Linz"), tmp_path, ("safetensors",))
    again, new = loaded(task, tmp_path, "Linz"), features(task)
    assert np.array_equal(again.predict(new), loaded(task, folder, "Linz").predict(new))
    card = (tmp_path / "README.md").read_text()
    told = {
        "numbers": (
            "- **Numbers** (2): `stay`, `cost`\n",
            "- **RMSE**: ",
            "MAE ",
            "# numbers in the label's own unit\n",
        ),
        "labels": ("- **Labels** (2): `sick`, `late`\n", "- **Mean AUROC**: ", " %", "# 1 or 0 for each label; "),
        "places": ("- **Classes of places** (3): `0`, `1`, `2`\n", "- **Accuracy of places**: ", "Dice ", "# a class "),
    }
    assert all(text in card for text in told[task]), card


# ---- on the command line


def test_predictions_of_numbers_and_labels_are_tables(kept, capsys, tmp_path):
    task, _, folder, _ = kept
    if task == "places":
        pytest.skip("a class for each place is no table")
    features(task).to_csv(tmp_path / "new.csv", index=False)
    shown = succeed(capsys, "predict", folder, tmp_path / "new.csv", "--client", "Linz", "--out", tmp_path / "out.csv")
    assert shown == f"predictions: {tmp_path / 'out.csv'}\n"
    table, model = pandas.read_csv(tmp_path / "out.csv"), loaded(task, folder, "Linz")
    names = ["stay", "cost"] if task == "numbers" else ["sick", "late", "p(sick)", "p(late)"]
    assert [*table] == ["row", *names] and table["row"].tolist() == list(range(40))
    assert np.allclose(table[names[:2]], model.predict(features(task)), rtol=1e-12, atol=0)
    if task == "labels":
        assert np.allclose(table[names[2:]], model.predict_proba(features(task)), atol=1e-6)


def test_the_name_of_a_label_is_no_formula_of_a_spreadsheet(capsys, tmp_path):
    table = {name: stays(seed).rename(columns={"stay": "=1+1", "cost": "row"}) for seed, name in enumerate("AB")}
    partwise.run("local", data=table, label="=1+1", drop="row", out=tmp_path / "run", **SETTINGS)
    features("numbers").to_csv(tmp_path / "new.csv", index=False)
    shown = succeed(capsys, "predict", tmp_path / "run", tmp_path / "new.csv", "--client", "A")
    assert shown.startswith("row,'=1+1\n0,")
    partwise.run("local", data=table, label="row", drop="=1+1", out=tmp_path / "rows", **SETTINGS)
    line = refuse(capsys, "predict", tmp_path / "rows", tmp_path / "new.csv", "--client", "A")
    assert line.startswith("error: two columns would be called 'row'; ")


def test_places_of_images_are_no_table(capsys, tmp_path):
    x, y = images(0)
    x = (40 * x + 120).clip(0, 255).astype(np.uint8)
    partwise.run("fedavg", data={"A": (x, y), "B": (x, y)}, model=EachPixel(), out=tmp_path / "run", **SETTINGS)
    from PIL import Image

    Image.fromarray(x[0, 0]).save(tmp_path / "one.png")
    line = refuse(capsys, "predict", tmp_path / "run", tmp_path / "one.png", "--global", "--trust")
    assert line.startswith("error: a class for each place of a sample is no CSV; in Python, load_model(...).predict")
    assert partwise.load_model(tmp_path / "run", model=EachPixel()).predict(tmp_path / "one.png").shape == (1, 4, 5)


# ---- clients that join


def test_a_newcomer_joins(kept, tmp_path):
    task, _, _, folder = kept
    model = {"model": EachPixel()} if task == "places" else {}
    joined = partwise.join(folder, MADE[task](7), name="Steyr", out=tmp_path, **model)
    [steyr] = joined.newcomers
    assert joined.metric == {"numbers": "rmse", "labels": "mean_auroc", "places": "place_accuracy"}[task]
    assert all(isinstance(value, float) for value in (steyr.joined, steyr.alone))
    assert len(loaded(task, tmp_path, "Steyr").predict(features(task))) == len(features(task))
    assert loaded(task, tmp_path, "Steyr").task == loaded(task, folder, 0).task  # by the run's unit, not by its own


def test_a_newcomers_score_is_in_the_labels_unit(tmp_path):
    """RMSE of the models that it takes away and that the run has for all, by hand on its test samples."""
    frames = [stays(seed) for seed in range(4)]
    x = [frame[["age", "dose"]].to_numpy(np.float32) / 100 for frame in frames]
    y = [frame["stay"].to_numpy() for frame in frames]
    run = {name: (x[n], y[n]) for n, name in enumerate("ABC")}
    partwise.run("fedavg", data=run, out=tmp_path / "run", **SETTINGS)
    whole = np.ceil(y[3])  # alone they would be classes
    new = (x[3][:20], whole[:20]), (x[3][20:], whole[20:])
    joined = partwise.join(tmp_path / "run", new, name="D", split="original")
    [own] = joined.newcomers
    for value, model in ((own.joined, joined.model("D")), (own.all_alike, partwise.load_model(tmp_path / "run"))):
        assert value == pytest.approx(math.sqrt(np.square(model.predict(x[3][20:]) - whole[20:]).mean()), rel=1e-12)


@pytest.mark.parametrize("task", ["numbers", "labels"])
def test_a_newcomer_enters_the_group_that_fits_its_labels(task, tmp_path):
    """Groups are compared by the task's own loss."""
    own = {**SETTINGS, **OWN[task], "coordinators_a": 2, "coordinators_b": 2}
    data = {name: MADE[task](seed) for seed, name in enumerate("ABCD")}
    partwise.run("fed3p2p", data=data, out=tmp_path / "run", **own)
    joined = partwise.join(tmp_path / "run", MADE[task](7), name="Steyr")
    assert "fits its samples best" in joined.how
    assert joined.newcomers[0].joined is not None
    assert joined.model().predict(features(task)).shape == (40, 2)


@pytest.mark.parametrize("task", TASKS)
def test_what_a_client_receives_is_fine_tuned_by_the_tasks_loss(task, tmp_path):
    scores = run(task, tmp_path, method="fedavg", moment="adapted").summary
    assert scores.last("adapted").ranking not in (None, scores.last("received").ranking)


def test_label_columns_in_another_order_are_put_right(tmp_path):
    run("numbers", tmp_path / "run")
    one, two = (
        partwise.join(tmp_path / "run", stays(7), name="Steyr", out=tmp_path / label, label=label)
        for label in ("stay,cost", "cost,stay")
    )
    assert np.array_equal(one.model().predict(stays(9)), two.model().predict(stays(9)))


@pytest.mark.parametrize(
    ("task", "change", "settings", "line"),
    [
        ("numbers", lambda t: t.drop(columns="cost"), {}, "lacks 'cost'; it has 'age', 'dose', 'stay'"),
        (
            "numbers",
            lambda t: t,
            {"label": "stay", "drop": "cost"},
            "'clients' has no label 'cost'; the run knows stay, ",
        ),
        ("numbers", lambda t: t, {"label": "stay,dose", "drop": "cost"}, "lacks 'dose'"),
        (
            "numbers",
            lambda t: t.round(),
            {"task": "classes", "label": "stay", "drop": "cost"},
            "labels that are classes",
        ),
        ("labels", lambda t: t.assign(late=2.0), {}, "label 'late' is 2 in a sample; it must be 0, 1 or unknown"),
        ("labels", lambda t: t.assign(late="yes"), {}, "column 'late': string; --task labels takes numbers alone"),
    ],
)
def test_other_labels_are_refused_in_one_line(task, change, settings, line, tmp_path):
    run(task, tmp_path / "run")
    with pytest.raises(PartwiseError) as refused:
        partwise.join(tmp_path / "run", {"Steyr": change(MADE[task](7))}, out=tmp_path / "to", **settings)
    assert line in str(refused.value) and "\n" not in str(refused.value) and not (tmp_path / "to").exists()


def test_a_class_that_no_place_of_the_run_has_is_refused(tmp_path):
    run("places", tmp_path / "run")
    x, y = images(7)
    with pytest.raises(DataError, match="'data' has the class '3'; the run knows 0, 1, 2"):
        partwise.join(tmp_path / "run", (x, y + 1), model=EachPixel())
    few = partwise.join(tmp_path / "run", (x, y.clip(max=1)), model=EachPixel())
    assert few.newcomers[0].joined is not None


@pytest.mark.parametrize("task", TASKS)
def test_clients_that_are_held_out_join_after_the_last_round(task, tmp_path):
    result = run(task, tmp_path, hold_out=0.4)
    [held_out] = result.summary.held_out
    number = result.federation.names.index(held_out)
    [record] = [each for each in result.client_records if each.client == number]
    assert record.rounds == 0 and record.ranking("joined") is not None


# ---- what a method reads as it predicts


class ByBins(Method):
    """Adds how many training samples of each bin a client has."""

    def predict(self, net, x, me):
        return net(x) + me.bins.sum()


def test_the_bins_that_a_prediction_reads_are_kept(tmp_path):
    result = run("numbers", tmp_path, method=ByBins)
    x, given = in_the_run(result)
    assert torch.equal(partwise.load_model(tmp_path, 0, trust=True)(x), given["0"])


def test_models_of_classes_are_described_as_before(tmp_path):
    """By version 1, which older versions read too; those of other tasks by version 2, which older ones refuse."""
    x, y = images(0)
    partwise.run("fedavg", data={"A": (x, y[:, 1, 1])}, out=tmp_path / "classes", **SETTINGS)
    run("labels", tmp_path / "labels")
    one, two = (json.loads((tmp_path / name / "model.json").read_text()) for name in ("classes", "labels"))
    assert one["version"] == 1 and "own_task" not in one and one["classes"] == ["0", "1", "2"]
    assert two["version"] == 2 and two["own_task"]["names"] == ["sick", "late"] and two["classes"] == []
