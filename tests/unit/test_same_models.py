"""How benchmarks.same_models compares what two runs left: by value, wherever a row lies, under stated names."""

import hashlib
import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from benchmarks import same_models


def written(run, values=(0.0, 1.0), seconds=1.0, order=(0, 1), format=3, accuracy="accuracy"):
    """Write a run's folder: a model, two rounds, and a checkpoint whose clients came back in some order."""
    (run / "models").mkdir(parents=True)
    (run / "checkpoints").mkdir()
    save_file({"head.weight": np.array(values, np.float32)}, run / "models" / "client-000.safetensors")
    rows = [{"round": number, accuracy: {"last": 0.5, "worst": float("nan")}, "seconds": seconds} for number in (1, 2)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / "clients.csv").write_text("client,received\n0,0.25\n")
    clients = np.array(order)
    own = {'clients of ["own"]': clients, 'rows of ["own"]': np.stack([np.full(3, client) for client in clients])}
    save_file(own, run / "checkpoints" / "clients-000002-0.safetensors")
    save_file({"0": np.arange(3.0), "1": clients}, run / "checkpoints" / "server-000002.safetensors")
    state = {"copies": {"$": "tensor", "name": "0"}, "store": {"known": {"$": "array", "name": "1"}}}
    content = {"format": format, "made with": {"clients": 2}, "tensors": "server-000002.safetensors", "best": []}
    text = json.dumps({**content, "clients": ["clients-000002-0.safetensors"], "state": state})
    digest = hashlib.sha256(text.encode()).hexdigest()
    (run / "checkpoints" / "round-000002.json").write_text(f"{digest}\n{text}")
    return run


@pytest.mark.parametrize("other", [{"seconds": 2.0}, {"order": (1, 0)}, {"format": 4}, {"format": 4, "order": (1, 0)}])
def test_time_order_and_formats_do_not_count(other, tmp_path):
    assert same_models.differences(written(tmp_path / "before"), written(tmp_path / "after", **other)) == []


def test_a_bit_counts(tmp_path):
    before, after = written(tmp_path / "before"), written(tmp_path / "after", values=(-0.0, 1.0))
    [line] = same_models.differences(before, after)
    assert line == "models/client-000.safetensors/head.weight: ('<f4', (2,)) and ('<f4', (2,))"


def test_other_names_are_stated(tmp_path, monkeypatch):
    before, after = written(tmp_path / "before"), written(tmp_path / "after", accuracy="right")
    lines = same_models.differences(before, after)
    assert len(lines) == 8 and lines[0] == "metrics.jsonl/0/accuracy/last: 0.5 and nothing"
    monkeypatch.setitem(same_models.RENAMED, "accuracy", "right")
    assert same_models.differences(before, after) == []


def test_a_run_that_fails_is_said(tmp_path, capsys):
    written(tmp_path / "before" / "fedavg")
    written(tmp_path / "after" / "fedavg")
    (tmp_path / "after" / "fedavg" / same_models.ERROR).write_text("Traceback\nValueError: no such method")
    assert same_models.compare("loop", tmp_path / "before", tmp_path / "after") == 1
    assert "failed: ValueError: no such method" in capsys.readouterr().out
