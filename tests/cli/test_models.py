"""`partwise predict`, `partwise export` and `partwise join`."""

import csv
import io
import json

import numpy as np
import pandas
import pytest

import partwise
from tests.support.commands import refuse, succeed
from tests.support.patients import CITIES, COLUMNS, run_patients


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("patients")
    run_patients(folder)
    frame = pandas.read_csv(folder / "patients.csv")
    frame[list(COLUMNS)[::-1]].to_csv(folder / "new.csv", index=False)
    return folder


def test_predictions_are_a_table(folder, capsys):
    model = partwise.load_model(folder / "run", "Linz")
    expected = model.predict_proba(folder / "new.csv")
    shown = succeed(capsys, "predict", folder / "run", folder / "new.csv", "--client", "Linz")
    rows = list(csv.DictReader(io.StringIO(shown)))
    assert [*rows[0]] == ["row", "class", "p(no)", "p(yes)"] and [row["row"] for row in rows[:2]] == ["0", "1"]
    assert [row["class"] for row in rows] == model.predict(folder / "new.csv").tolist()
    assert np.abs(np.array([float(row["p(yes)"]) for row in rows]) - expected[:, 1]).max() < 1e-6
    said = succeed(capsys, "predict", folder / "run", folder / "new.csv", "--client", "1", "--out", folder / "out.csv")
    assert said == f"predictions: {folder / 'out.csv'}\n" and (folder / "out.csv").read_text() == shown


def test_one_model_is_named(folder, capsys):
    for options in ((), ("--client", "Graz", "--global")):
        line = refuse(capsys, "predict", folder / "run", folder / "new.csv", *options)
        assert line == "error: name one model: --client NUMBER or NAME, or --global"
    line = refuse(capsys, "export", folder / "run", "--all", "--global", "--to", folder / "no")
    assert line == "error: --all takes every model; leave out --client and --global"
    line = refuse(capsys, "export", folder / "run", "--global", "--to", folder / "no", "--format", "onxx")
    assert line.startswith("error: unknown format 'onxx'; did you mean 'onnx'?")
    line = refuse(capsys, "export", folder / "run", "--global", "--to", folder / "run")
    assert line == f"error: '{folder / 'run'}' holds a run; export into a folder of its own"


def test_every_model_goes_into_a_folder_that_load_model_reads(folder, capsys, tmp_path):
    said = succeed(capsys, "export", folder / "run", "--all", "--format", "safetensors", "--to", tmp_path)
    assert said == f"models: {tmp_path} (4)\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["client-000", "client-001", "client-002", "global"]
    for client, city in enumerate(CITIES):
        here = tmp_path / f"client-00{client}"
        one, other = (partwise.load_model(place, city) for place in (here, folder / "run"))
        assert np.array_equal(*(model.predict_proba(folder / "new.csv") for model in (one, other)))
        card = (here / "README.md").read_text()
        assert f"# Client {client}, {city}\n" in card and "`age`, `dose`, `sex`, `blood pressure`" in card
        texts = card + (here / "model.json").read_text()
        assert [name for name in CITIES if name in texts] == [city]  # of other clients not even the names
    with pytest.raises(
        partwise.ConfigError,
        match="unknown client 'Wien'; known: Graz; clients are called by name or by number, 0 to 2",
    ):
        partwise.load_model(tmp_path / "client-000", "Wien")


def test_a_card_says_how_good_the_model_is(folder, capsys, tmp_path):
    succeed(capsys, "export", folder / "run", "--client", "Graz", "--format", "safetensors", "--to", tmp_path)
    row = next(csv.DictReader(io.StringIO((folder / "run" / "clients.csv").read_text())))
    accuracy, samples = 100 * float(row["received"]), row["test_samples"]
    card = (tmp_path / "README.md").read_text()
    assert (
        f"- **Accuracy**: {accuracy:.2f} % on the client's {samples} test samples (received); balanced accuracy "
        in card
    )
    assert "fedper" in card and "license" in card and 'load_model(".", client=0)' in card


def test_a_card_says_how_good_the_global_model_is(capsys, tmp_path):
    run_patients(tmp_path, "fedavg")
    succeed(capsys, "export", tmp_path / "run", "--global", "--format", "safetensors", "--to", tmp_path / "to")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    accuracy = 100 * summary["accuracy"]["global"]["last"]["p_test"]["acc_pooled"]
    card = (tmp_path / "to" / "README.md").read_text()
    assert f"- **Accuracy**: {accuracy:.2f} % on all clients' test samples; balanced accuracy " in card


def test_a_card_names_a_method_file_and_not_where_it_lies(capsys, tmp_path):
    own, run = tmp_path / "ours.py", tmp_path / "run"
    own.write_text('from partwise import ALL, Method\n\n\nclass Ours(Method):\n    share = {"*": ALL}\n')
    succeed(capsys, "run", own, "--data", "digits", "--clients", "2", "--rounds", "1", "--out", run)
    to = ("--to", tmp_path / "to", "--trust")
    succeed(capsys, "export", run, "--client", "0", "--format", "safetensors", *to)
    card = (tmp_path / "to" / "README.md").read_text()
    assert "- **Method**: ours (" in card and str(tmp_path) not in card


def test_a_folder_holds_one_model(folder, capsys, tmp_path):
    def export(client, *options):
        return "export", folder / "run", "--client", client, "--format", "safetensors", "--to", tmp_path, *options

    succeed(capsys, *export("Graz"))
    (tmp_path / "model.onnx").write_bytes(b"")  # as if in this format too
    succeed(capsys, *export("Graz"))  # the same again
    assert "model.onnx" in (tmp_path / "README.md").read_text()
    line = refuse(capsys, *export("Linz"))
    assert line == f"error: '{tmp_path}' holds another model or its card; choose another folder, or --overwrite"
    succeed(capsys, *export("Linz", "--overwrite"))
    files = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert files == ["README.md", "model.json", "models/client-001.safetensors"]
    (tmp_path / "README.md").write_text("notes of mine")
    assert "holds another model or its card" in refuse(capsys, *export("Linz"))


def test_all_formats_of_one_model(folder, capsys, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    succeed(capsys, "export", folder / "run", "--client", "Graz", "--to", tmp_path)
    model = partwise.load_model(tmp_path, "Graz")
    x = model.read(folder / "new.csv").x
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    axes = {each.name: each.shape for each in (*session.get_inputs(), *session.get_outputs())}
    assert axes == {"x": ["batch", 5], "logits": ["batch", 2], "probabilities": ["batch", 2]}
    card = (tmp_path / "README.md").read_text()
    features = ", ".join(f"`{name}`" for name in ("age", "dose", "sex=f", "sex=m", "blood pressure"))
    assert f"Columns in this order: {features}.\n" in card and "Classes in this order: `no`, `yes`.\n" in card
    assert "`x`, float32 (batch, 5), any number of rows; raw, for they are standardised inside" in card
    [probabilities] = session.run(["probabilities"], {"x": x.numpy()})
    assert np.abs(probabilities - model.predict_proba(folder / "new.csv")).max() < 1e-5


def test_whoever_joins_is_told_how_long_each_model_was_trained(folder, capsys, tmp_path):
    data = ["--data", folder / "patients.csv", "--name", "Steyr", "--join-rounds", "3", "--out", tmp_path / "steyr"]
    shown = succeed(capsys, "join", folder / "run", *data)
    assert "joined: gets what all clients get, trains 3 rounds for its own head\n" in shown
    assert "alone: trains 2 rounds on its own samples, as many as the run (local)\n" in shown
