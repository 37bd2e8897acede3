"""APFL (Algorithm 1): an own model learns through its mixture with the shared one, both as before the step."""

import pytest
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from tests.support import oracle

SHARE = 0.4  # alpha at first
OWN = "mine."  # the part that holds v


def mixture(alpha, v, w):
    return {name: alpha * v[name] + (1 - alpha) * w[name] for name in w}


def logits(tensors, x):
    """Those of the small network with these numbers."""
    return functional_call(oracle.predicting(NETWORK), {RENAMED[name]: value for name, value in tensors.items()}, (x,))


NETWORK = oracle.two_parts({}, norm=False)
RENAMED = {name: name.replace("body.", "0.").replace("head.", "1.") for name in oracle.values(NETWORK)}


def slope(alpha, v, w, x, y):
    """The loss's derivative by alpha: <v - w, gradient at the mixture>."""
    net = oracle.two_parts(mixture(alpha, v, w), norm=False)
    gradient = oracle.gradients(net, cross_entropy(net["head"](net["body"](x)), y))
    return sum(float(((v[name] - w[name]) * g).sum()) for name, g in gradient.items())


@pytest.mark.parametrize("learned", [True, False])
def test_apfl(learned):
    record = oracle.Record("apfl", mixing_weight=SHARE, learn_mixing=learned)
    server = oracle.values(oracle.two_parts(record.initial, norm=False))
    own, alpha = dict.fromkeys(oracle.CLIENTS, server), dict.fromkeys(oracle.CLIENTS, SHARE)
    for t, seen in enumerate(record.rounds):
        [exchange] = oracle.trained_by(seen)
        rate, uploads, trained = oracle.RATE * oracle.DECAY**t, [], {}
        for client in seen.cohort:
            *alphas, steps = exchange.batches(client)
            assert [len(phase) for phase in alphas] == [1] * learned
            for x, y in record.mini_batches(alphas[0] if learned else []):  # once a round, as it begins
                step = rate * slope(alpha[client], own[client], server, x, y)
                alpha[client] = min(max(alpha[client] - step, 0.0), 1.0)
            w, v = (oracle.two_parts(values, norm=False) for values in (server, own[client]))
            optimizers = {model: oracle.sgd(model, rate) for model in (w, v)}
            for x, y in record.mini_batches(steps):
                through = mixture(alpha[client], dict(v.named_parameters()), oracle.values(w))  # the old w
                at_v = oracle.gradients(v, cross_entropy(logits(through, x), y))  # alpha times that at the mixture
                at_w = oracle.gradients(w, cross_entropy(w["head"](w["body"](x)), y))
                oracle.descend(optimizers[v], v, at_v)
                oracle.descend(optimizers[w], w, at_w)
            own[client] = oracle.values(v)
            uploads.append(oracle.values(w))
            mixed = mixture(alpha[client], own[client], uploads[-1])
            trained[client] = record.logits(client, lambda x, mixed=mixed: logits(mixed, x))
        server = oracle.mean(uploads, record.samples[seen.cohort])
        held = {k: mixture(alpha[k], own[k], server) for k in oracle.CLIENTS}
        received = {k: record.logits(k, lambda x, mixed=held[k]: logits(mixed, x)) for k in oracle.CLIENTS}
        oracle.assert_copies(server, seen)
        oracle.assert_predictions(received, seen, "received")
        oracle.assert_predictions(trained, seen, "trained")
        oracle.assert_global_predictions(lambda x, w=server: logits(w, x), record, seen)
        oracle.assert_bytes(seen, oracle.size(server), oracle.size(server), len(seen.cohort))  # FedAvg's
    assert not learned or len(set(alpha.values())) > 1  # it moved
    for client in oracle.CLIENTS:
        ours = {OWN + name: value for name, value in own[client].items()}
        oracle.assert_close(ours, record.own(client, ours), f"client {client}")
