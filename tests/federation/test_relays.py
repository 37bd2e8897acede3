"""A relay whose model stays on a node travels as one message, and ends where the simulation ends."""

import torch

from partwise.records.wire import unpack_tree
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from tests.support.node_parity import SETTINGS, distance
from tests.support.nodes import in_process
from tests.support.runs import SIZES, awkward_federation

RELAY = {**SETTINGS, "coordinators_a": 2, "coordinators_b": 2, "rounds": 4}


def trainings(simulation):
    """The messages that asked nodes to train, by round."""
    contents = [unpack_tree(message) for _, message, _ in simulation.engine.nodes.link.sent]
    asked = [content["request"] for content in contents if content["kind"] == "request"]
    return [request["round"] for request in asked if request["job"] == "train"]


def test_a_relay_on_one_node_is_one_message(tmp_path):
    """Two chains over seven clients with samples, on one node: a message a round, where hops would take four."""
    federation, config = awkward_federation(SIZES, validated=2), make_config("fed3p2p", RELAY)
    here = prepare(config, federation).run()
    there = in_process(config, federation, tmp_path, [list(range(len(SIZES)))]).run()
    assert trainings(there) == [0, 1, 2, 3]  # the last two are phase 2, which is no relay
    assert distance(here, there) == 0
    assert [row["bytes_up"] for row in here.history.rows] == [row["bytes_up"] for row in there.history.rows]


def test_chains_within_nodes_are_one_message_to_each(tmp_path, monkeypatch):
    """Groups that are the nodes' own: nobody waits for a hop on another node."""
    hosted = [[0, 1, 2, 3], [4, 5, 6, 7]]
    groups = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    monkeypatch.setattr("partwise.methods.fed3p2p.group_balanced", lambda *arguments: groups)
    federation, config = awkward_federation(SIZES, validated=2), make_config("fed3p2p", RELAY)
    here = prepare(config, federation).run()
    there = in_process(config, federation, tmp_path, hosted).run()
    assert trainings(there)[:4] == [0, 0, 1, 1]
    assert distance(here, there) == 0


def test_what_was_foreseen_wrongly_is_asked_again(tmp_path, monkeypatch):
    """The server leaves out one update of every second hop: what the node did after it counts for nothing."""
    federation, config = awkward_federation(SIZES, validated=2), make_config("fed3p2p", RELAY)

    def forgetful(simulation):
        judge = simulation.server.safeguards.outliers.judge

        def some(accepted, request):
            accepted, events = judge(accepted, request)
            refuses = request.job == "train" and request.number % 2 == 0 and len(accepted.clients) > 1
            return accepted.only(list(range(1, len(accepted.clients)))) if refuses else accepted, events

        monkeypatch.setattr(type(simulation.server.safeguards.outliers), "judge", lambda self, *given: some(*given))
        result = simulation.run()
        monkeypatch.undo()
        return result

    here = forgetful(prepare(config, federation))
    there = forgetful(in_process(config, federation, tmp_path, [list(range(len(SIZES)))]))
    assert len(trainings(there)) > 4
    assert distance(here, there) == 0
