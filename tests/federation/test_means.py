"""A node that hosts many clients sends the mean of their parts where nothing else is made of them."""

from dataclasses import replace

import pytest
import torch

from partwise.errors import PartwiseError
from partwise.records.messages import Sent
from partwise.records.record import fields_of, read_record
from partwise.records.wire import read_updates, sent_of, unpack_tree
from partwise.rounds.acceptance import accept_updates
from partwise.rounds.messages import Request, Updates, concatenated
from partwise.rounds.mixing import Copies, mean_matrix, mixed
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from tests.support.node_parity import HOSTED, SETTINGS, distance
from tests.support.nodes import in_process
from tests.support.runs import SIZES, awkward_federation

WEIGHT = "head.weight"


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch):
    monkeypatch.setattr("partwise.federation.protocol.run_on_node.CLIENTS_FOR_MEAN", 2)


def rows_sent(simulation, name=WEIGHT):
    """How many rows of a tensor each node's answers to its trainings had, in the first round."""
    contents = [(unpack_tree(message), answer) for _, message, answer in simulation.engine.nodes.link.sent]
    trained = [
        unpack_tree(answer)["updates"]
        for content, answer in contents
        if content["kind"] == "request" and content["request"]["job"] == "train" and content["request"]["round"] == 0
    ]
    return [len(updates["parts"][name]) for updates in trained]


def federated(tmp_path, method="fedavg", hosted=HOSTED, **settings):
    federation = awkward_federation(SIZES, validated=2)
    config = make_config(method, {**SETTINGS, **settings})
    return prepare(config, federation).run(), in_process(config, federation, tmp_path, hosted).run()


@pytest.mark.parametrize("aggregation", ["samples", "uniform"])
def test_a_node_sends_one_row_for_all_its_clients(aggregation, tmp_path):
    here, there = federated(tmp_path, aggregation=aggregation, participation=0.7)
    assert set(rows_sent(there)) == {1}
    assert distance(here, there) < 1e-12
    for row, other in zip(here.history.rows, there.history.rows, strict=True):
        assert row["bytes_up"] == other["bytes_up"] and row["participants"] == other["participants"]
        assert row["train_loss"] == pytest.approx(other["train_loss"], abs=1e-12)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("feddyn", {}),  # looks at every client's parameters
        ("fedavg", {"robust": "median"}),
        ("fedavg", {"outliers": "clip"}),
        ("fedavg", {"stragglers": 0.5}),  # late updates are made and left out
    ],
)
def test_where_more_is_made_of_updates_than_their_mean_each_travels(method, settings, tmp_path):
    here, there = federated(tmp_path, method, **settings)
    assert rows_sent(there) == [len(clients) for clients in HOSTED]
    assert distance(here, there) < 1e-10


def test_few_clients_of_a_node_send_their_own_updates(tmp_path, monkeypatch):
    """So that the server can still say which of them is out of the ordinary; and then all is equal to the last bit."""
    monkeypatch.undo()
    here, there = federated(tmp_path)
    assert rows_sent(there) == [len(clients) for clients in HOSTED]
    assert distance(here, there) == 0


def test_a_client_that_diverges_is_not_in_the_mean_of_its_node(tmp_path):
    """Law: nodes and simulation leave out the same client, and end at the same model."""
    federation = awkward_federation(SIZES, validated=2)
    x = federation.source.x.float()
    x[federation.train[3]] = float("nan")
    federation = replace(federation, source=replace(federation.source, x=x))
    config = make_config("fedavg", {**SETTINGS, "allow_nonfinite_data": True})
    here = prepare(config, federation).run()
    there = in_process(config, federation, tmp_path, HOSTED).run()
    assert [row["refused"] for row in there.history.rows] == [row["refused"] for row in here.history.rows] == [[3]] * 3
    assert distance(here, there) < 1e-12


def node_update(clients, samples, value, mean=None):
    number = len(clients)
    column = torch.ones(number)
    return Updates(clients, 0, torch.tensor(samples), column, column, {"w": torch.tensor(value)}, {}, mean=mean)


def test_a_mean_weighs_as_much_as_its_clients():
    """1 and 3 samples with the mean 2.0, and client 9 refused; on another node 4 with 8.0: (4 * 2 + 4 * 8) / 8 = 5."""
    together = node_update([0, 2, 9], [1.0, 3.0, 5.0], [[2.0]], torch.tensor([0, 0, -1]))
    alone = node_update([1], [4.0], [[8.0]])
    every = concatenated([together, alone])
    assert every.clients == [0, 1, 2, 9] and every.mean.tolist() == [0, 1, 0, -1]
    request = Request("train", None, 0, [0, 1, 2, 9], {})
    accepted, refused = accept_updates(every, request, {"w": torch.zeros(1)}, torch.full((10,), 5))
    assert [event.client for event in refused] == [9] and accepted.clients == [0, 1, 2]
    matrix = mean_matrix_of(accepted)
    assert mixed(accepted.by_row(matrix), accepted.parts["w"], torch.zeros(1, 1)).item() == 5.0


def mean_matrix_of(updates):
    return mean_matrix(Copies(torch.zeros(1, 1)), updates.clients, updates.samples.double())


def test_whoever_spoils_a_mean_takes_all_of_it_along():
    """Client 2 counts more samples than it registered: its node's mean cannot be mended, the other node's is used."""
    together = node_update([0, 2], [1.0, 30.0], [[2.0]], torch.tensor([0, 0]))
    every = concatenated([together, node_update([1], [4.0], [[8.0]])])
    request = Request("train", None, 0, [0, 1, 2], {})
    accepted, refused = accept_updates(every, request, {"w": torch.zeros(1)}, torch.full((10,), 5))
    assert accepted.clients == [1] and [event.client for event in refused] == [0, 2]
    matrix = mean_matrix_of(accepted)
    assert mixed(accepted.by_row(matrix), accepted.parts["w"], torch.zeros(1, 1)).item() == 8.0


@pytest.mark.parametrize(
    "mean", [torch.tensor([0, 1]), torch.tensor([-2, 0]), torch.tensor([0.0, 0.0]), torch.tensor([0]), "rows"]
)
def test_a_mean_that_is_none_is_refused(mean):
    sent = sent_of(node_update([0, 2], [1.0, 3.0], [[2.0]], torch.tensor([0, 0])))
    read_updates(sent)
    with pytest.raises(PartwiseError):
        read_updates(read_record(Sent, {**fields_of(sent), "mean": mean}, "updates"))
