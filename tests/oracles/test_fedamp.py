"""FedAMP (Algorithm 1): each client is pulled towards a mix of models, in which those near it weigh more.

The server's step and the client's penalty lambda/(2 alpha) have one alpha: that of the last mix.
"""

import math
from statistics import median

import pytest
import torch
from torch.nn.functional import cross_entropy

from tests.support import oracle

WEIGHT = 0.8  # lambda
SCALE, STEP = 4.0, 1.3  # sigma and alpha where they are given: 3 alpha / sigma < 1, so that nothing is cut
LARGE = 7.0  # an alpha with which models would weigh less than nothing: it is cut
OWN_SHARE = 0.4  # of HeurFedAMP


def distance(one, two):
    """The squared distance of two models."""
    return sum(float((value - two[name]).square().sum()) for name, value in one.items())


def mixing(models, scale, step):
    """Shares of all models in the mix for each, xi_ij = alpha A'(squared distance); alpha and sigma.

    A'(x) = exp(-x / sigma) / sigma.
    """
    who = range(len(models))
    apart = {(i, j): distance(models[i], models[j]) for i in who for j in who if i != j}
    sigma = scale or median(apart[i, j] for i, j in apart if i < j)
    slope = {pair: math.exp(-x / sigma) / sigma for pair, x in apart.items()}
    largest = max(sum(slope[i, j] for j in who if j != i) for i in who)
    # unset: the smallest share of an own model is 1/|S|; given: cut where that share would be negative
    alpha = min(step, 1 / largest) if step else (1 - 1 / len(models)) / largest
    shares = [[alpha * slope[i, j] if i != j else 0.0 for j in who] for i in who]
    for i in who:
        shares[i][i] = 1 - sum(shares[i])
    return shares, alpha, sigma


def by_angle(models, step):
    """HeurFedAMP: the others' shares are a softmax of cosines, with sigma 1; alpha is a number of its own."""
    flat = [torch.cat([value.flatten() for value in one.values()]) for one in models]
    shares = []
    for i, mine in enumerate(flat):
        weights = [math.exp(float(torch.cosine_similarity(mine, other, 0))) for other in flat]
        weights[i] = 0.0
        shares.append([(1 - OWN_SHARE) * weight / sum(weights) for weight in weights])
        shares[i][i] = OWN_SHARE
    return shares, step or 1.0, None


@pytest.mark.parametrize("net_name", ["cnn+bn", "cnn"])
@pytest.mark.parametrize("weight", [WEIGHT, None])
@pytest.mark.parametrize(("scale", "step"), [(SCALE, STEP), (None, None), (SCALE, LARGE)])
def test_fedamp(net_name, weight, scale, step):
    alphas = compare(net_name, lambda models: mixing(models, scale, step), penalty=weight, scale=scale, step=step)
    assert (step == LARGE) == any(alpha < step for alpha in alphas if step)  # it is cut then, and not before


@pytest.mark.parametrize(("weight", "step"), [(WEIGHT, STEP), (None, None)])
def test_heur_fedamp(weight, step):
    options = {"similarity": "cosine", "self_weight": OWN_SHARE, "penalty": weight or 1.0, "step": step}
    compare("cnn", lambda models: by_angle(models, step), **options)


def compare(net_name, mixing, penalty, step, **options):
    """Return the alphas of all rounds; an unset lambda is sigma over the number of participants."""
    norm = net_name == "cnn+bn"
    record = oracle.Record("fedamp", net_name, penalty=penalty, step=step, **options)
    first = step or (1.0 if "similarity" in options else math.inf)
    pull = (penalty or 0.0) / first  # before the first mix
    alphas = []
    start = oracle.values(oracle.two_parts(record.initial, norm))
    held, stepped = dict.fromkeys(oracle.CLIENTS, start), set()
    cloud = dict.fromkeys(oracle.CLIENTS, oracle.parameters(start))  # u_i
    for t, seen in enumerate(record.rounds):
        [exchange] = oracle.trained_by(seen)
        trained = {}
        for client in seen.cohort:
            oracle.assert_close(cloud[client], exchange.received(client), f"before round {t + 1}, client {client}")
            net, u = oracle.two_parts(held[client], norm), cloud[client]  # from its own model, not from the mix
            optimizer = oracle.sgd(net, oracle.RATE * oracle.DECAY**t)
            [steps] = exchange.batches(client)
            for x, y in record.mini_batches(steps):
                now = oracle.values(net)  # before the forward pass
                gradient = oracle.gradients(net, cross_entropy(net["head"](net["body"](x)), y))
                pulled = {name: value + pull * (now[name] - u[name]) for name, value in gradient.items()}
                oracle.descend(optimizer, net, pulled)
            stepped |= {client} if steps else set()
            held[client] = oracle.values(net)
            trained[client] = record.logits(client, oracle.predicting(net))
        models = [oracle.parameters(held[client]) for client in seen.cohort]
        mixes, alpha, sigma = mixing(models)
        pull = (penalty or sigma / len(models)) / alpha  # of the penalty lambda/(2 alpha)
        alphas.append(alpha)
        for client, shares in zip(seen.cohort, mixes, strict=True):  # others keep theirs
            cloud[client] = {n: sum(w * one[n] for w, one in zip(shares, models, strict=True)) for n in models[0]}
        for client in oracle.CLIENTS:
            oracle.assert_copies(cloud[client], seen, client)
        tested = oracle.with_average_running_values(record, held, stepped)
        received = {k: record.logits(k, oracle.predicting(oracle.two_parts(tested[k], norm))) for k in oracle.CLIENTS}
        oracle.assert_predictions(received, seen, "received")  # the client's own model
        oracle.assert_predictions(trained, seen, "trained")
        oracle.assert_bytes(seen, oracle.size(models[0]) + 1, oracle.size(models[0]), len(seen.cohort))  # and alpha
    for client in oracle.CLIENTS:
        oracle.assert_close(held[client], record.own(client, held[client]), f"client {client}")
    return alphas
