"""A run that goes on from a checkpoint ends bit for bit as one that was never interrupted (differential test D3)."""

from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file

from partwise import Method, methods
from partwise.errors import ConfigError
from partwise.runs.folder import RunFolder
from partwise.runs.simulation import Simulation
from tests.support.interrupted import Killed, assert_resumes, begin, files
from tests.support.runs import awkward_federation
from tests.support.states import apart, state


@pytest.mark.parametrize("method", methods.names())
def test_every_method_resumes(method, tmp_path):
    assert_resumes(tmp_path, method, engine="vector", save_models=True)


@pytest.mark.parametrize("settings", [{"engine": "loop"}, {"engine": "vector", "block": 2}, {"dtype": "float64"}])
def test_every_engine_resumes(settings, tmp_path):
    assert_resumes(tmp_path, "fedper", **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"persist_optimizer_state": True},
        {"server_optimizer": "adam"},
        {"optimizer": "adamw", "momentum": None, "persist_optimizer_state": True},
        {"bn_buffers": "average"},
        {"init": "per_client", "engine": "loop"},
        {"eval_every": 2, "eval_at": (1, 3)},
        {"client_dropout": 0.4, "stragglers": 0.3, "robust": "median"},
    ],
)
def test_whatever_a_run_remembers_it_remembers(settings, tmp_path):
    assert_resumes(tmp_path, "fedper", "cnn+bn", **settings)


def test_early_stopping_remembers_what_it_goes_back_to(tmp_path):
    resumed = assert_resumes(tmp_path, "fedrep", validated=3, at=(2, 4), patience=3, rounds=12, lr=0.3)
    assert resumed.history.rows[-1]["restored"] < 4  # in the process before the last


def test_nothing_is_trained_again_where_only_files_are_missing(tmp_path, monkeypatch):
    whole = begin(tmp_path / "whole", "fedbabu", client_dropout=0.4)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_models", lambda *_: exec("raise Killed", globals()))
        with pytest.raises(Killed):
            begin(tmp_path / "parts", "fedbabu", client_dropout=0.4)
    for name in ("metrics.jsonl", "events.jsonl"):  # a machine that lost its power may have lost these
        (tmp_path / "parts" / name).write_bytes(b"")
    monkeypatch.setattr(Simulation, "rounds", lambda *_: pytest.fail("it trains"))
    resumed = begin(tmp_path / "parts", "fedbabu", client_dropout=0.4)
    assert apart(state(whole), state(resumed)) == 0
    assert files(tmp_path / "whole") == files(tmp_path / "parts")


def test_a_finished_run_can_be_longer(tmp_path):
    whole = begin(tmp_path / "whole", "fedbabu", rounds=7)
    begin(tmp_path / "parts", "fedbabu", rounds=4)
    longer = begin(tmp_path / "parts", "fedbabu", rounds=7)
    assert apart(state(whole), state(longer)) == 0
    assert files(tmp_path / "whole") == files(tmp_path / "parts")


def test_but_not_where_its_stages_would_have_been_others(tmp_path):
    begin(tmp_path, "anti", rounds=6)
    with pytest.raises(ConfigError, match=r"rounds = 9 changes stages of .* that had begun after"):
        begin(tmp_path, "anti", rounds=9)


class Remembers(Method):
    """Keeps numbers where a checkpoint does not look by itself."""

    def aggregate(self, server, updates):
        self.seen = getattr(self, "seen", 0) + len(updates.clients)
        server.memory["all"] = {"rounds": [*server.memory.get("all", {}).get("rounds", []), server.round], 7: (1, {2})}

    def down(self, server):
        return {"seen": torch.tensor(float(getattr(self, "seen", 0)))}

    def loss(self, net, b, me):
        return b.ce(net(b.x)) * (1 + 0.01 * me.got.seen)


def test_what_a_method_holds_itself_is_kept_too(tmp_path):
    resumed = assert_resumes(tmp_path, Remembers)
    assert resumed.config.method.seen == 5 * 4
    assert resumed.server.memory == {"all": {"rounds": [0, 1, 2, 3, 4], 7: (1, {2})}}


class HoldsObjects(Method):
    def begin(self, server, run):
        server.memory["lock"] = contextmanager


def test_what_no_checkpoint_can_hold_is_said_once_and_the_run_goes_on(tmp_path, caplog):
    begin(tmp_path, HoldsObjects)
    [line] = [record.getMessage() for record in caplog.records if "no checkpoints" in record.getMessage()]
    assert "run['server']['memory']['lock'] is of the type function" in line
    assert not list(tmp_path.glob("checkpoints/round-*"))


def test_a_checkpoint_writes_what_changed(tmp_path):
    """Of 40 clients that have taken part, a round's two lie in its file."""
    federation = awkward_federation(sizes=tuple([4] * 40))
    settings = {"participation": None, "clients_per_round": 2, "rounds": 30, "eval_every": 30}
    assert_resumes(tmp_path, "fedper", data=federation, at=(25,), **settings)
    for run in ("whole", "parts"):
        rows = [
            load_file(path)['clients of ["own", "head.bias"]'] for path in sorted((tmp_path / run).glob("*/clients-*"))
        ]
        assert len(rows[-1]) == 2 and sum(map(len, rows)) <= 2 * 40 + 2
