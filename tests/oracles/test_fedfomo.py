"""FedFomo (Eqs. 3, 4): from its model before training a client moves to those that do better on held-back samples."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from partwise.methods import find
from tests.support import oracle

MODELS = 3  # M
SHARE = 0.3  # of the samples, held back
EPSILON, DECAY = 0.3, 0.1
FedFomo = find("fedfomo")


class Chosen:
    """Whose models each client received: of a round the first time for training, the last time for the test."""

    def __init__(self, patch):
        self.rounds, choose = [], FedFomo.chosen

        def noting(method, server, client):
            others = choose(method, server, client)
            self.now.setdefault(client, []).append(others)
            return others

        self.now = {}
        patch.setattr(FedFomo, "chosen", noting)


class Watched(oracle.Record):
    """A record that also knows whose models were sent."""

    def __init__(self, chosen, *arguments, **settings):
        self.chosen = chosen
        super().__init__(*arguments, **settings)

    def round(self, seen):
        super().round(seen)
        self.chosen.rounds.append(self.chosen.now)
        self.chosen.now = {}


def distance(one, two):
    return sum(float((value - two[name]).square().sum()) for name, value in one.items()) ** 0.5


def gains_of(base, candidates, loss):
    """Eq. 4: how far a model's loss is below that of the base, over its distance; 0 for the base itself.

    A model that the client took whole in an earlier round is the base itself, up to rounding.
    """
    apart, rounding = [distance(base, model) for model in candidates], 1e-14 * distance(base, dict.fromkeys(base, 0.0))
    pairs = zip(candidates, apart, strict=True)
    return [(loss(base) - loss(model)) / far if far > rounding else 0.0 for model, far in pairs]


def moved(base, candidates, gains, without_gain):
    """Eq. 3: the base plus the differences to the models that gain, by their share of all gains above 0."""
    positive = [max(gain, 0.0) for gain in gains]
    if not any(positive):
        return base if without_gain == "before" else candidates[0]
    shares = [gain / sum(positive) for gain in positive]
    pairs = list(zip(shares, candidates, strict=True))
    return {name: value + sum(w * (one[name] - value) for w, one in pairs) for name, value in base.items()}


@torch.no_grad()
def begun(base, own, others, running, norm, record, held_back, without_gain):
    """What a client begins with, and its gains: of its own trained model, then of the others."""
    candidates = [own, *others]
    if not held_back:
        return own, [0.0] * len(candidates)  # it cannot judge any model, and stays with its own
    x, y = record.x[held_back], record.y[held_back]

    def loss(model):
        return float(cross_entropy(oracle.predicting(oracle.two_parts({**running, **model}, norm))(x), y))

    gains = gains_of(base, candidates, loss)
    return moved(base, candidates, gains, without_gain), gains


def running_values(tensors):
    return {name: value for name, value in tensors.items() if "running" in name}


def samples_of(steps):
    return sorted({int(sample) for step in steps for sample in np.ravel(step)})


def unstacked(models):
    """The models of others, one by one."""
    number = len(next(iter(models.values())))
    return [{name: value[j] for name, value in models.items()} for j in range(number)]


def assert_sent(exchange, client, chosen, latest, affinity, exploring):
    """A client got the latest models of those that gained most for it; which of equals is drawn."""
    assert client not in chosen and len(set(chosen)) == MODELS
    received = unstacked(exchange.received_extras(client)["others"])
    for other, model in zip(chosen, received, strict=True):
        oracle.assert_close(latest[other], model, f"client {client}, model of {other}")
    if not exploring:
        rest = [affinity[client, other] for other in oracle.CLIENTS if other != client and other not in chosen]
        assert min(affinity[client, other] for other in chosen) >= max(rest) - oracle.TOLERANCE


@pytest.mark.parametrize(
    ("baseline", "without_gain"), [("before", "before"), ("before", "trained"), ("trained", "before")]
)
@pytest.mark.parametrize("explore", [0.0, EPSILON])
@pytest.mark.parametrize("net_name", ["cnn+bn", "cnn"])
def test_fedfomo(net_name, explore, baseline, without_gain, monkeypatch):
    norm, chosen = net_name == "cnn+bn", Chosen(monkeypatch)
    options = {"models": MODELS, "validation_share": SHARE, "explore": explore, "explore_decay": DECAY}
    options |= {"baseline": baseline} | ({"without_gain": without_gain} if baseline == "before" else {})
    record = Watched(chosen, "fedfomo", net_name, **options, rounds=5)
    start = oracle.values(oracle.two_parts(record.initial, norm))
    held, stepped = dict.fromkeys(oracle.CLIENTS, start), set()
    before = dict.fromkeys(oracle.CLIENTS, oracle.parameters(start))  # the model before a client's last training
    latest = dict.fromkeys(oracle.CLIENTS, oracle.parameters(start))
    affinity, taken, idle = torch.zeros(8, 8, dtype=torch.float64), 0, 0
    for t, seen in enumerate(record.rounds):
        [exchange] = oracle.trained_by(seen)
        trained, uploads, gained = {}, {}, {}
        exploring = explore - t * DECAY > 0
        for client in seen.cohort:
            others = chosen.rounds[t][client][0]
            assert_sent(exchange, client, others, latest, affinity, exploring)
            measuring, training = exchange.batches(client)
            held_back = samples_of(measuring)
            assert not set(held_back) & set(samples_of(training))
            own = oracle.parameters(held[client])
            base = before[client] if baseline == "before" else own
            running = running_values(held[client])
            models = [latest[other] for other in others]
            first, gains = begun(base, own, models, running, norm, record, held_back, without_gain)
            gained[client] = dict(zip(others, gains[1:], strict=True))
            taken += any(gain > 0 for gain in gains[1:])
            idle += bool(held_back) and max(gains) <= 0 and distance(own, base) > 0
            before[client] = first
            net = oracle.two_parts({**running, **first}, norm)
            optimizer = oracle.sgd(net, oracle.RATE * oracle.DECAY**t)
            for x, y in record.mini_batches(training):
                oracle.step(optimizer, cross_entropy(net["head"](net["body"](x)), y))
            stepped |= {client} if training else set()
            uploads[client] = oracle.values(net)
            trained[client] = record.logits(client, oracle.predicting(net))
        for client, own in uploads.items():
            held[client], latest[client] = own, oracle.parameters(own)
            for other, gain in gained[client].items():
                affinity[client, other] += gain  # negative ones, too
        tested, received = oracle.with_average_running_values(record, held, stepped), {}
        evaluation = seen.evaluations["received"]
        for client in oracle.CLIENTS:
            others = chosen.rounds[t][client][-1]
            assert_sent(evaluation, client, others, latest, affinity, exploring)
            own, running = oracle.parameters(held[client]), running_values(tested[client])
            base = before[client] if baseline == "before" else own
            models = [latest[other] for other in others]
            held_back = samples_of(evaluation.batches(client)[0])
            first, _ = begun(base, own, models, running, norm, record, held_back, without_gain)
            received[client] = record.logits(client, oracle.predicting(oracle.two_parts({**running, **first}, norm)))
        oracle.assert_predictions(received, seen, "received")
        oracle.assert_predictions(trained, seen, "trained")
        size = oracle.size(latest[0])
        oracle.assert_bytes(seen, MODELS * size, size + MODELS, len(seen.cohort))
    assert taken and (affinity < 0).any()  # so both signs were seen
    assert idle or baseline == "trained"  # and trained clients for which no model gained
    oracle.assert_close({"P": affinity}, {"P": record.run.server.memory["affinity"]}, "affinity")
    for client in oracle.CLIENTS:
        oracle.assert_close(held[client], record.own(client, held[client]), f"client {client}")
