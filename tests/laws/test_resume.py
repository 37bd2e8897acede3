"""A run that goes on from a checkpoint ends bit for bit as one that was never interrupted (differential test D3)."""

from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file

from partwise import Method, Observer, methods
from partwise.errors import ConfigError
from partwise.runs.config import make_config
from partwise.runs.folder import RunFolder
from partwise.runs.prepare import prepare
from partwise.runs.simulation import Simulation
from tests.cli.helpers import without_seconds
from tests.helpers import apart, awkward_federation, network, state, untried
from tests.parity.test_engines import CALMER, DEEPER

SETTINGS = {
    "participation": 0.5,
    "momentum": 0.5,
    "lr_decay": 0.9,
    "lr": 0.02,
    "rounds": 5,
    "batch": 8,
    "device": "cpu",
}
SETTINGS |= {"augment": "flip,crop:2", "finetune_epochs": 1, "checkpoint_every": 0, "threads": 1}


class Killed(BaseException):
    """Stands for the end of a process: nobody handles it."""


class KilledIn(Observer):
    """Ends the process in a round, before its checkpoint."""

    def __init__(self, number):
        self.number = number

    def round(self, seen):
        if seen.row["round"] == self.number:
            raise Killed


def net_of(method):
    return "cnn+bn" if method == "fedbn" else "mlp of two layers" if method in DEEPER else "mlp"


def config_of(method, **settings):
    own = {**SETTINGS, **CALMER.get(method, {}), **settings}
    if method == "fed3p2p":
        own |= {"rounds_1": 3, "rounds_2": own["rounds"] - 3}
    return make_config(method, {name: value for name, value in own.items() if value is not None})


def begin(out, method, net=None, observers=(), validated=0, data=None, **settings):
    """Run in a folder, or go on with what lies there; what the run leaves."""
    config = config_of(method, **settings)
    folder = RunFolder(out, config, resume=True)
    parts = network(net or net_of(method), dropout=0.25)
    federation = data or awkward_federation(validated=validated)
    simulation = prepare(config, federation, parts, before=folder.made_with)
    with untried():
        folder.record(simulation, observers=observers)
    return simulation


def killed(out, at, *arguments, **settings):
    with pytest.raises(Killed):
        begin(out, *arguments, observers=[KilledIn(at)], **settings)


def files(folder):
    """What a run wrote, but for what tells of time and place."""
    same = {path: path.read_bytes() for path in folder.rglob("*") if path.suffix in (".csv", ".safetensors")}
    same = {path.relative_to(folder): value for path, value in same.items() if "checkpoints" not in path.parts}
    return same | {
        "metrics": without_seconds(folder / "metrics.jsonl"),
        "ledger": (folder / "ledger.json").read_bytes(),
        "events": (folder / "events.jsonl").read_bytes(),
    }


def assert_resumes(tmp_path, *arguments, at=(2, 4), **settings):
    """The law, for a run that is killed in some rounds."""
    whole = begin(tmp_path / "whole", *arguments, **settings)
    for number in at:
        killed(tmp_path / "parts", number, *arguments, **settings)
    resumed = begin(tmp_path / "parts", *arguments, **settings)
    assert apart(state(whole), state(resumed)) == 0
    assert files(tmp_path / "whole") == files(tmp_path / "parts")
    return resumed


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
