"""The manifest of a run's models: what is written is what is read; a file from before is read too."""

import json
from dataclasses import replace

import pytest

from partwise.data.saved import json_digest
from partwise.errors import DataError
from partwise.records.manifest import (
    ArrayInput,
    FileHeader,
    ImageInput,
    ManifestMethod,
    ManifestNetwork,
    ManifestTask,
    ModelManifest,
    Scaling,
    TableInput,
)
from partwise.tasks import Classes, Labels, Numbers, Places

TABLE = TableInput(
    shape=[3],
    features=["age", "sex=f", "sex=m"],
    columns=["age", "sex", "sex"],
    beside=["ill", "city"],
    missing="mean",
    nonfinite=False,
    other_texts="zeros",
)
MANIFEST = ModelManifest(
    "0.1.0",
    ManifestMethod("mine.py", "mine:Mine", "method-copy.py", "ab", {"rounds": 2, "lr": 0.1, "class": "any"}),
    ManifestNetwork(None, "nets:Net", False, 0, False, "float32"),
    {"body": ["fc1"], "class": []},  # a part may be called as a key of JSON's
    True,
    "patients.csv",
    TABLE,
    Scaling([40.5, 0.5, 0.5], [10, 0.5, 0.5]),
    ["no", "yes"],
    ["Graz", "Linz"],
    {"global.safetensors": "cd"},
)
# As runs wrote it before there were other texts and columns beside, and as it lay on the disk.
BEFORE = {
    "format": "partwise models",
    "version": 1,
    "partwise": "0.0.9",
    "method": {
        "name": "fedper",
        "class": "partwise.methods.fedper:FedPer",
        "file": None,
        "sha256": None,
        "settings": {},
    },
    "network": {
        "name": "tabular",
        "class": None,
        "batch_norm": False,
        "dropout": 0.0,
        "projector": False,
        "dtype": "float64",
    },
    "parts": {"body": ["fc1", "fc2"], "head": []},
    "plain": True,
    "data": "p.csv",
    "input": {
        "kind": "table",
        "shape": [1],
        "features": ["age"],
        "columns": ["age"],
        "missing": "refuse",
        "nonfinite": False,
    },
    "standardise": {"centre": [40.5], "scale": [10.0]},
    "classes": ["no", "yes"],
    "clients": ["Graz"],
    "files": {},
}


def read(content):
    """A manifest from the bytes that a file would hold."""
    return ModelManifest.from_json(json.loads(json.dumps(content)), "model.json")


@pytest.mark.parametrize(
    "taken",
    [
        TABLE,
        ImageInput(shape=[3, 8, 8], white=16.0, resize=True),
        ArrayInput(shape=[2, 5]),
    ],
)
def test_what_is_written_is_what_is_read(taken):
    manifest = replace(MANIFEST, input=taken)
    content = manifest.as_json()
    assert read(content) == manifest and content["input"]["kind"] == taken.kind
    assert content["method"]["class"] == "mine:Mine" and list(content)[-1] == "sha256"


@pytest.mark.parametrize(
    ("task", "shape"),
    [
        (Numbers(("stay", "cost"), edges=(2.5, 4), centre=(0.1, 1e9), scale=(1 / 3, 1)), [2]),
        (Numbers(("stay",)), [1]),
        (Labels(("sick", "late"), patterns=((0, -1), (1, 1))), [2]),
        (Places(("sky", "road")), [4, 5]),
    ],
)
def test_a_task_that_is_written_is_read(task, shape):
    manifest = replace(MANIFEST, classes=[], own_task=ManifestTask.of(task, shape))
    assert read(manifest.as_json()) == manifest and manifest.as_json()["version"] == 2
    assert read(manifest.as_json()).task == task and manifest.label_shape == shape


def test_a_manifest_from_before_is_read():
    manifest = read({**BEFORE, "sha256": json_digest(BEFORE)})
    assert manifest.network.name == "tabular" and manifest.method.made_of == "partwise.methods.fedper:FedPer"
    assert manifest.task == Classes(("no", "yes")) and manifest.label_shape == []
    assert manifest.as_json()["version"] == 1 and "own_task" not in manifest.as_json()
    assert manifest.input.beside == [] and manifest.input.other_texts == "refuse"


@pytest.mark.parametrize("content", [None, [], "a", {}, {"format": "partwise"}])
def test_what_is_no_manifest_is_refused(content):
    with pytest.raises(DataError, match=r"^'model.json' does not describe models of partwise$"):
        read(content)


def test_a_files_header_is_texts():
    header = FileHeader("received", "fedper", 1, client=3, name="Graz", key=7, lr=0.1)
    texts = header.as_texts()
    assert texts["lr"] == "0.1" and texts["client"] == "3" and "held" not in texts
    assert FileHeader.from_texts(texts) == header
    with pytest.raises(TypeError, match="stage"):
        FileHeader.from_texts({"moment": "received", "method": "fedper"})
