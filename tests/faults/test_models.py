"""Models that are damaged, of another run or of a newer version are refused in one line; so are unknown clients."""

import hashlib
import json
import shutil
from functools import partial

import pytest

import partwise
from partwise.data.saved import json_digest
from partwise.errors import ConfigError, DataError, PartwiseError
from tests.support.commands import invoke, refuse
from tests.support.patients import run_patients, taken


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
    path.write_text(json.dumps({**whole, "version": 3, "partwise": "9.0"}))
    assert line(folder) == f"'{path}' is of version 3, made by partwise 9.0; this partwise reads versions 1 and 2"
    path.unlink()
    assert line(folder) == f"'{folder}' has no model.json: it is not the folder of a run, or the run is too old"


def test_fault_60_a_description_of_another_shape_is_refused(folder):
    path = folder / "model.json"
    whole = json.loads(path.read_text())
    whole.pop("sha256")
    known = whole["input"]
    for change, problem in (
        ({"method": {}}, "model.json.method lacks its field 'file'"),
        ({"input": {"kind": "table"}}, "model.json.input lacks its field 'columns'"),
        ({"input": {**known, "kind": "sounds"}}, "model.json.input.kind is none of table"),
        ({"input": {**known, "shape": ["5"]}}, "model.json.input.shape[0] is not a whole number"),
        (
            {"input": {**known, "columns": known["columns"][1:]}},
            "model.json.input has 5 features and 4 columns of them",
        ),
        ({"standardise": None}, "model.json.standardise is not a Scaling"),
        ({"classes": "yes"}, "model.json.classes is not a list"),
        ({"files": {"client-000.safetensors": 7}}, "model.json.files['client-000.safetensors'] is not a text"),
        ({"weights": []}, "model.json has a field that no ModelManifest has, 'weights'"),
    ):
        content = {**whole, **change}
        path.write_text(json.dumps({**content, "sha256": json_digest(content)}))
        assert line(folder) == f"'{path}' is not what partwise writes: {problem}"
    content = {**whole, "network": {**whole["network"], "name": "nn"}}
    path.write_text(json.dumps({**content, "sha256": json_digest(content)}))
    assert line(folder, kind=ConfigError).startswith("unknown model 'nn'; ")


def test_fault_60_a_task_of_another_shape_is_refused(folder):
    """Models of numbers with a description that somebody edited, and stated the SHA-256 of."""
    path = folder / "model.json"
    whole = json.loads(path.read_text())
    whole.pop("sha256")
    known = {"kind": "numbers", "names": ["stay", "cost"], "label_shape": [2], "centre": [7, 1e6], "scale": [2, 5e3]}
    for change, problem in (
        ({"kind": "ranks"}, "model.json.own_task.kind is none of labels, numbers, places"),
        ({"kind": "classes"}, "model.json.own_task.kind is none of labels, numbers, places"),
        ({"names": []}, "model.json.own_task has no names, or a label_shape with a size below 1"),
        ({"names": "stay"}, "model.json.own_task.names is not a list"),
        ({"label_shape": [2, -1]}, "model.json.own_task has no names, or a label_shape with a size below 1"),
        ({"scale": [2]}, "model.json.own_task has 2 names, but not as many of centre and scale"),
        ({"centre": []}, "model.json.own_task has 2 names, but not as many of centre and scale"),
        ({"scale": [2, 0]}, "model.json.own_task has a number that is not finite, or a scale that is not above 0"),
        (
            {"centre": [7, float("nan")]},
            "model.json.own_task has a number that is not finite, or a scale that is not above 0",
        ),
        ({"scale": [2, "5"]}, "model.json.own_task.scale[1] is not a number"),
        ({"patterns": [[0]]}, "model.json.own_task has 2 names, and a pattern of another length"),
        ({"unit": "days"}, "model.json.own_task has a field that no ManifestTask has, 'unit'"),
    ):
        content = {**whole, "version": 2, "own_task": {**known, **change}}
        path.write_text(json.dumps({**content, "sha256": json_digest(content)}))
        assert line(folder) == f"'{path}' is not what partwise writes: {problem}"
    for change in ({"names": ["stay"], "label_shape": [1], "centre": [7], "scale": [2]}, {"kind": "places"}):
        content = {**whole, "version": 2, "own_task": {**known, **change}}  # it fits no file, or no network
        path.write_text(json.dumps({**content, "sha256": json_digest(content)}))
        assert line(folder, kind=ConfigError)


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


