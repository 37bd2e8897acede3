"""FedAMP (Algorithm 1): the weights of a mix by hand, and the pull towards it."""

import math
from types import SimpleNamespace

import pytest
import torch

from partwise.methods.fedamp import FedAMP
from partwise.rounds.messages import Updates
from partwise.runs.result import Models
from tests.support.runs import awkward_federation, network, simulate

ONE_STEP = {"batch": 100, "lr": 0.1}  # a client's samples are one mini-batch


def mixed(method, *models, clients=(0, 2, 4), of=5):
    """The rows of participants in the matrix; all others are empty. A model is two tensors of one number."""
    return mixed_and_pulled(method, *models, clients=clients, of=of)[0]


def mixed_and_pulled(method, *models, clients=(0, 2, 4), of=5):
    """The same, and the weight of the pull towards such a mix."""
    rows = torch.tensor(models, dtype=torch.float64)
    parts = {"body.weight": rows[:, :1], "head.weight": rows[:, 1:]}
    nothing = torch.zeros(len(rows))
    server = SimpleNamespace(clients=of, memory={}, copies={"body.weight": SimpleNamespace(values=rows)})
    method.begin(server, None)
    matrix = method.mix(server, Updates(list(clients), 0, nothing, nothing, nothing, parts, {}))
    assert matrix.shape == (of, len(models))
    assert not matrix[[client for client in range(of) if client not in clients]].any()
    return matrix[list(clients)], float(method.down(server)["pull"])


NEAR = (0, 0), (1, 0), (0, 2)  # squared distances: 1 from the first to the second, 4 to the third; 5 between those


def test_weights_fall_with_squared_distances():
    """With sigma = 1 / log 2 and alpha = sigma, xi_ij = 2 ^ -distance."""
    sigma = 1 / math.log(2)
    expected = [[1 - 9 / 16, 1 / 2, 1 / 16], [1 / 2, 1 - 17 / 32, 1 / 32], [1 / 16, 1 / 32, 1 - 3 / 32]]
    weights = mixed(FedAMP(scale=sigma, step=sigma), *NEAR)
    assert torch.allclose(weights, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-14)


def test_unset_sigma_is_the_median_distance_and_alpha_leaves_every_own_model_its_share():
    """The median is 4, and the first model, nearest to the others, has 1/3 of its own mix; alpha is one for all."""
    near = {1: math.exp(-1 / 4), 4: math.exp(-4 / 4), 5: math.exp(-5 / 4)}
    alpha = 2 / 3 / (near[1] + near[4])
    expected = torch.tensor([[0, near[1], near[4]], [near[1], 0, near[5]], [near[4], near[5], 0]]).double() * alpha
    expected += torch.diag(1 - expected.sum(1))
    assert expected[0, 0] == pytest.approx(1 / 3)
    assert torch.allclose(mixed(FedAMP(), *NEAR), expected, rtol=0, atol=1e-7)
    equal = mixed(FedAMP(), *[(1, 1)] * 3)
    assert torch.allclose(equal, torch.full_like(equal, 1 / 3), rtol=0, atol=1e-12)


def test_a_step_that_is_too_long_is_cut_where_an_own_model_would_weigh_less_than_nothing():
    weights = mixed(FedAMP(scale=4.0, step=100.0), *NEAR)
    assert weights.min() == pytest.approx(0, abs=1e-12) and weights.argmin() == 0
    assert weights.sum(1).tolist() == pytest.approx([1, 1, 1])
    assert weights[0, 1] / weights[0, 2] == pytest.approx(math.exp(3 / 4))


