"""FedProto: a pull towards class means of all, no model on the wire, and the nearest of them decides."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from partwise.methods.fedproto import FedProto
from partwise.network.view import Batch, ClassRows, Received
from partwise.tasks import Classes
from tests.support.oracle import Record
from tests.support.runs import CLASSES, network, simulate
from tests.support.states import distance

PLANE = {"body": lambda x: x, "head": lambda z: z @ torch.tensor([[1.0, 0, 0], [0, 2, 0]]).double()}


def numbers(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def received(**extras):
    return SimpleNamespace(got=Received(None, set(), extras))


def test_loss_and_decision_by_hand():
    """Class 2 has no prototype: it pulls nobody, and nobody is near it."""
    net, me = SimpleNamespace(**PLANE), received(prototypes=numbers([0, 0], [3, 4], [math.nan, math.nan]))
    b = Batch(
        numbers([3, 4], [3, 1], [9, 9], [5, 5]), torch.tensor([0, 1, 2, 0]), torch.arange(4) < 3, Classes.numbered(3)
    )
    entropy = F.cross_entropy(net.head(b.x[:3]), b.y[:3])
    pull = ((9 + 16) / 2 + (0 + 9) / 2 + 0) / 3
    assert torch.allclose(FedProto().loss(net, b, me), entropy + pull)
    assert torch.allclose(FedProto(prototype_weight=0.5).loss(net, b, me), entropy + 0.5 * pull)
    assert torch.allclose(FedProto().loss(net, b, received()), entropy)
    assert FedProto().predict(net, b.x[:2], me)[:, :2].tolist() == [[-25, 0], [-10, -9]]
    assert (FedProto().predict(net, b.x, me)[:, 2] < -1e8).all()
    for how, got in (("prototype", received()), ("classifier", me)):
        assert torch.equal(FedProto(inference=how).predict(net, b.x, got), net.head(b.x))


@pytest.mark.parametrize(("settings", "expected"), [({}, [3.0, 5]), ({"prototype_mean": "samples"}, [2.5, 5])])
def test_global_prototypes_by_hand(settings, expected):
    """Of class 0 one client has 3 samples with the mean 2, another 1 with 4; of class 1 only the second has some."""
    rows = ClassRows(numbers([[6], [0], [0]], [[4], [10], [0]]), numbers([3, 0, 0], [1, 2, 0]))
    server, method = SimpleNamespace(memory={}), FedProto(**settings)
    assert method.down(server) == {}
    method.aggregate(server, SimpleNamespace(extras={"prototypes": rows}))
    assert method.down(server)["prototypes"][:2, 0].tolist() == expected
    assert method.down(server)["prototypes"][2].isnan().all()
    method.aggregate(server, SimpleNamespace(extras={"prototypes": ClassRows(rows.sums[:1] * 2, rows.counts[:1])}))
    assert method.down(server)["prototypes"][:2, 0].tolist() == [4, 5]  # nobody of class 1 took part: it stays


def test_without_weight_it_is_local_training_and_the_own_classifier_tells():
    quiet = simulate("fedproto", network("mlp"), prototype_weight=0.0, inference="classifier", rounds=2)
    local = simulate("local", network("mlp"), rounds=2)
    quiet.server.memory.clear()
    for run in (quiet, local):
        run.history.rounds = [replace(record, bytes_up=0, bytes_down=0) for record in run.history.rounds]
    assert distance(quiet, local) == 0
    pulled = simulate("fedproto", network("mlp"), inference="classifier", rounds=2)
    assert (pulled.engine.store.own(4, ["body.fc1.1.weight"])["body.fc1.1.weight"] - held(local)).abs().max() > 1e-6


def held(run):
    return run.engine.store.own(4, ["body.fc1.1.weight"])["body.fc1.1.weight"]


def test_prototypes_are_the_mean_features_after_training_and_all_that_travels():
    record, size = Record("fedproto", "mlp", participation=1.0, rounds=2), 100
    first, second = record.rounds
    classes = sum(len(record.y[own].unique()) for own in record.train)
    assert first.record.bytes_up == classes * (8 * size + 4 + 4)
    assert (first.record.bytes_down, second.record.bytes_down) == (0, 8 * 8 * CLASSES * size)
    own = record.run.engine.store.own(3, ["body.fc1.1.weight", "body.fc1.1.bias"])
    weight, bias = own.values()
    features = (record.x[record.train[3]].flatten(1) @ weight.T + bias).relu()
    sent = second.exchanges[0].uploaded_extras(3)["prototypes"]
    for label in range(CLASSES):
        mine = features[record.y[record.train[3]] == label]
        assert len(mine) and torch.allclose(sent.mean[label], mine.mean(0))


def test_a_class_without_prototype_leaves_gradients_finite():
    """What fine-tuning does: cross-entropy on the decision. -2 (z - c) of the classes, weighted by their softmax."""
    z = numbers([1, 1]).requires_grad_()
    me = received(prototypes=numbers([0, 0], [1, 3], [math.nan, math.nan]))
    net, b = SimpleNamespace(**PLANE), Batch(z, torch.tensor([1]), torch.tensor([True]), Classes.numbered(3))
    (gradient,) = torch.autograd.grad(b.ce(FedProto().predict(net, z, me)), z)
    share = 1 / (1 + math.exp(2))  # of class 1: the squared distances are 2 and 4
    expected = (1 - share) * (-2 * numbers([1, 1]) + 2 * numbers([0, -2]))
    assert torch.allclose(gradient, expected)