# --------------------------------------------------------------------------- 61: a folder that a stranger handed over

CANARY = """
import pathlib
from partwise import Method
pathlib.Path(__file__).with_suffix(".executed").touch()

class Canary(Method):
    pass

def net():
    pass
"""
TO = "made-of-it"
READERS = {
    "load_model": lambda run, table: [partwise.load_model(run, 0)],
    "join in Python": lambda run, table: [partwise.join(run, table, name="Bern")],
    "predict": lambda run, table: ["predict", run, table, "--client", "0"],
    "export": lambda run, table: ["export", run, "--client", "0", "--to", run / TO],
    "join": lambda run, table: ["join", run, "--data", table, "--name", "Bern"],
    "report": lambda run, table: ["report", run, "--out", run / TO],
}


def beside_a_name(folder):
    code = (folder / "method-copy.py").read_bytes()
    return {"method": {"file": "method-copy.py", "sha256": hashlib.sha256(code).hexdigest()}}


def as_the_name(folder):
    return {"method": {"name": str(folder / "method-copy.py")}}


def as_a_host(folder):
    return {"method": {"name": "anti", "settings": {"host": str(folder / "method-copy.py")}}}


def as_a_host_in_the_configuration(folder):
    path = folder / "config.toml"
    path.write_text(path.read_text().replace("[method]", f'[method]\nhost = "{folder / "method-copy.py"}"'))
    return {"method": {"name": "anti"}}


def as_the_network(folder):
    return {"network": {"name": f"{folder / 'method-copy.py'}:net"}}


def as_a_file_of_the_network(folder):
    code = (folder / "method-copy.py").read_bytes()
    (folder / "network-copy.py").write_bytes(code)
    file = {"file": "network-copy.py", "sha256": hashlib.sha256(code).hexdigest()}
    return {"network": {"name": "nets.py:net", **file}}


CHANGES = (beside_a_name, as_the_name, as_a_host, as_a_host_in_the_configuration)
CHANGES += (as_the_network, as_a_file_of_the_network)


def edit(folder, change):
    """Lay code beside a run's models and point its description there, as somebody would who states the SHA-256 too."""
    (folder / "method-copy.py").write_text(CANARY)
    path = folder / "model.json"
    content = json.loads(path.read_text())
    del content["sha256"]
    for table, values in change(folder).items():
        content[table] |= values
    path.write_text(json.dumps({**content, "sha256": json_digest(content)}))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("change", CHANGES)
def test_fault_61_no_reader_of_a_folder_executes_what_lies_in_it(reader, change, run, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    edit(folder, change)
    read = partial(READERS[reader], folder, run.parent / "patients.csv")
    if reader in ("load_model", "join in Python"):
        with pytest.raises(PartwiseError):
            read()
    else:
        assert invoke(capsys, *read()).code in ((0,) if reader == "report" else (2, 3))  # a report reads no models
    assert not list(folder.glob("*.executed"))


def test_fault_61_a_built_in_name_with_a_file_is_refused_even_where_it_is_trusted(run, tmp_path):
    folder = taken(run, tmp_path / "elsewhere")
    edit(folder, beside_a_name)
    with pytest.raises(DataError, match="names the method 'fedrod' and a method file beside it: no run writes that"):
        partwise.load_model(folder, 0, trust=True)
    edit(folder, lambda folder: {"method": {"file": None, "sha256": None}, **as_the_network(folder)})
    with pytest.raises(DataError, match=r"names the network '.*py:net' and the file None: no run writes that"):
        partwise.load_model(folder, 0, trust=True)
    assert not (folder / "method-copy.executed").exists()
