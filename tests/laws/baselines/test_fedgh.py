"""FedGH: one head, trained by the server on class means, replaces everybody's; bodies stay."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.support import oracle
from tests.support.runs import CLASSES

SIZE = 100  # of a feature
BODY = ["body.fc1.1.weight", "body.fc1.1.bias"]
HEAD = ["head.weight", "head.bias"]


def model(body, head):
    """The network in plain PyTorch, with values of a run."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, SIZE), nn.ReLU(), nn.Linear(SIZE, CLASSES)).double()
    net.load_state_dict(dict(zip(net.state_dict(), [*body, *head], strict=True)))
    return net


@pytest.mark.parametrize(("settings", "rate"), [({}, oracle.RATE), ({"server_lr": 0.3}, 0.3)])
def test_the_server_takes_one_step_for_every_mean_of_a_client_and_class(settings, rate):
    record = oracle.Record("fedgh", "mlp", **settings)
    weight, bias = (record.initial[name].clone() for name in HEAD)
    for number, (seen, order) in enumerate(zip(record.rounds, record.shuffles, strict=True)):
        rows = seen.exchanges[0].updates.extras["features"]
        pairs = [(client, label) for client, own in enumerate(rows.counts) for label in range(CLASSES) if own[label]]
        assert len(pairs) > len(seen.cohort)
        for client, label in (pairs[number] for number in order):
            mean = rows.sums[client, label] / rows.counts[client, label]
            error = (weight @ mean + bias).softmax(0) - torch.eye(CLASSES, dtype=torch.float64)[label]
            now = rate * oracle.DECAY**number  # as the clients' rates
            weight, bias = weight - now * error[:, None] * mean, bias - now * error
        oracle.assert_copies({"head.weight": weight, "head.bias": bias}, seen)
        up = len(pairs) * (8 * SIZE + 4 + 4)
        assert (seen.record.bytes_up, seen.record.bytes_down) == (up, 8 * CLASSES * (SIZE + 1) * len(seen.cohort))


def test_a_client_trains_its_own_body_and_the_received_head_and_sends_the_means_of_what_it_has_then():
    record, client = oracle.Record("fedgh", "mlp", participation=1.0, rounds=2), 3
    body = [record.initial[name] for name in BODY]
    for number, seen in enumerate(record.rounds):
        [exchange] = seen.exchanges
        net = model(body, [exchange.received(client)[name] for name in HEAD])
        sgd = oracle.sgd(net, oracle.RATE * oracle.DECAY**number)
        for x, y in record.mini_batches(exchange.batches(client)[0]):
            oracle.step(sgd, cross_entropy(net(x), y))
        body = [value.detach() for value in list(net.state_dict().values())[:2]]
        assert torch.allclose(seen.predictions["trained"][client], record.logits(client, net), atol=1e-12)
        features, labels = net[:3](record.x[record.train[client]]).detach(), record.y[record.train[client]]
        sent = exchange.uploaded_extras(client)["features"].mean
        for label in labels.unique():
            assert torch.allclose(sent[label], features[labels == label].mean(0), atol=1e-12)
    head = [record.rounds[-1].copies[name].values[0] for name in HEAD]
    received = record.logits(client, model(body, head))
    assert torch.allclose(record.rounds[-1].predictions["received"][client], received, atol=1e-12)


def test_its_own_adaptation_is_the_next_local_round():
    """With full batches, and a head that the server leaves alone, they are the same to rounding."""
    settings = {"participation": 1.0, "batch": 32, "lr_decay": 1.0, "server_lr": 0.0, "eval_at": (2,)}
    record = oracle.Record("fedgh", "mlp", **settings)
    oracle.assert_copies({name: record.initial[name] for name in HEAD}, record.rounds[-1])
    oracle.assert_predictions(record.rounds[2].predictions["trained"], record.rounds[1], "method_adapted")
