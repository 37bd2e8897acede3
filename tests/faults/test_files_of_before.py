"""What partwise wrote before its messages and states had types is read, and runs go on from it.

The files were written by the code of the commit d2c8c62, over the case of `tests/support/before.py`: two rounds of a
simulation with early stopping; a federation's server after round 1 and its silos after round 2; an answer under noise.
"""

import json
import shutil

import numpy as np
import pytest
import torch

from partwise.federation.protocol.launch import federated
from partwise.federation.protocol.node import Node
from partwise.federation.protocol.repeats import Repeat
from partwise.federation.protocol.reported_data import RECORD_FILE, read_reported
from partwise.records.record import read_record
from partwise.records.wire import unpack_tree
from partwise.runs.checkpoints import Checkpoints, checkpoints_in
from partwise.runs.pace import Interrupts, Pace
from partwise.runs.prepare import prepare
from tests.support.before import FIXTURES, config, federation, silos
from tests.support.nodes import InProcess, members


@pytest.fixture
def before(tmp_path):
    """A copy of the files, for whoever goes on writes."""
    shutil.copytree(FIXTURES, tmp_path / "before")
    return tmp_path / "before"


def went_on(simulation, folder):
    """The run after its last round, from the newest checkpoint of a folder."""
    checkpoints = Checkpoints(folder, Pace(0, Interrupts()))
    checkpoints.restore(simulation, next(checkpoints_in(folder)))
    return simulation.run(observers=[checkpoints])


def assert_same(one, two):
    """Equal where torch is the one that wrote the files; another one may round otherwise."""
    for name, copies in one.server.copies.items():
        torch.testing.assert_close(copies.values, two.server.copies[name].values, rtol=1e-4, atol=1e-5)
    for row, other in zip(one.history.rows, two.history.rows, strict=True):
        assert row["received"]["acc_pooled"] == pytest.approx(other["received"]["acc_pooled"], abs=0.2)


def test_a_run_goes_on_from_a_checkpoint_of_before(before):
    settings = {"patience": 3, "eval_every": 1}
    whole = prepare(config(**settings), federation()).run()
    simulation = went_on(prepare(config(**settings), federation()), before / "checkpoints")
    assert_same(whole, simulation)
    assert simulation.stopping.round == whole.stopping.round
    for key, sheet in whole.engine.store.sheets.items():
        for client in range(3):
            mine, there = (run.engine.store.row[client] for run in (whole, simulation))
            own, other = sheet.values[mine], simulation.engine.store.sheets[key].values[there]
            torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


def nodes_of(folder):
    return {name: Node(silo) for name, silo in silos(folder).items()}


def test_silos_of_before_go_on_and_answer_again_what_they_had_answered(before, tmp_path):
    """The server goes on after round 1; its silos have answered round 2, and train in rounds 3 and 4 alone."""
    fresh = nodes_of(tmp_path / "fresh")
    whole = federated(config(), members(InProcess(fresh), config())).run()
    nodes = nodes_of(before / "silos")
    simulation = went_on(federated(config(), members(InProcess(nodes), config())), before / "server")
    assert_same(whole, simulation)
    for name in nodes:
        ledger = json.loads((before / "silos" / name / "releases.json").read_text())
        assert ledger["runs"]["a-run"]["trainings"] == 4
        assert (nodes[name].run.simulation.engine.store.steps == fresh[name].run.simulation.engine.store.steps).all()


def test_what_a_silo_told_and_answered_before_is_read(before):
    told = read_reported(before / "silos" / "n0" / RECORD_FILE)
    assert set(told.classes) == {"0", "1"} and all(entry.named for entry in told.classes.values())
    known = read_record(Repeat, unpack_tree((before / "answer").read_bytes()), "answer")
    assert known.answer.updates.clients == [2] and known.held.clients.tolist() == [2]
    assert isinstance(known.held.steps, np.ndarray)
