"""Evaluating asks for no more than it must, and sees what it would see if it asked for everything."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from partwise import Method, Parts
from partwise.runs.evaluation import Evaluation
from tests.support.runs import CLASSES, awkward_federation, network, simulate
from tests.support.states import distance


@pytest.mark.parametrize("engine", ["vector", "loop"])
@pytest.mark.parametrize(
    ("method", "settings"), [("fedavg", {}), ("fedavg", {"bn_buffers": "average"}), ("central", {})]
)
def test_one_prediction_serves_both_moments_that_see_the_same_model(method, settings, engine, monkeypatch):
    net = network("cnn+bn" if settings else "mlp")
    federation, settings = awkward_federation(validated=2), {"rounds": 2, **settings}
    once = simulate(method, net, federation, engine, **settings)
    assert once.evaluation.one_for_all(once.server.request("predict", [0]))
    monkeypatch.setattr(Evaluation, "one_for_all", lambda self, request: False)
    assert distance(once, simulate(method, net, federation, engine, **settings)) < 1e-12


class Centred(nn.Module):
    """Rows meet: what it gives for a sample depends on those beside it."""

    def forward(self, x):
        return x - x.mean(0)


def test_a_network_in_which_rows_meet_is_asked_at_every_client():
    body = nn.Sequential(nn.Flatten(), Centred())
    net = Parts(nn.ModuleDict({"body": body, "head": nn.Linear(64, CLASSES)}))
    for module in net.modules.values():
        module.double()
    run = simulate("fedavg", net, rounds=1)
    assert not run.evaluation.one_for_all(run.server.request("predict", [0]))


class Turned(Method):
    """Its global model is another from the first round on."""

    def begin(self, server, run):
        self.predict_global = lambda net, x: -net(x)


def test_a_global_prediction_of_an_objects_own_does_not_answer_for_clients():
    run = simulate(Turned, network("mlp"), rounds=1)
    assert not run.evaluation.one_for_all(run.server.request("predict", [0]))


@pytest.mark.parametrize("block", [1, None])
def test_a_block_in_which_nobody_is_tested_predicts_nothing(block):
    whole = awkward_federation()
    test = [whole.test[0][:0], *whole.test[1:]]
    federation = replace(whole, test=test, global_test=torch.cat(test).sort().values)
    for method in ("fedper", "central"):
        runs = [
            simulate(method, network("mlp"), federation, engine, block if engine == "vector" else None, rounds=2)
            for engine in ("loop", "vector")
        ]
        assert distance(*runs) < 1e-10


class Weighted(Method):
    """Holds one thing while it trains, and another while it is tested."""

    weight = 0.0

    def round(self, server, run):
        self.weight = 1.0
        super().round(server, run)
        self.weight = 0.0


def test_what_a_method_holds_again_is_the_same_version():
    method = Weighted()
    program = simulate(method, network("mlp"), rounds=1).program
    tested = program.version
    program.method.weight = 1.0
    trained = program.version
    program.method.weight = 0.0
    assert trained != tested == program.version
    program.method.weight = 2.0
    assert program.version not in (trained, tested)
