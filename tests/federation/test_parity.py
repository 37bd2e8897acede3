"""Law D2, without the network between: clients on nodes end where clients in simulation end."""

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from partwise.records.wire import unpack_tree
from partwise.rounds.mixing import Copies
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from tests.support.listed import LISTED
from tests.support.node_parity import HOSTED, OWN, SETTINGS, distance
from tests.support.nodes import in_process
from tests.support.runs import SIZES, awkward_federation

# What FedPAC and FedFomo measure, to report it, and FedFomo's model before training: perhaps that uploaded a round ago.
REPORTED = ("statistics", "tried", "before")
EVERY = sorted(set(LISTED) - {"central"})  # which brings all samples to one place


@pytest.mark.parametrize("method", EVERY)
def test_nodes_equal_the_simulation_and_nothing_personal_leaves_them(method, tmp_path):
    federation = awkward_federation(SIZES, validated=2)
    config = make_config(method, {**SETTINGS, **OWN.get(method, {})})
    here = prepare(config, federation).run()
    there = in_process(config, federation, tmp_path, HOSTED).run()
    assert distance(here, there) < 1e-10
    nodes = there.engine.nodes.link.nodes
    own = sorted({name for plan in here.server.plans for name in plan.own})
    for node, clients in zip(nodes.values(), HOSTED, strict=True):
        mine, theirs = node.run.simulation.engine.store, here.engine.store
        for name in own:
            assert torch.allclose(mine.stacked(clients, [name])[name], theirs.stacked(clients, [name])[name], 0, 1e-10)
        for name, value in mine.remembered(clients).items():
            assert torch.allclose(value, theirs.remembered(clients)[name], 0, 1e-10), name
    for row, other in zip(here.history.rows, there.history.rows, strict=True):
        for moment in ("received", "trained", "validation", "method_adapted"):
            if moment in row:
                assert row[moment]["acc_mean"] == pytest.approx(other[moment]["acc_mean"], abs=1e-12), moment
        assert row["bytes_up"] == other["bytes_up"] and row["bytes_down"] == other["bytes_down"]
    assert_nothing_personal_left(there, federation)


def assert_nothing_personal_left(simulation, federation):
    """Case 44 of the faults: look into every answer of every node, and into what other nodes were sent."""
    link, plans = simulation.engine.nodes.link, simulation.server.plans
    uploaded = {name for plan in plans for name in plan.up}
    personal = {}  # what clients keep and no stage uploads, as it is after the last round
    for node, clients in zip(link.nodes.values(), HOSTED, strict=True):
        store = node.run.simulation.engine.store
        for key, sheet in store.sheets.items():
            kept = key[0] == "own" and key[1] not in uploaded and key[1].split(".")[0] not in REPORTED
            for client in clients if kept else ():
                value = sheet.values[store.row[client]].flatten()
                start = store.initial[key[1]].of([client])[0].flatten()
                if len(value) > 1 and not torch.equal(value, start):  # nobody learns from what everybody starts with
                    personal[client, key[1]] = value
    samples = federation.source.x.flatten(1).double()
    seen = (samples - 127.5) / 127.5
    for name, message, answer in link.sent:
        own = next(clients for node, clients in zip(link.nodes, HOSTED, strict=True) if node == name)
        for content, whose in ((answer, own), (message, [k for k in range(len(SIZES)) if k not in own])):
            for tensor in tensors_in(unpack_tree(content)):
                for (client, tensor_name), value in personal.items():
                    if client in whose:
                        assert not holds(tensor, value), (name, client, tensor_name)
                if tensor.numel() >= samples.shape[1]:
                    for rows in (samples, seen):
                        assert not any(holds(tensor, row) for row in rows[::5]), f"{name}: a sample"
                for client in whose:
                    labels = federation.source.y[federation.train[client]]
                    if len(labels) > 8:
                        assert not holds(tensor, labels), f"{name}: the labels of client {client}"


def tensors_in(tree):
    plain = tree_leaves(tree, is_leaf=lambda leaf: isinstance(leaf, Copies))
    leaves = [leaf.values if isinstance(leaf, Copies) else leaf for leaf in plain]
    return [torch.as_tensor(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor | np.ndarray)]


def holds(tensor, value):
    """Whether the numbers of a tensor stand anywhere in another, one after the other."""
    line, value = tensor.double().flatten(), value.double().flatten()
    places = (
        (line[: len(line) - len(value) + 1] == value[0]).nonzero()[:, 0].tolist() if len(line) >= len(value) else []
    )
    return any(torch.equal(line[place : place + len(value)], value) for place in places)
