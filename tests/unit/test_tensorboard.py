"""What TensorBoard reads back of a run."""

import json
import sys

import pytest

import partwise
from partwise.errors import DataError
from partwise.runs.simulation import Simulation
from tests.support.commands import FEW, refuse, succeed

pytest.importorskip("tensorboard")


def read_back(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def scalars(events, name):
    return [(event.step, event.value) for event in events.Scalars(name)]


def test_every_evaluated_round_is_there(tmp_path):
    board = partwise.TensorBoard(tmp_path)
    settings = {"clients": 3, "rounds": 3, "eval_every": 2, "lr": 0.25, "validation": 0.2}
    result = partwise.run("fedbabu", data="made", model="mlp-100", **settings, observers=[board])
    events, rows = read_back(tmp_path), result.metrics
    for moment, name in (("received", "acc_pooled"), ("validation", "f1"), ("global", "g_test")):
        there = [(row["round"], pytest.approx(row[moment][name])) for row in rows[1:]]
        assert scalars(events, f"{moment}/{name}") == there  # rounds 2 and 3
    assert scalars(events, "method_adapted/acc_mean")[0][0] == 3
    for name in ("train_loss", "bytes_down", "bytes_up", "seconds"):
        assert scalars(events, f"run/{name}") == [(row["round"], pytest.approx(row[name])) for row in rows]
    told = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"lr" in told and b"fedbabu" in told
    assert scalars(events, "reached") == [(3, pytest.approx(rows[-1]["received"]["acc_pooled"]))]


def test_a_run_that_goes_on_has_every_round_once(tmp_path, capsys, monkeypatch):
    arguments = ["run", "local", *FEW, "--rounds", "4", "--checkpoint-every", "0", "--tensorboard", "--out", tmp_path]
    adapt = Simulation.record

    def interrupted(self, number, updates):
        if number == 4:
            raise KeyboardInterrupt
        return adapt(self, number, updates)

    with monkeypatch.context() as patch, pytest.raises(AssertionError, match="interrupted"):
        patch.setattr(Simulation, "record", interrupted)
        succeed(capsys, *arguments)
    succeed(capsys, *arguments, "--resume")
    succeed(capsys, *arguments, "--overwrite")
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    there = scalars(read_back(tmp_path / "tensorboard"), "received/acc_pooled")
    assert there == [(row["round"], pytest.approx(row["received"]["acc_pooled"])) for row in rows]


def test_refusals(capsys, monkeypatch):
    line = refuse(capsys, "run", "local", "--tensorboard")
    assert line == "error: --tensorboard writes into the run's folder: --out DIR names one"
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(DataError, match=r"^tensorboard is needed, but not installed: pip install 'partwise\[tensorb"):
        partwise.TensorBoard("curves")
