"""FedETF: a fixed simplex of class vectors, balanced softmax, and a personalisation in turns."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from partwise.errors import ConfigError
from partwise.losses import balanced_logits
from partwise.methods.fedetf import FedETF, SimplexETF
from partwise.network.parts import redraw
from partwise.network.view import Batch
from tests.helpers import CLASSES, network
from tests.oracles import helpers as oracle

HEAD, PROJECTOR = "head.weight", ["projector.fc2.1.weight", "projector.fc2.1.bias"]
SMALL = {"personal_rounds": 1, "personal_epochs": 1}


@pytest.mark.parametrize(("features", "classes"), [(5, 3), (4, 4), (3, 2)])
def test_the_class_vectors_are_a_simplex(features, classes):
    """V^T V = C / (C - 1) (I - 11^T / C): unit vectors, every cosine -1 / (C - 1)."""
    vectors = redraw(SimplexETF(features, classes), 1).weight
    expected = torch.full((classes, classes), -1 / (classes - 1)).fill_diagonal_(1)
    assert torch.allclose(vectors @ vectors.T, expected, atol=1e-6)
    assert torch.allclose(vectors.sum(0), torch.zeros(features), atol=1e-6)


def test_balanced_logits_by_hand():
    """With equal logits the softmax is the client's share of each class; one that it has not gets none."""
    logits = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    counts = torch.tensor([3.0, 0, 1], dtype=torch.float64)
    assert torch.allclose(balanced_logits(logits, counts).softmax(1), counts / 4)
    halved = balanced_logits(logits, counts, 0.5)
    assert torch.allclose(halved.softmax(1), counts.sqrt() / (math.sqrt(3) + 1))
    loss = F.cross_entropy(balanced_logits(logits, counts), torch.tensor([0, 2]))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert torch.allclose(gradient * 2, torch.tensor([[-0.25, 0, 0.25], [0.75, 0, -0.75]]).double())


def test_loss_and_prediction_by_hand():
    """The feature (3, 4) becomes (0.6, 0.8), times 2 in the scale; training alone looks at the client's counts."""
    net = SimpleNamespace(body=lambda x: x + 1, projector=lambda x: x - 1, head=lambda z: z, scale=lambda x: 2 * x)
    b = Batch(torch.tensor([[3.0, 4]]).double(), torch.tensor([0]), torch.tensor([True]), 2)
    me = SimpleNamespace(counts=torch.tensor([1.0, 3]))
    assert FedETF().predict(net, b.x, me).tolist() == [pytest.approx([1.2, 1.6])]
    assert FedETF().predict_global(net, b.x).tolist() == [pytest.approx([1.2, 1.6])]
    assert float(FedETF().loss(net, b, me)) == pytest.approx(math.log(1 + 3 * math.exp(0.4)))
    assert float(FedETF().personal(net, b, me)) == pytest.approx(math.log(1 + math.exp(0.4)))


def test_the_head_is_fixed_and_the_rest_shared_until_a_client_personalises_a_copy():
    """The turns are replayed for one client in plain PyTorch: one full batch for each."""
    settings = {"batch": 32, "lr_decay": 1.0, "epochs": 1, "participation": 1.0, "rounds": 1, **SMALL}
    record, client = oracle.Record("fedetf", "mlp of two layers", **settings), 3
    [seen] = record.rounds
    assert record.initial["scale.factor"] == 1
    assert torch.equal(seen.copies[HEAD].values[0], record.initial[HEAD])
    sent = 65 * 64 + 65 * 32 + 1  # body, projection, scale
    oracle.assert_bytes(seen, sent, sent, 8)
    w = {name: copies.values[0].clone().requires_grad_() for name, copies in seen.copies.items()}
    x, y = record.x[record.train[client]].flatten(1), record.y[record.train[client]]

    def logits(x):
        hidden = (x.flatten(1) @ w["body.fc1.1.weight"].T + w["body.fc1.1.bias"]).relu()
        features = (hidden @ w[PROJECTOR[0]].T + w[PROJECTOR[1]]).relu()
        return w["scale.factor"] * F.normalize(features) @ w[HEAD].T

    def step(names, rate, weight_decay, momentum=None):
        counts = torch.bincount(y, minlength=CLASSES) if len(names) > 2 else torch.ones(CLASSES)
        loss = F.cross_entropy(logits(x) + counts.double().log(), y)
        grads = torch.autograd.grad(loss, [w[name] for name in names])
        for name, grad in zip(names, grads, strict=True):
            change = grad + weight_decay * w[name] + (0 if momentum is None else 0.9 * momentum[name])
            w[name] = (w[name] - rate * change).detach().requires_grad_()
            velocity[name] = change.detach()

    velocity: dict[str, torch.Tensor] = {}
    assert record.y[record.train[client]].unique().numel() == CLASSES
    step([name for name in w if name != HEAD], oracle.RATE, oracle.WEIGHT_DECAY)  # a local round
    step([HEAD], 0.1, 0.0)
    step(PROJECTOR, 0.05, 5e-4, velocity)  # momentum lives on from the local round
    oracle.assert_close({client: record.logits(client, logits)}, seen.predictions["method_adapted"], "adapted")


def test_turns_and_refusals():
    phases = FedETF().adapt()
    assert [phase.moves[0].parts for phase in phases] == ["body projector scale", *["head", "projector"] * 20]
    assert [phase.epochs for phase in phases] == [None, *[3] * 40]
    head, projector = (phase.moves[0] for phase in phases[1:3])
    assert (head.lr, head.momentum, head.weight_decay, head.decay) == (0.1, 0.0, 0.0, False)
    assert (projector.lr, projector.momentum, projector.weight_decay, projector.decay) == (0.05, 0.9, 5e-4, False)
    parts = FedETF().build(network("cnn"), SimpleNamespace(classes=4, features=64))
    assert (parts.layers("body"), parts.layers("projector")) == (["conv1", "conv2"], ["fc1"])  # the last of three
    with pytest.raises(ConfigError, match="4 classes and 3 features"):
        FedETF().build(network("mlp of two layers"), SimpleNamespace(classes=4, features=3))
    with pytest.raises(
        ConfigError, match=r"but it has only \['fc1'\]; --projector adds one; parts: body \(fc1\), head$"
    ):
        FedETF().build(network("mlp"), SimpleNamespace(classes=4, features=100))
