"""`--check`: a client of every round is compared with the loop, and a run learns how fast its nudged copy departs."""

import pytest
import torch

from partwise import FROZEN, ConfigError, Method, Move, Phase
from partwise.engines.vector import Vector
from tests.support.runs import network, simulate
from tests.support.states import state


@pytest.mark.parametrize("engine", ["loop", "vector"])
def test_a_checked_run_is_told_and_ends_as_if_it_were_not(engine):
    checked, plain = (
        simulate("fedper", network("cnn+bn"), engine=engine, check=check, rounds=2) for check in (True, False)
    )
    assert checked.engine.check.clients == 2 and checked.engine.check.difference < 1e-12
    assert checked.notes[-1].startswith("check: 2 clients retrained by the loop engine in float64")
    first, second = state(checked), state(plain)
    assert all((first[name] == second[name]).all() for name in first)


def test_an_engine_that_does_something_else_is_refused(monkeypatch):
    execute = Vector.execute

    def off(self, request, client, common, batches):
        inputs = common.round._replace(rate=common.round.rate * 1.001)
        return execute(self, request, client, common._replace(round=inputs), batches)

    monkeypatch.setattr(Vector, "execute", off)
    with pytest.raises(ConfigError, match=r"^check: client 0 differs from the loop engine after round 1 by "):
        simulate("fedavg", network("mlp"), engine="vector", check=True)


class Doubling(Method):
    """Every client's model is moved away from zero, to twice its place: a nudge becomes twice as large."""

    def phases(self):
        return Phase(Move("*", gradient="away", lr=1.0), steps=1)

    def away(self, net, b, me):
        return {name: -value for name, value in net["*"].items()}


class Cubic(Doubling):
    """w becomes w + w^3: of numbers near 1, a nudge grows four times where they grow twice, so twice in proportion."""

    def away(self, net, b, me):
        return {name: -(value**3) for name, value in net["*"].items()}


def test_the_growth_of_a_nudge_is_measured_in_proportion():
    parts = network("mlp")
    for module in parts.modules.values():
        for parameter in module.parameters():
            parameter.data.fill_(1.0)
    even, cubic = (simulate(method, parts, rounds=1, check=True).engine.check for method in (Doubling, Cubic))
    assert even.growth == pytest.approx([1], abs=0.05)  # the spread of the nudge's own numbers
    assert cubic.growth == pytest.approx([2], abs=0.1)


class WrongInBlocks(Method):
    """Counts padded rows too: parameters are right, what is sent is not."""

    def report(self, net, b, me):
        return {"rows": torch.ones(len(b.y)).sum()}


def test_what_a_client_sends_is_compared_too():
    with pytest.raises(ConfigError, match=r"^check: client 0 differs from the loop engine after round 1 by "):
        simulate(WrongInBlocks, network("mlp"), engine="vector", check=True)


class Nothing(Method):
    share = {"*": FROZEN}


def test_where_nothing_is_held_or_sent_there_is_nothing_to_compare():
    assert simulate(Nothing, network("mlp"), rounds=1, check=True).engine.check.difference == 0
