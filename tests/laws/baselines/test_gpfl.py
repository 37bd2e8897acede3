"""GPFL: one valve, set by the mean of all class embeddings and by the client's own labels; only heads stay."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from partwise.methods.gpfl import GPFL, Embeddings, Valve
from partwise.network.view import Batch
from partwise.tasks import Classes
from tests.support import oracle
from tests.support.runs import CLASSES

SIZE = 100  # of a feature


def numbers(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def test_loss_and_prediction_by_hand():
    """A valve that takes a condition v as gamma = v - 1 and beta = -v: features are relu(v z - v); one row is padding.

    The received embeddings (2, 2) and (0, 6) have the mean (1, 4); the labels 3 to 1 make (1.5, 3) of them.
    """
    received, labels = numbers([2, 2], [0, 6]), numbers(3, 1)
    mine = numbers([1, 0], [0, 1])  # they have moved since
    net = SimpleNamespace(
        body=lambda x: x,
        valve=lambda v: (v - 1, -v),
        head=lambda z: 2 * z,
        embeddings=lambda z: F.normalize(z) @ F.normalize(mine).T,
    )
    me = SimpleNamespace(got={"embeddings": {"weight": received}}, counts=labels, samples=labels.sum())
    b = Batch(numbers([4, 2], [0, 9]), torch.tensor([0, 1]), torch.tensor([True, False]), Classes.numbered(2))
    assert GPFL().predict(net, b.x, me).tolist() == [[9, 6], [0, 48]]  # twice relu(1.5 x - 1.5, 3 x - 3)
    personal = math.log(1 + math.exp(6 - 9))
    angle = math.log(1 + math.exp((4 - 3) / 5))  # generic features (3, 4): the cosines are 0.6 and 0.8
    magnitude = math.hypot(3 - 2, 4 - 2)
    for weight in (0.0, 0.01, 2.0):
        method = GPFL() if weight == 0.01 else GPFL(magnitude_weight=weight)
        assert float(method.loss(net, b, me)) == pytest.approx(personal + angle + weight * magnitude)


def test_the_modules_by_hand():
    cosines = Embeddings.from_pretrained(numbers([3, 4], [0, 2]))(numbers([0, 5], [1, 0]))
    assert torch.allclose(cosines, numbers([0.8, 1], [0.6, 0]))
    valve, condition = Valve(2).double(), numbers(1, 3)
    with torch.no_grad():
        for linear, values in ((valve.gamma[0], [[1, 0], [0, 1]]), (valve.beta[0], [[-1, 0], [-1, 1]])):
            linear.weight.copy_(numbers(*values)), linear.bias.zero_()
    gamma, beta = valve(condition)  # (1, 3) and (0, 2), after ReLU, both normalised to (-1, 1)
    assert torch.allclose(gamma, numbers(-1, 1), atol=1e-4) and torch.allclose(beta, numbers(-1, 1), atol=1e-4)
    assert torch.allclose(valve(2 * condition)[0], gamma, atol=1e-4)
    linear.bias.data -= 4  # ReLU leaves nothing of it
    assert valve(condition)[1].tolist() == [0, 0]


def test_a_client_round_in_plain_pytorch():
    """Conditions and frozen embeddings are those received; embeddings and valve have a decay of their own."""
    record, client = oracle.Record("gpfl", "mlp", rounds=1, participation=1.0, lr=0.2), 3
    [seen] = record.rounds
    [exchange] = seen.exchanges
    sent = 65 * SIZE + CLASSES * SIZE + 2 * (SIZE**2 + 3 * SIZE)  # body, embeddings, valve
    oracle.assert_bytes(seen, sent, sent, 8)
    w = {name: value.clone().requires_grad_() for name, value in record.initial.items()}
    got = record.initial["embeddings.weight"]
    labels = record.y[record.train[client]]
    conditions = {"generic": got.mean(0), "personal": got[labels].mean(0)}

    def valve(z, condition):
        gamma, beta = (
            F.layer_norm(
                F.linear(conditions[condition], w[f"valve.{part}.0.weight"], w[f"valve.{part}.0.bias"]).relu(),
                [SIZE],
                w[f"valve.{part}.2.weight"],
                w[f"valve.{part}.2.bias"],
            )
            for part in ("gamma", "beta")
        )
        return (z * (1 + gamma) + beta).relu()

    def logits(x):
        z = F.linear(x.flatten(1), w["body.fc1.1.weight"], w["body.fc1.1.bias"]).relu()
        return F.linear(valve(z, "personal"), w["head.weight"], w["head.bias"]), valve(z, "generic")

    guiding = [value for name, value in w.items() if name.startswith(("embeddings", "valve"))]
    others = [value for name, value in w.items() if name.startswith(("body", "head"))]
    groups = [{"params": guiding, "weight_decay": 0.1}, {"params": others, "weight_decay": oracle.WEIGHT_DECAY}]
    sgd = torch.optim.SGD(groups, 0.2, momentum=oracle.MOMENTUM)
    for x, y in record.mini_batches(exchange.batches(client)[0]):
        sgd.zero_grad()
        predicted, generic = logits(x)
        cosines = F.cosine_similarity(generic[:, None], w["embeddings.weight"][None], dim=2)
        distance = (generic - got[y]).square().sum(1).sqrt().mean()
        (F.cross_entropy(predicted, y) + F.cross_entropy(cosines, y) + 0.01 * distance).backward()
        sgd.step()
    held = {**exchange.uploaded(client), **record.own(client, ["head.weight", "head.bias"])}
    oracle.assert_close(held, {name: value.detach() for name, value in w.items()}, "client 3")
    oracle.assert_close({client: record.logits(client, lambda x: logits(x)[0])}, seen.predictions["trained"], "trained")