def test_one_alpha_couples_the_mix_and_the_pull():
    """The pull is lambda/alpha, with the alpha that made the mix: given, cut, or left to the server."""
    near = {1: math.exp(-1 / 4), 4: math.exp(-4 / 4), 5: math.exp(-5 / 4)}
    largest = (near[1] + near[4]) / 4  # of the sums of A'(x) = exp(-x / sigma) / sigma: the first model's
    for step, alpha in ((0.5, 0.5), (100.0, 1 / largest), (None, 2 / 3 / largest)):
        weights, pull = mixed_and_pulled(FedAMP(penalty=3.0, scale=4.0, step=step), *NEAR)
        assert pull == pytest.approx(3 / alpha, rel=1e-14)
        assert float(weights[0, 1]) == pytest.approx(alpha * near[1] / 4, rel=1e-14)
    for step, alpha in ((0.5, 0.5), (None, 1.0)):  # HeurFedAMP's mix has no alpha
        assert mixed_and_pulled(FedAMP(similarity="cosine", penalty=3.0, step=step), *NEAR)[1] == 3 / alpha
    assert mixed_and_pulled(FedAMP(similarity="cosine"), *NEAR)[1] == 1


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_unset_lambda_pulls_alike_whatever_the_size_of_the_weights(size):
    """Lambda is sigma/3 then: the pull is the largest mean of exp(-x / sigma), between 0 and 1; sigma is 4."""
    models = [(size * one, size * two) for one, two in NEAR]
    pull = mixed_and_pulled(FedAMP(), *models)[1]
    assert pull == pytest.approx((math.exp(-1 / 4) + math.exp(-4 / 4)) / 2)
    assert mixed_and_pulled(FedAMP(scale=1e9 * size**2), *models)[1] == pytest.approx(1)  # as if all were equal


def test_weights_by_the_angle():
    """With sigma = log 2, a model at a right angle weighs twice as much as one in the opposite direction."""
    lengths = (2, 0), (0, 3), (-5, 0)
    weights = mixed(FedAMP(similarity="cosine", scale=math.log(2), self_weight=0.25), *lengths)
    expected = [[0.25, 0.5, 0.25], [0.375, 0.25, 0.375], [0.25, 0.5, 0.25]]
    assert torch.allclose(weights, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-14)
    unset = mixed(FedAMP(similarity="cosine"), *lengths)
    assert unset.diagonal().tolist() == pytest.approx([1 / 3] * 3)
    assert unset[0, 1] / unset[0, 2] == pytest.approx(math.e)
    for own_weight in (0.0, 0.1):  # 0.1 of float64
        given = mixed(FedAMP(similarity="cosine", self_weight=own_weight), *lengths)
        assert given.diagonal().tolist() == [own_weight] * 3


def own(run, client):
    return run.engine.store.own(client, run.server.plan.own)


@pytest.mark.parametrize("settings", [{}, {"penalty": 3e-3}, {"penalty": 3.0, "step": 0.5, "scale": 100.0}])
def test_a_step_is_pulled_by_lambda_over_alpha_times_the_way_to_the_cloud(settings):
    """In the first round there is nothing to be pulled to, and without a pull everybody is alone."""
    first = simulate("fedamp", network("mlp"), rounds=1, **ONE_STEP, **settings)
    pulled = simulate("fedamp", network("mlp"), rounds=2, **ONE_STEP, **settings)
    free = simulate("local", network("mlp"), rounds=2, **ONE_STEP)
    weight = float(first.server.memory["pull"])
    assert "step" not in settings or weight == 6  # that alpha is not cut
    for client in range(8):
        for name, value in own(first, client).items():
            way = first.server.copies[name].values[client] - value
            expected = own(free, client)[name] + 0.1 * weight * way
            assert torch.allclose(own(pulled, client)[name], expected, rtol=0, atol=1e-14), name


@pytest.mark.parametrize("start", ["own", "cloud"])
def test_a_client_begins_with_its_own_model_or_with_the_cloud(start):
    run = simulate("fedamp", network("cnn+bn"), rounds=1, start_from=start)
    for client, model in Models(run).some([3, 4]).items():
        for name, mine in own(run, client).items():
            cloud = run.server.copies[name].of([client])[0]
            assert torch.equal(model.tensors[name], mine if start == "own" or "running" in name else cloud)
            assert name != "head.weight" or not torch.equal(mine, cloud)


def test_who_takes_part_alone_has_its_own_model_for_a_cloud():
    run = simulate("fedamp", network("mlp"), awkward_federation(), rounds=1, clients_per_round=1)
    [client] = run.server.cohort
    assert "global" not in run.history.rows[-1]
    for name, value in own(run, client).items():
        assert torch.equal(run.server.copies[name].values[client], value)
