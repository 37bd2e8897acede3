"""Fault 71: silos that are away, forget on purpose or are slow to join, by a clock that only these tests advance."""

from collections import Counter

import pytest
import torch

from partwise.errors import PartwiseError
from partwise.federation.protocol.launch import Members, federated, forgotten, write_models
from partwise.federation.protocol.node import Node
from partwise.federation.protocol.nodes import AT_WORK, Failure
from partwise.records.messages import Refusal
from partwise.records.wire import encode_message, pack_tree, unpack_tree
from partwise.runs.config import make_config
from tests.support.nodes import InProcess, hosting, silos
from tests.support.runs import awkward_federation

SETTINGS = {"rounds": 6, "lr": 0.05, "batch": 4, "dtype": "float64", "model": "tabular", "threads": 1, "eval_every": 1}
TIMEOUT, GRACE, POLL_INTERVAL = 600.0, 60.0, 0.5


class Clock:
    """Time passes where somebody waits, and only there."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds


class Timed(InProcess):
    """Nodes that are offline, silent or slow for some kinds of messages, or forget on purpose."""

    def __init__(self, nodes, clock):
        super().__init__(nodes)
        self.clock = clock
        self.offline, self.forgets, self.silent, self.takes = (
            set(),
            set(),
            {},
            {},
        )  # the last two by node: seconds, kind
        self.asked: list[tuple[str, tuple[str, ...]]] = []  # kinds, and whom

    def ask(self, messages, timeout):
        assert timeout > 0
        kind = unpack_tree(next(iter(messages.values())))["kind"]
        self.asked.append((kind, tuple(messages)))
        there = {name: message for name, message in messages.items() if name not in self.offline}
        silent = [name for name in there if self.silent.get(name) == kind]
        took = max([self.takes.get((name, kind), 0.0) for name in there], default=0.0)
        answers = super().ask({name: message for name, message in there.items() if name not in silent}, timeout)
        answers |= {name: Failure("not online") for name in messages.keys() - there.keys()}
        answers |= {name: Failure("no answer") for name in silent}
        forgets = [name for name in there if name in self.forgets and kind == "request"]
        answers |= {name: pack_tree({"refuses": "I was started again", "forgot": True}) for name in forgets}
        if any(forgotten(answer) for answer in answers.values()):  # as a link may do: nobody waits for the silent ones
            return answers | dict.fromkeys(silent, AT_WORK)
        self.clock.wait(timeout if silent else took)
        return answers

    def times(self, name):
        """How often a node was sent a message of each kind since the last time."""
        counts = Counter(kind for kind, whom in self.asked if name in whom)
        self.asked = []
        return dict(counts)


def refuse(why):
    raise PartwiseError(why)


def made(**more):
    return make_config("fedavg", {**SETTINGS, **more})


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def link(tmp_path, clock):
    own = silos(awkward_federation((7, 6, 9)), tmp_path, [[0], [1], [2]])
    return Timed({name: Node(silo) for name, silo in own.items()}, clock)


def members_of(link):
    hosts = hosting(link.nodes)
    return Members(link, "a-run", made(), list(hosts), TIMEOUT, GRACE, hosts, clock=link.clock, wait=link.clock.wait)


def seconds(simulation, clock):
    """What a round with an evaluation after it takes."""
    begun, server = clock(), simulation.server
    server.step()
    simulation.engine.run(server.request("predict", [0, 1, 2]))
    return clock() - begun


def dropped(simulation):
    return [(event.round, event.client) for event in simulation.server.events if event.what == "dropped"]


def test_fault_71_a_silo_away_for_good_costs_its_grace_once(link, clock):
    simulation = federated(made(), members_of(link))
    assert seconds(simulation, clock) == 0
    link.offline = {"n1"}
    assert GRACE <= seconds(simulation, clock) <= GRACE + POLL_INTERVAL
    assert [seconds(simulation, clock) for _ in range(3)] == [0, 0, 0]
    assert dropped(simulation) == [(1, 1), (2, 1), (3, 1), (4, 1)]


def test_where_too_few_silos_are_left_a_round_waits_before_it_is_skipped(link, clock):
    """Else an outage of a few minutes would use up all rounds that are left."""
    simulation = federated(made(), members_of(link))
    simulation.engine.nodes.min_silos = 3
    link.offline = {"n1"}
    for _ in range(3):
        took = seconds(simulation, clock)  # of the training, and of the evaluation
        assert 2 * GRACE <= took <= 2 * (GRACE + POLL_INTERVAL)


def test_fault_71_a_silo_that_is_back_is_asked_again_and_has_another_grace(link, clock):
    simulation = federated(made(), members_of(link))
    link.offline = {"n1"}
    assert GRACE <= seconds(simulation, clock) <= GRACE + POLL_INTERVAL
    assert seconds(simulation, clock) == 0
    link.offline = set()
    assert seconds(simulation, clock) == 0
    link.offline = {"n1"}
    assert GRACE <= seconds(simulation, clock) <= GRACE + POLL_INTERVAL
    assert dropped(simulation) == [(0, 1), (1, 1), (3, 1)]


def test_fault_71_a_silo_that_comes_back_within_its_grace_takes_part(link, clock):
    simulation = federated(made(), members_of(link))
    link.offline = {"n1"}
    wait = clock.wait

    def back_after_a_while(passed):
        wait(passed)
        if clock() > 10:
            link.offline = set()
            link.nodes["n1"] = Node(link.nodes["n1"].silo)  # started again: it must join

    simulation.engine.nodes.wait = back_after_a_while
    assert 10 < seconds(simulation, clock) < 11
    assert not simulation.server.events


def test_fault_71_one_that_forgets_on_purpose_joins_once_a_request_and_costs_no_time(link, clock):
    simulation = federated(made(), members_of(link))
    link.forgets = {"n1"}
    for round in range(3):
        link.times("n1")
        simulation.server.step()
        assert link.times("n1") == {"request": 2, "join": 1, "begin": 1}
        assert dropped(simulation)[-1] == (round, 1)
    assert clock() == 0
    assert "knows nothing of the run" in simulation.server.events[-1].detail


def test_fault_71_one_that_forgets_alone_does_not_end_the_run(link, clock):
    simulation = federated(made(), members_of(link))
    link.offline, link.forgets = {"n0", "n2"}, {"n1"}
    simulation.server.step()
    assert [event.what for event in simulation.server.events] == ["dropped"] * 3 + ["skipped"]


@pytest.mark.parametrize("kind", ["join", "begin"])
def test_fault_71_one_that_forgets_and_is_silent_costs_one_deadline(kind, link, clock):
    simulation = federated(made(), members_of(link))
    link.forgets, link.silent = {"n1"}, {"n1": kind}
    simulation.server.step()
    assert clock() == TIMEOUT
    assert dropped(simulation) == [(0, 1)]


def test_fault_71_one_that_refuses_to_join_again_is_asked_once(link, clock):
    simulation = federated(made(), members_of(link))
    link.forgets = {"n1"}
    join = link.nodes["n1"].join
    link.nodes["n1"].join = lambda message: refuse("not today")
    link.times("n1")
    simulation.server.step()
    assert link.times("n1") == {"request": 1, "join": 1}
    assert simulation.server.events[-1].detail == "n1: cannot join again: n1 refuses: not today"
    assert clock() == 0
    link.nodes["n1"].join, link.forgets = join, set()
    simulation.server.step()
    assert len(simulation.server.events) == 1


def test_fault_71_several_join_again_at_once(link, clock):
    """Each takes 200 of 600 seconds to join: one after the other they would not be through."""
    simulation = federated(made(), members_of(link))
    for name in link.nodes:
        link.nodes[name] = Node(link.nodes[name].silo)
        link.takes[name, "join"] = 200.0
    link.asked = []
    simulation.server.step()
    every = tuple(link.nodes)
    assert link.asked == [("request", every), ("join", every), ("begin", every), ("request", every)]
    assert clock() == 200 and not simulation.server.events


def test_fault_71_a_silo_that_was_started_again_does_not_wait_for_a_silent_one(link, clock):
    simulation = federated(made(), members_of(link))
    link.silent = {"n0": "request"}
    link.nodes["n1"] = Node(link.nodes["n1"].silo)
    simulation.server.step()
    assert clock() == TIMEOUT and dropped(simulation) == [(0, 0)]
    assert simulation.server.asked[0][1].clients == [1, 2]


def test_fault_71_one_slow_at_joining_is_named_after_one_deadline(link, clock):
    link.silent = {"n1": "join"}
    with pytest.raises(PartwiseError, match=r"^n1: no answer"):
        federated(made(), members_of(link))
    assert clock() == TIMEOUT


def test_fault_71_all_of_joining_has_one_deadline(link, clock):
    link.takes, link.silent = {("n0", "join"): 500.0}, {"n2": "begin"}
    with pytest.raises(PartwiseError, match=r"^n2: no answer"):
        federated(made(), members_of(link))
    assert clock() == TIMEOUT


def test_fault_71_silent_silos_cost_one_deadline_when_models_are_written(link, clock):
    simulation = federated(made(), members_of(link))
    simulation.server.step()
    link.silent = {"n0": "models", "n1": "models"}
    assert write_models(simulation) == {"n2": 1} and clock() == TIMEOUT


def test_what_a_node_says_is_kept_in_part_alone(link, clock):
    """Refusals stand in events, which the server keeps for the whole run."""
    simulation = federated(made(), members_of(link))
    link.nodes["n1"].answer = lambda message: encode_message(Refusal("x" * 50_000))
    simulation.server.step()
    [event] = simulation.server.events
    assert len(event.detail) < 600
    assert all(torch.isfinite(copies.values).all() for copies in simulation.server.copies.values())
