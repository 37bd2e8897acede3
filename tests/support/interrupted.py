"""Runs that are killed in a round, and go on."""

import pytest

from partwise import Observer
from partwise.runs.config import make_config
from partwise.runs.folder import RunFolder
from partwise.runs.prepare import prepare
from partwise.runs.simulation import Simulation
from tests.support.commands import FEW, invoke, without_seconds
from tests.support.parity import CALMER, DEEPER
from tests.support.runs import awkward_federation, network, untried
from tests.support.states import apart, state

RUN = ("run", "fedper", *FEW, "--rounds", "5", "--engine", "loop", "--threads", "1", "--checkpoint-every", "0")
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
        if seen.record.round == self.number:
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


def stopped(monkeypatch, capsys, arguments, stop, at=3, seed=None):
    """Carry out a command line in which something happens in a round."""
    row = Simulation.record

    def noted(self, number, updates):
        if number == at and seed in (None, self.config.run.seed):
            stop()
        return row(self, number, updates)

    with monkeypatch.context() as patch:
        patch.setattr(Simulation, "record", noted)
        return invoke(capsys, *arguments)


def kill():
    raise Killed
