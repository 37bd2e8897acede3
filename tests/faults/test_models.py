"""Models that are damaged, of another run or of a newer version are refused in one line; so are unknown clients."""

import json
import shutil

import pytest

import partwise
from partwise.errors import ConfigError, DataError, PartwiseError
from partwise.runs.description import digest
from tests.cli.helpers import refuse
from tests.serving.helpers import run_patients, taken


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    run_patients(folder, "fedrod")
    return folder / "run"


@pytest.fixture
def folder(run, tmp_path):
    return taken(run, tmp_path / "elsewhere")


def line(folder, client=0, kind=DataError):
    with pytest.raises(PartwiseError) as refused:
        partwise.load_model(folder, client)
    assert type(refused.value) is kind and "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("name", ["client-000.safetensors", "client-000.extra.safetensors"])
def test_fault_25_a_damaged_model_is_refused(name, folder):
    path = folder / "models" / name
    whole = path.read_bytes()
    told = f"'{path}' is damaged or another file: it does not have the SHA-256 that model.json states"
    for content in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:-8], whole[:-8] + bytes(8) + b"x", b""):
        path.write_bytes(content)
        assert line(folder) == told
    shutil.copy(folder / "models" / name.replace("000", "001"), path)  # another client's
    assert line(folder) == told
    path.unlink()
    assert line(folder) == f"cannot read '{path}': No such file or directory"
    assert partwise.load_model(folder, 1).classes == ("no", "yes")  # the others are as they were


def test_fault_25_a_description_that_was_changed_is_refused(folder):
    path = folder / "model.json"
    whole = json.loads(path.read_text())
    path.write_text(json.dumps({**whole, "classes": ["yes", "no"]}))
    assert line(folder).endswith("is damaged or was edited: its content does not have the SHA-256 it states")
    path.write_text(path.read_text()[:100])
    assert line(folder).startswith(f"'{path}' is damaged: ")
    path.write_bytes(b"\xff\xfe")
    assert line(folder).startswith(f"'{path}' is damaged: ")
    path.write_text("[]")
    assert line(folder) == f"'{path}' does not describe models of partwise"
    path.write_text(json.dumps({**whole, "version": 2, "partwise": "9.0"}))
    assert line(folder) == f"'{path}' is of version 2, made by partwise 9.0; this partwise reads version 1"
    path.unlink()
    assert line(folder) == f"'{folder}' has no model.json: it is no run, or one of a version that wrote none"


def test_fault_60_a_description_of_another_shape_is_refused(folder):
    path = folder / "model.json"
    whole = json.loads(path.read_text())
    whole.pop("sha256")
    for change in ({"method": {}}, {"input": {"kind": "table"}}, {"standardise": None}, {"network": {"name": "cnn"}}):
        content = {**whole, **change}
        path.write_text(json.dumps({**content, "sha256": digest(content)}))
        assert line(folder).startswith(f"'{folder}': client 0, Graz cannot be built: ")


def test_fault_01_an_unknown_client_is_refused_with_the_nearest(folder):
    how = "known: Graz, Linz, Wien; clients are called by name or by number, 0 to 2"
    assert line(folder, "Gratz", ConfigError) == f"unknown client 'Gratz'; did you mean 'Graz'? {how}"
    assert line(folder, 3, ConfigError) == f"unknown client '3'; {how}"


def test_a_run_without_models_says_so(tmp_path, capsys):
    run_patients(tmp_path, "local", save_models=False)
    assert line(tmp_path / "run").startswith(f"'{tmp_path / 'run'}' holds no models: ")
    run_patients(tmp_path, "local", overwrite=True)
    told = refuse(capsys, "predict", tmp_path / "run", tmp_path / "patients.csv", "--global")
    assert told == "error: local has no global model; name one of the clients: Graz, Linz, Wien"
