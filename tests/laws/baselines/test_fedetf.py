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
from partwise.tasks import Classes
from tests.support import oracle
from tests.support.runs import network

HEAD = "head.weight"
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
    b = Batch(torch.tensor([[3.0, 4]]).double(), torch.tensor([0]), torch.tensor([True]), Classes.numbered(2))
    me = SimpleNamespace(counts=torch.tensor([1.0, 3]))
    assert FedETF().predict(net, b.x, me).tolist() == [pytest.approx([1.2, 1.6])]
    assert FedETF().predict_global(net, b.x).tolist() == [pytest.approx([1.2, 1.6])]
    assert float(FedETF().loss(net, b, me)) == pytest.approx(math.log(1 + 3 * math.exp(0.4)))
    assert float(FedETF().personal(net, b, me)) == pytest.approx(math.log(1 + math.exp(0.4)))


def test_the_class_vectors_keep_the_precision_of_their_layer():
    layer = SimplexETF(5, 3).double()
    layer.reset_parameters()
    expected = torch.full((3, 3), -1 / 2, dtype=torch.float64).fill_diagonal_(1)
    assert torch.allclose(layer.weight @ layer.weight.T, expected, rtol=0, atol=1e-14)


def test_the_head_is_fixed_and_the_rest_shared():
    record = oracle.Record("fedetf", "mlp", **SMALL)
    sent = 65 * 100 + 101 * 100 + 1  # body, projection, scale
    for seen in record.rounds:
        assert torch.equal(seen.copies[HEAD].values[0], record.initial[HEAD])
        oracle.assert_bytes(seen, sent, sent, len(seen.cohort))


def test_turns_and_refusals():
    phases = FedETF().adapt()
    assert [phase.moves[0].parts for phase in phases] == ["body projector scale", *["head", "projector"] * 20]
    assert [phase.epochs for phase in phases] == [None, *[3] * 40]
    assert [phase.restart_optimizer for phase in phases] == [False, *[True] * 40]
    head, projector = (phase.moves[0] for phase in phases[1:3])
    assert (head.lr, head.momentum, head.weight_decay, head.decay) == (0.1, 0.0, 0.0, False)
    assert (projector.lr, projector.momentum, projector.weight_decay, projector.decay) == (0.05, 0.9, 5e-4, False)
    with pytest.raises(ConfigError, match="4 classes and 3 features"):
        FedETF().build(network("mlp"), SimpleNamespace(classes=4, features=3))
