"""Per-FedAvg (Algorithm 1): a meta-model that one gradient step makes personal; first order, and Hessian-free (HF)."""

import pytest
from torch.nn.functional import cross_entropy

from tests.support import oracle

DIFFERENCE = 1e-3  # delta, the step of HF's difference
INNER_RATE = 0.02  # alpha, where it is not the run's


def network(tensors):
    body = oracle.layers("conv1", "conv2", "fc1")
    return oracle.model(tensors, body=body, head=oracle.classifier())


def gradient(tensors, x, y):
    """Of the cross-entropy at given values."""
    net = network(tensors)
    return oracle.gradients(net, cross_entropy(net["head"](net["body"](x)), y))


def shifted(tensors, direction, factor):
    return {name: value + factor * direction[name] for name, value in tensors.items()}


def meta_gradient(w, mini_batches, order, alpha):
    """(I - alpha * Hessian) g, where g is the gradient after the inner step; first order leaves the Hessian out."""
    one, two = mini_batches[:2]
    g = gradient(shifted(w, gradient(w, *one), -alpha), *two)
    if order == "first":
        return g
    three = mini_batches[2]
    ahead, behind = (gradient(shifted(w, g, sign * DIFFERENCE), *three) for sign in (1, -1))
    product = {name: (ahead[name] - behind[name]) / (2 * DIFFERENCE) for name in g}  # the Hessian times g
    return shifted(g, product, -alpha)


@pytest.mark.parametrize("inner_rate", [None, INNER_RATE])
@pytest.mark.parametrize("order", ["first", "hessian_free"])
def test_per_fedavg(order, inner_rate):
    record = oracle.Record("per_fedavg", order=order, inner_lr=inner_rate, eval_at=(1, 2, 3))
    server = oracle.values(network(record.initial))
    for t, seen in enumerate(record.rounds):
        [exchange] = oracle.trained_by(seen)
        beta = oracle.RATE * oracle.DECAY**t
        alpha = (inner_rate or oracle.RATE) * oracle.DECAY**t  # a rate of the method's own decays as the run's does
        uploads, trained = [], {}
        for client in seen.cohort:
            net = network(server)
            optimizer = oracle.sgd(net, beta)  # momentum and weight decay belong to the outer step
            [steps] = exchange.batches(client)  # none with fewer samples than mini-batches
            for step in steps:
                assert len(step) == {"first": 2, "hessian_free": 3}[order] and len(set(step.flat)) == step.size
                mini_batches = [(record.x[own], record.y[own]) for own in step]
                oracle.descend(optimizer, net, meta_gradient(oracle.values(net), mini_batches, order, alpha))
            uploads.append(oracle.values(net))
            trained[client] = record.logits(client, oracle.predicting(net))
        server = oracle.mean(uploads, record.samples[seen.cohort])
        received = {k: record.logits(k, oracle.predicting(network(server))) for k in oracle.CLIENTS}
        oracle.assert_copies(server, seen)
        oracle.assert_predictions(received, seen, "received")
        oracle.assert_predictions(trained, seen, "trained")
        oracle.assert_global_predictions(oracle.predicting(network(server)), record, seen)
        oracle.assert_bytes(seen, oracle.size(server), oracle.size(server), len(seen.cohort))  # FedAvg's
        adapted = {}
        for client in oracle.CLIENTS:  # one plain inner step on one mini-batch of the client's training samples
            [[step]] = seen.evaluations["method_adapted"].batches(client)
            [(x, y)] = record.mini_batches([step])
            personal = shifted(server, gradient(server, x, y), -alpha)
            adapted[client] = record.logits(client, oracle.predicting(network(personal)))
        oracle.assert_predictions(adapted, seen, "method_adapted")
