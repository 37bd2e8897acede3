"""Corners of the core: networks, shares, numbers and answers that are rare and must not go wrong silently."""

from collections import OrderedDict
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn

from partwise.errors import ConfigError, Diverged
from partwise.method import ALL, FROZEN, GROUP, Method, Move, Phase, Stage, train
from partwise.network.layers import LayerScope
from partwise.network.parts import Parts
from partwise.network.view import ClassRows, Net
from partwise.rounds.batches import Recipe, shuffled
from partwise.rounds.cohort import share_of
from partwise.rounds.ledger import wire_bytes
from partwise.rounds.messages import Updates
from partwise.rounds.mixing import mixed
from partwise.runs.config import make_config
from partwise.streams import stream_key
from tests.support.runs import CLASSES, awkward_federation, network, simulate

# ---- mixing


def test_a_group_of_one_is_the_identity_whatever_others_send():
    uploads = torch.tensor([[1e8], [1.0]])
    assert torch.equal(mixed(torch.eye(2, dtype=torch.float64), uploads, torch.zeros(2, 1)), uploads)


def test_a_parameter_that_is_a_single_number_can_be_mixed():
    assert mixed(torch.tensor([[0.5, 0.5]]), torch.tensor([1.0, 3.0]), torch.zeros(1)).tolist() == [2.0]


class Halves(Method):
    def stages(self):
        yield Stage(train(), {"*": ALL, "body.fc1": GROUP}, rounds=self.rounds)

    def groups(self, server):
        return [client % 2 for client in range(server.clients)]


def test_layers_of_one_part_with_different_shares_are_mixed_each_in_its_own_way():
    copies = simulate(Halves, network("cnn"), rounds=1).server.copies
    assert not torch.equal(*copies["body.fc1.1.weight"].values)
    assert len(copies["body.conv1.0.weight"].values) == 1


class Still(Method):
    share = {"*": FROZEN}


def test_a_stage_in_which_everything_is_frozen_runs():
    parts = network("mlp")
    copies = simulate(Still, parts, rounds=1).server.copies
    assert all(torch.equal(copies[name].values[0], value) for name, value in parts.tensors().items())


# ---- answers


class Deaf:
    """An engine from which nobody answers."""

    def __init__(self, engine):
        self.engine = engine

    def run(self, request):
        return self.engine.run(request).only([])


class Stale(Deaf):
    """An engine from which every answer belongs to the round before."""

    def run(self, request):
        return replace(self.engine.run(request), round=request.round - 1)


@pytest.mark.parametrize(("engine", "refused"), [(Deaf, 0), (Stale, 8)])
def test_a_round_without_usable_answers_stops_in_one_line(engine, refused):
    server = simulate("fedavg", network("mlp"), rounds=1).server
    server.engine = engine(server.engine)
    with pytest.raises(Diverged, match=f"diverged at round 2: 0 of 8 updates can be used, {refused} refused"):
        server.step()


def test_a_row_too_few_is_refused():
    server = simulate("fedavg", network("mlp"), rounds=1).server
    engine = server.engine

    class Short:
        def run(self, order) -> Updates:
            updates = engine.run(order)
            return replace(updates, parts={name: value[:1] for name, value in updates.parts.items()})

    server.engine = Short()
    with pytest.raises(Diverged, match="a batch with a wrong number of rows"):
        server.step()


# ---- networks


def shared_layers():
    relu, drop = nn.ReLU(), nn.Dropout(0.5)
    return OrderedDict(a=nn.Linear(2, 2), r=relu, d=drop, b=nn.Linear(2, 2), r2=relu, d2=drop)


def body_and_head():
    return Parts(nn.Sequential(OrderedDict(body=nn.Sequential(shared_layers()), head=nn.Linear(2, 2))))


def test_a_layer_that_stands_in_two_places_stays_in_both():
    assert Parts(nn.Sequential(shared_layers())).chain == ("a", "r", "d", "b", "r2", "d2")
    assert body_and_head().cut("body", filter="b").layers("filter") == ["b", "r2", "d2"]
    prepared = body_and_head().prepared(LayerScope()).modules["body"]
    assert not any(isinstance(layer, nn.Dropout) for layer in prepared)
    assert prepared.d is prepared.d2


