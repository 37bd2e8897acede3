"""pFedMe (Algorithm 1): a personal model stays near the local one, which follows it; the server averages the latter."""

import pytest
from torch.nn.functional import cross_entropy

from tests.support import oracle

WEIGHT, STEPS, MIXING = 12.0, 3, 0.7  # lambda, K, beta
PERSONAL_RATE = 0.03  # where it is not the run's
OPTIONS = {"proximal_weight": WEIGHT, "inner_steps": STEPS, "server_learning_rate": MIXING}
PERSONAL = "personal."  # the part that holds theta


def approach(theta, omega, x, y, rate):
    """K plain steps towards the minimiser of the loss plus lambda/2 times the squared distance to omega."""
    for _ in range(STEPS):
        gradient = oracle.gradients(theta, cross_entropy(theta["head"](theta["body"](x)), y))
        for name, parameter in theta.named_parameters():
            parameter.data -= rate * (gradient[name] + WEIGHT * (parameter.data - omega[name]))


@pytest.mark.parametrize("personal_rate", [PERSONAL_RATE, None])
@pytest.mark.parametrize("net_name", ["cnn", "cnn+bn"])
def test_pfedme(net_name, personal_rate):
    norm = net_name == "cnn+bn"
    record = oracle.Record("pfedme", net_name, **OPTIONS, personal_lr=personal_rate)  # momentum and decay for neither
    start = oracle.values(oracle.two_parts(record.initial, norm))
    server = oracle.parameters(start)
    personal, stepped = dict.fromkeys(oracle.CLIENTS, start), set()
    for t, seen in enumerate(record.rounds):
        [exchange] = oracle.trained_by(seen)
        rate = oracle.RATE * oracle.DECAY**t
        rate_of_theta = (personal_rate or oracle.RATE) * oracle.DECAY**t
        uploads, trained = [], {}
        for client in seen.cohort:
            omega = server
            theta = oracle.two_parts(
                {**personal[client], **server}, norm
            )  # only running values are left of the last round
            *_, steps = exchange.batches(client)
            for x, y in record.mini_batches(steps):
                approach(theta, omega, x, y, rate_of_theta)
                near = oracle.values(theta)
                omega = {name: value - rate * WEIGHT * (value - near[name]) for name, value in omega.items()}
            stepped |= {client} if steps else set()
            personal[client] = oracle.values(theta)
            trained[client] = record.logits(client, oracle.predicting(theta))
            uploads.append(omega)
        average = oracle.mean(uploads, record.samples[seen.cohort])
        server = {name: (1 - MIXING) * value + MIXING * average[name] for name, value in server.items()}
        tested = oracle.with_average_running_values(record, personal, stepped)
        received = {k: record.logits(k, oracle.predicting(oracle.two_parts(tested[k], norm))) for k in oracle.CLIENTS}
        oracle.assert_copies(server, seen)
        oracle.assert_predictions(received, seen, "received")
        oracle.assert_predictions(trained, seen, "trained")
        if not norm:  # nothing runs through omega in training: it has no running values of its own
            oracle.assert_global_predictions(oracle.predicting(oracle.two_parts(server, norm)), record, seen)
        oracle.assert_bytes(seen, oracle.size(server), oracle.size(server), len(seen.cohort))  # FedAvg's
    for client in oracle.CLIENTS:
        ours = {PERSONAL + name: value for name, value in personal[client].items()}
        oracle.assert_close(ours, record.own(client, ours), f"client {client}")
