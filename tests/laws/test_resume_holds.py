"""A run goes on bit for bit whatever a method holds, and wherever it holds it (differential test D3)."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from partwise import Method
from partwise.errors import ConfigError
from partwise.network.parts import Parts
from partwise.runs.folder import RunFolder
from partwise.runs.prepare import prepare
from tests.support.interrupted import Killed, KilledIn, assert_resumes, begin, config_of, files, killed
from tests.support.runs import CLASSES, awkward_federation, untried
from tests.support.states import apart, state


class Weighted(Method):
    """Its loss depends on what the server has seen."""

    def down(self, server):
        return {"seen": self.seen_by(server)}

    def loss(self, net, b, me):
        return b.ce(net(b.x)) * (1 + 0.01 * me.got.seen)


class Appends(Weighted):
    """Changes in place what it has from the beginning."""

    def __post_init__(self):
        super().__post_init__()
        self.seen, self.sum, self.rounds_seen = [], torch.zeros(()), {"all": np.zeros(1)}

    def aggregate(self, server, updates):
        self.seen.append(len(updates.clients))
        self.sum += 1
        self.rounds_seen["all"] += 1

    def seen_by(self, server):
        return len(self.seen) + self.sum + float(self.rounds_seen["all"][0])


def test_what_a_method_changes_in_place_is_kept(tmp_path):
    assert_resumes(tmp_path, Appends)


class LetsGo(Weighted):
    """Holds something in the first round alone."""

    def __post_init__(self):
        super().__post_init__()
        self.first = True

    def aggregate(self, server, updates):
        vars(self).pop("first", None)

    def seen_by(self, server):
        return torch.tensor(float(hasattr(self, "first")))


def test_what_a_method_has_let_go_does_not_come_back(tmp_path):
    assert_resumes(tmp_path, LetsGo)


class Views(Weighted):
    """Remembers two views of one tensor, and holds one that a gradient is taken of."""

    def begin(self, server, run):
        both = torch.arange(4.0)
        server.memory |= {"first": both[:2], "second": both[:3]}
        self.learned = torch.ones((), requires_grad=True)

    def aggregate(self, server, updates):
        (slope,) = torch.autograd.grad(self.learned**2, self.learned)
        server.memory["first"] = server.memory["first"] + slope

    def seen_by(self, server):
        return server.memory["first"].sum()


def test_tensors_that_share_memory_or_are_learned_are_kept(tmp_path):
    assert_resumes(tmp_path, Views)


class Learns(Method):
    """Has a network of its own on the server, which it trains in place."""

    def __post_init__(self):
        super().__post_init__()
        self.critic = nn.Linear(1, 1)

    def aggregate(self, server, updates):
        with torch.no_grad():
            self.critic.bias += 1


def test_a_network_that_a_method_trains_itself_is_no_plain_value_and_that_is_said(tmp_path, caplog):
    begin(tmp_path, Learns, rounds=2)
    assert "no checkpoints: run['method']['critic'] is of the type Linear" in caplog.text


class TurnsLater(Method):
    """What a step costs depends on what is sent, from the second round on."""

    def down(self, server):
        return {"turn": torch.eye(CLASSES)} if server.round else {}

    def loss(self, net, b, me):
        logits = net(b.x)
        return b.ce(logits @ me.got.turn if hasattr(me.got, "turn") else logits)


def test_operations_are_counted_as_without_an_interruption(tmp_path):
    assert_resumes(tmp_path, TurnsLater)


def test_a_network_handed_in_need_not_be_drawn_alike_again(tmp_path):
    """Who takes part for the first time after the interruption starts from the values of the first process."""

    def go_on(out, seed, observers=()):
        torch.manual_seed(seed)
        body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU())
        config = config_of("fedper", participation=None, clients_per_round=2)
        folder = RunFolder(out, config, resume=True)
        net = Parts(nn.Sequential(OrderedDict(body=body, head=nn.Linear(8, CLASSES))))
        simulation = prepare(config, awkward_federation(), net, before=folder.made_with)
        with untried():
            folder.record(simulation, observers=observers)
        return simulation

    whole = go_on(tmp_path / "whole", seed=0)
    with pytest.raises(Killed):
        go_on(tmp_path / "parts", 0, [KilledIn(2)])
    resumed = go_on(tmp_path / "parts", seed=1)
    assert apart(state(whole), state(resumed)) == 0
    assert files(tmp_path / "whole") == files(tmp_path / "parts")


def test_a_longer_run_that_is_refused_leaves_the_finished_one_as_it_is(tmp_path):
    def everything():
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    begin(tmp_path, "anti", rounds=6)
    before = everything()
    with pytest.raises(ConfigError):
        begin(tmp_path, "anti", rounds=9)
    assert everything() == before


def test_models_of_a_shorter_run_do_not_stand_beside_a_longer_one(tmp_path):
    begin(tmp_path, "fedper", rounds=2, save_models=True)
    assert list(tmp_path.glob("models/*"))
    begin(tmp_path, "fedper", rounds=3, save_models=False)
    assert not list(tmp_path.glob("models/*"))


def test_rows_are_neither_lost_nor_doubled_between_checkpoints(tmp_path, monkeypatch):
    """With a checkpoint after every third round, killed in each of the others."""
    monkeypatch.setattr("partwise.runs.pace.Pace.due", lambda self, round, total: round % 3 == 0 or round == total - 1)
    assert_resumes(tmp_path, "fedper", rounds=9, at=(2, 4, 5, 7, 8))


def test_and_again_and_again(tmp_path):
    assert_resumes(tmp_path, "fedper", at=(2, 3, 4, 5))
    killed(tmp_path / "parts", 6, "fedper", rounds=8)
    begin(tmp_path / "parts", "fedper", rounds=8)
    begin(tmp_path / "longer", "fedper", rounds=8)
    assert files(tmp_path / "parts") == files(tmp_path / "longer")