def test_what_a_cut_refuses():
    with pytest.raises(ConfigError, match="there is a part 'head' already"):
        network("cnn").cut("body", head="fc1")
    parts = Parts(
        nn.Sequential(body_and_head().modules["body"]), body="0", forward={"body": lambda self, x: self[0](x)}
    )
    with pytest.raises(ConfigError, match="a forward of its own"):
        parts.cut("body", filter="b")


def test_a_network_must_fall_into_its_parts():
    with pytest.raises(ConfigError, match=r"outside its parts \['body'\]: head.weight, head.bias"):
        Parts(nn.ModuleDict(body_and_head().modules), body="body")


def test_a_layer_without_tensors_is_not_unknown():
    with pytest.raises(ConfigError, match=r"selector 'body.r' matches nothing: it has no parameters"):
        body_and_head().select("body.r")


def test_drawing_leaves_the_generators_of_all_devices_alone():
    with patch("torch.cuda.manual_seed_all") as seeded:
        network("mlp")
    assert not seeded.called


class Restless(nn.Module):
    """Dropout by function: it draws from torch's own generator."""

    def forward(self, x):
        return nn.functional.dropout(x.flatten(1), 0.5, self.training)


def test_a_network_that_draws_by_itself_is_refused():
    net = nn.Sequential(OrderedDict(body=nn.Sequential(Restless(), nn.Linear(64, 8)), head=nn.Linear(8, CLASSES)))
    with pytest.raises(ConfigError, match="draws unseeded random numbers"):
        simulate("fedavg", Parts(net.double()), rounds=1)


def test_without_a_mask_all_rows_are_real():
    scope = LayerScope()
    parts = Parts(nn.Sequential(OrderedDict(layer=nn.BatchNorm2d(3)))).prepared(scope)
    x = torch.linspace(-1, 2, 300).view(4, 3, 5, 5)
    assert torch.allclose(Net(parts, scope, parts.tensors(), training=True)(x), nn.BatchNorm2d(3)(x), atol=1e-5)


def test_other_kinds_of_dropout_are_refused_rather_than_run_as_plain_dropout():
    with pytest.raises(ConfigError, match="AlphaDropout"):
        Parts(nn.Sequential(OrderedDict(body=nn.Sequential(nn.AlphaDropout(0.5))))).prepared(LayerScope())


def test_dropout_of_everything_gives_zeros():
    scope = LayerScope()
    parts = Parts(nn.Sequential(OrderedDict(drop=nn.Dropout(1.0)))).prepared(scope)
    assert Net(parts, scope, {}, training=True, key=torch.tensor(1))(torch.ones(1, 3)).tolist() == [[0, 0, 0]]


# ---- numbers


def test_fractions_that_floats_miss_by_a_hair():
    assert shuffled(np.arange(25), Recipe(1, 0.28), 0, 0).steps == 7  # 0.28 * 25 = 7.000000000000001
    assert share_of(50, 0.29) == 15  # 0.29 * 50 = 14.499999999999998


@pytest.mark.parametrize(("name", "value"), [("rounds", 10**400), ("lr", 10**400), ("rounds", b"3"), ("lr", "1_0")])
def test_odd_numbers_are_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name} = "):
        make_config("fedavg", {name: value})


class Steps(Method):
    number: int = 3

    def phases(self):
        return Phase(Move("*"), steps=self.number)


def test_ten_times_the_steps_cost_ten_times_the_operations():
    federation = awkward_federation((16,))
    few, many = (simulate(Steps, network("mlp"), federation, rounds=1, number=number) for number in (3, 30))
    assert many.server.ledger.flops == 10 * few.server.ledger.flops > 0


def test_class_rows_within_a_list_are_counted_as_class_rows():
    rows = ClassRows(torch.ones(5, 3), torch.tensor([1.0, 0, 0, 0, 0]))
    assert wire_bytes([rows, rows]) == 2 * wire_bytes(rows) == 2 * (3 * 4 + 4 + 4)


def test_names_of_streams_do_not_run_into_each_other():
    assert stream_key(0, "a/str:b") != stream_key(0, "a", "b")
    assert stream_key(0, "client", np.int64(3)) == stream_key(0, "client", 3)
