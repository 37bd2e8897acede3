"""Nodes and servers that end at any moment: what clients keep is on the node's disk, and the run ends the same."""

import shutil
from dataclasses import replace

import pytest
import torch

from partwise.errors import PartwiseError
from partwise.federation.protocol.commits import ROUNDS_KEPT
from partwise.federation.protocol.launch import federated
from partwise.federation.protocol.node import Node
from partwise.records.wire import unpack_tree
from partwise.rounds.messages import METHOD_JOBS
from partwise.runs.config import make_config
from partwise.runs.folder import RunFolder
from tests.support.nodes import InProcess, members, silos
from tests.support.runs import awkward_federation

HOSTED = [[0, 2], [1], [3]]
SIZES = (7, 6, 9, 11)
SETTINGS = {"rounds": 4, "lr": 0.05, "batch": 4, "dtype": "float64", "model": "tabular", "threads": 1, "eval_every": 2}
OWN = {"fed3p2p": {"coordinators_a": 1, "coordinators_b": 1}}
METHODS = ["fedper", "scaffold", "fed3p2p", "vanilla", "fedavg", "dualfed"]


class Killed(KeyboardInterrupt):
    """The server's process ends here."""


class Shaky(InProcess):
    """Nodes that are started again before some messages, or a server that is killed before or after one."""

    def __init__(self, silos, restarts=(), killed_at=None, answered=False):
        super().__init__({name: Node(silo) for name, silo in silos.items()})
        self.silos, self.restarts, self.killed_at, self.answered, self.asked = silos, restarts, killed_at, answered, 0

    def ask(self, messages, timeout):
        self.asked += 1
        if self.asked in self.restarts:
            name = sorted(messages)[self.asked % len(messages)]
            self.nodes[name] = Node(self.silos[name])
        if self.asked == self.killed_at and not self.answered:
            raise Killed
        answers = super().ask(messages, timeout)
        if self.asked == self.killed_at:
            raise Killed
        return answers


def made(method, **more):
    return make_config(method, {**SETTINGS, **OWN.get(method, {}), **more})


def run(config, link, name="a-run"):
    return federated(config, members(link, config, name)).run()


def everything(simulation):
    """All that the server and the clients hold."""
    held = {name: copies.values for name, copies in simulation.server.copies.items()}
    for node in simulation.engine.nodes.link.nodes.values():
        store = node.run.simulation.engine.store
        for key, sheet in store.sheets.items():
            for client in range(len(store.row)):
                if store.filled(key, [client])[0]:
                    held[(*key, client)] = sheet.values[store.row[client]]
    return held


def assert_equal(one, two):
    first, second = everything(one), everything(two)
    assert first.keys() == second.keys()
    assert all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.mark.parametrize("method", METHODS)
