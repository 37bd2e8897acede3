"""In the run, in a fresh process that has only the folder, as a program of torch.export and as ONNX: one prediction."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import partwise
from partwise import methods
from partwise.inference.exporting import export
from tests.support.listed import LISTED
from tests.support.patients import in_the_run, taken

SHOWN = ("fed3p2p", "fedproto", "fedrod")  # parts cut and added, prototypes received, label counts looked at
OWN = {
    "fed3p2p": {"coordinators_a": 2, "coordinators_b": 2},
    "fedbn": {"batch_norm": True},
    "fedetf": {"personal_rounds": 2},
    "fedrod": {"hypernetwork": True},
}
PROGRAM = """
import json, sys
import partwise
from safetensors.torch import load_file
apart = {}
for folder in sys.argv[1:]:
    expected = load_file(f"{folder}/expected.safetensors")
    x = expected.pop("x")
    for name, logits in expected.items():
        model = partwise.load_model(folder, None if name == "global" else int(name))
        apart[f"{folder} {name}"] = float((model(x) - logits).abs().max())
print(json.dumps(apart))
"""


def run(method, folder, **settings):
    common = {"data": "made", "model": "tabular", "clients": 3, "rounds": 2, "train_samples": 24, "lr": 0.05}
    return partwise.run(method, **common, **OWN.get(method, {}), **settings, out=folder, overwrite=True)


def left_behind(method, tmp_path):
    """What a run's models need, elsewhere, beside what they must give."""
    result = run(method, tmp_path / "run", dtype="float64")
    folder = taken(tmp_path / "run", tmp_path / method)
    x, logits = in_the_run(result)
    save_file({"x": x, **logits}, folder / "expected.safetensors")
    return folder


def in_a_fresh_process(folders):
    """How far models that are loaded there are from what they gave in the run."""
    environment = {**os.environ, "PYTHONPATH": str(Path(partwise.__file__).parents[1])}
    command = [sys.executable, "-c", PROGRAM, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folders[0])
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_method_is_here():
    assert set(OWN) | set(SHOWN) <= set(methods.names()) == set(LISTED)


def test_models_elsewhere_predict_as_in_the_run(tmp_path):
    apart = in_a_fresh_process([left_behind(method, tmp_path) for method in SHOWN])
    assert len(apart) == 3 * 3 + 2  # FedProto has no global model
    assert max(apart.values()) < 1e-10


@pytest.mark.parametrize("method", sorted(set(LISTED) - set(SHOWN)))
def test_every_other_method_elsewhere(method, tmp_path):
    assert max(in_a_fresh_process([left_behind(method, tmp_path)]).values()) < 1e-10


@pytest.mark.parametrize("method", sorted(LISTED))
def test_every_method_exported(method, tmp_path):
    """Raw samples in: standardisation and the method's way to predict are inside, for any number of rows."""
    runtime = pytest.importorskip("onnxruntime")
    folder = left_behind(method, tmp_path)
    expected = load_file(folder / "expected.safetensors")
    x = expected.pop("x").float()
    for name in ("0", "global") if "global" in expected else ("0",):
        model = partwise.load_model(folder, None if name == "global" else int(name))
        export(model, tmp_path / "to", ("pt2", "onnx"), overwrite=True)
        program = torch.export.load(tmp_path / "to" / "model.pt2").module()
        session = runtime.InferenceSession(tmp_path / "to" / "model.onnx", providers=["CPUExecutionProvider"])
        for rows in (1, 7, len(x)):
            wanted = expected[name][:rows].numpy()
            known = {"logits": wanted, "probabilities": torch.from_numpy(wanted).softmax(1).numpy()}
            ran = dict(zip(known, session.run(list(known), {"x": x[:rows].numpy()}), strict=True))
            for got in (program(x[:rows]), ran):
                for output, values in known.items():
                    apart = np.abs(np.asarray(got[output]) - values) / np.maximum(1, np.abs(values))
                    assert apart.max() < 1e-5, (name, rows, output)