def test_nodes_that_are_started_again_go_on_bit_for_bit(method, tmp_path):
    federation, config = awkward_federation(SIZES), made(method)
    calm = run(config, Shaky(silos(federation, tmp_path / "calm", HOSTED)))
    shaky = run(config, Shaky(silos(federation, tmp_path / "shaky", HOSTED), restarts=range(5, 199, 4)))
    assert_equal(calm, shaky)
    assert not shaky.server.events


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
def test_fault_41_a_server_that_is_killed_goes_on_where_its_clients_are(method, answered, tmp_path):
    federation, config = awkward_federation(SIZES), made(method, checkpoint_every=0, save_models=False)
    calm = run(config, Shaky(silos(federation, tmp_path / "calm", HOSTED)))
    own = silos(federation, tmp_path / "killed", HOSTED)
    for attempt in range(40):
        link = Shaky(own, killed_at=4 + attempt // 2, answered=answered)
        folder = RunFolder(tmp_path / "run", config, resume=True)
        try:
            simulation = federated(config, members(link, config), before=folder.made_with)
            folder.record(simulation)
            break
        except Killed:
            pass
    assert attempt > 2
    assert_equal(calm, simulation)
    assert [row["round"] for row in simulation.history.rows] == [1, 2, 3, 4]


def test_a_request_that_comes_again_is_answered_from_the_disk_and_changes_nothing(tmp_path):
    federation, config = awkward_federation(SIZES), made("fedper", rounds=2)
    link = Shaky(silos(federation, tmp_path, HOSTED))
    simulation = run(config, link)
    before = everything(simulation)
    asked = [(name, message, answer) for name, message, answer in link.sent if trains(message)]
    name, message, answer = asked[-1]
    assert link.nodes[name].handle(message) == answer
    assert everything(simulation).keys() == before.keys()
    assert all(torch.equal(value, before[key]) for key, value in everything(simulation).items())


def trains(message):
    content = unpack_tree(message)
    return content["kind"] == "request" and content["request"]["job"] in METHOD_JOBS


def test_fault_42_a_node_that_lost_its_clients_state_begins_again_and_says_so(tmp_path):
    federation, config = awkward_federation(SIZES), made("fedper")
    own = silos(federation, tmp_path, HOSTED)

    class Wiped(Shaky):
        def ask(self, messages, timeout):
            if trains_in_round(messages, 2) and "n1" in messages and not getattr(self, "wiped", False):
                self.wiped = True
                shutil.rmtree(own["n1"].folder)
                self.nodes["n1"] = Node(own["n1"])
            return super().ask(messages, timeout)

    simulation = run(config, Wiped(own))
    [event] = simulation.server.events
    assert (event.round, event.client, event.what) == (2, 1, "lost") and "begins again" in event.detail


def trains_in_round(messages, round):
    asked = unpack_tree(next(iter(messages.values()))).get("request", {})
    return asked.get("job") == "train" and asked["round"] == round


def test_old_files_go_and_those_that_a_server_may_go_back_to_stay(tmp_path):
    federation, config = awkward_federation(SIZES), made("fedper", rounds=9, eval_every=9)
    simulation = run(config, Shaky(silos(federation, tmp_path, HOSTED)))
    node = simulation.engine.nodes.link.nodes["n0"]
    rounds = [commit.turn.round for commit in node.run.commits.files() if commit.stage is None]
    assert rounds == list(range(8 - ROUNDS_KEPT - 1, 9))


def test_a_method_that_nobody_can_run_is_one_line(tmp_path):
    federation, config = awkward_federation(SIZES), made("fedper")
    own = silos(federation, tmp_path, HOSTED, methods=("fedavg",))
    with pytest.raises(PartwiseError, match="n0 refuses: n0 allows no fedper; it allows fedavg"):
        run(config, Shaky(own))


def test_fault_33_a_node_that_is_away_is_left_out_and_a_round_with_too_few_is_skipped(tmp_path):
    federation, config = awkward_federation(SIZES), made("fedavg", min_clients=3)

    class Away(Shaky):
        def ask(self, messages, timeout):
            round = unpack_tree(next(iter(messages.values()))).get("request", {}).get("round")
            gone = {1: ["n1"], 2: ["n0", "n1"]}.get(round, []) if trains_in_round(messages, round) else []
            return super().ask({name: message for name, message in messages.items() if name not in gone}, timeout)

    seen = []
    link = Away(silos(federation, tmp_path, HOSTED))
    simulation = federated(config, members(link, config))
    simulation.run(lambda row: seen.append({n: c.values.clone() for n, c in simulation.server.copies.items()}))
    events = [(event.round, event.client, event.what) for event in simulation.server.events]
    assert events == [(1, 1, "dropped"), (2, 0, "dropped"), (2, 1, "dropped"), (2, 2, "dropped"), (2, None, "skipped")]
    assert all(torch.equal(seen[1][name], seen[2][name]) for name in seen[1])
    assert any(not torch.equal(seen[0][name], seen[1][name]) for name in seen[0])


@pytest.mark.parametrize(
    "wrong",
    [b"", b"nonsense", b"\0" * 1000, lambda answer: answer[:-1], lambda answer: answer[:40] + b"x" + answer[41:]],
    ids=["empty", "nonsense", "zeros", "truncated", "changed"],
)
def test_fault_40_an_answer_that_cannot_be_read_is_left_out(wrong, tmp_path):
    federation, config = awkward_federation(SIZES), made("fedavg", rounds=2)

    class Liar(Shaky):
        def ask(self, messages, timeout):
            answers = super().ask(messages, timeout)
            if trains_in_round(messages, 1):
                answers["n1"] = wrong(answers["n1"]) if callable(wrong) else wrong
            return answers

    simulation = run(config, Liar(silos(federation, tmp_path, HOSTED)))
    [event] = simulation.server.events
    assert (event.round, event.client, event.what) == (1, 1, "dropped") and "n1" in event.detail


@pytest.mark.parametrize("lie", ["shape", "dtype", "extra", "another client", "round"])
def test_an_answer_of_another_form_is_left_out(lie, tmp_path):
    from partwise.records.wire import pack_tree

    federation, config = awkward_federation(SIZES), made("fedavg", rounds=2)

    class Liar(Shaky):
        def ask(self, messages, timeout):
            answers = super().ask(messages, timeout)
            if trains_in_round(messages, 1):
                content = unpack_tree(answers["n1"])
                updates = content["updates"]
                name = next(iter(updates["parts"]))
                changes = {
                    "shape": lambda: updates["parts"].update({name: updates["parts"][name][..., :1]}),
                    "dtype": lambda: updates["parts"].update({name: updates["parts"][name].float()}),
                    "extra": lambda: updates["parts"].update(more=torch.ones(1, 2)),
                    "another client": lambda: updates.update(clients=[0]),
                    "round": lambda: updates.update(round=0),
                }
                changes[lie]()
                answers["n1"] = pack_tree(content)
            return answers

    simulation = run(config, Liar(silos(federation, tmp_path, HOSTED)))
    [event] = simulation.server.events
    assert (event.round, event.client) == (1, 1) and event.what in ("dropped", "refused")
    assert all(torch.isfinite(copies.values).all() for copies in simulation.server.copies.values())


def test_what_a_silo_allows(tmp_path):
    federation, config = awkward_federation(SIZES), made("fedavg")
    for allow, line in (
        ({"parts": ("body",)}, "n0 lets body leave, and fedavg uploads head"),
        ({"min_clients": 5}, "n0 wants 5 silos at least, the run has 3"),
        ({"most_clip": 1.0}, "n0 wants upload_clip of at most 1"),
        ({"least_noise": 0.5}, "n0 wants upload_noise from 0.5 on"),
    ):
        with pytest.raises(PartwiseError, match=line):
            run(config, Shaky(silos(federation, tmp_path, HOSTED, **allow)))
    run(replace(config, method=replace(config.method, rounds=1)), Shaky(silos(federation, tmp_path, HOSTED)))
