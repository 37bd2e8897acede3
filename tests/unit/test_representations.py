"""CKA, class separation and t-SNE: closed forms against double sums, invariances, and numbers by hand."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from partwise.errors import ConfigError, DataError
from partwise.method import ALL, LOCAL, Method
from partwise.papers.features import client_features, client_labels, representation_metrics
from partwise.papers.representations import CHUNK_ROWS, cka, cka_matrix, class_separation, mean_cka, tsne_rows
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from partwise.runs.result import Models, Result
from tests.support.runs import awkward_federation, network, simulate
from tests.support.states import distance

seeds = st.integers(0, 2**32 - 1)


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---- CKA


@settings(max_examples=50, deadline=None)
@given(seeds, st.integers(2, 9), st.integers(2, 9), st.integers(1, 2 * CHUNK_ROWS + 1))
def test_cka_is_the_cosine_of_torchs_covariances(seed, n, m, size):
    one, other = draw(seed, n, size), draw(seed + 1, m, size)
    first, second = (torch.cov(each.T, correction=0).reshape(-1) for each in (one, other))
    expected = float(first @ second / (first.norm() * second.norm()))
    assert cka(one, other) == pytest.approx(expected, abs=1e-12)
    assert 0 <= cka(one, other) <= 1
    assert cka(other, one) == pytest.approx(cka(one, other), abs=1e-15)
    assert cka(one, one) == pytest.approx(1, abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(seeds, st.floats(1e-3, 1e3), st.integers(1, 6))
def test_cka_knows_no_common_rotation_scale_shift_or_order(seed, scale, size):
    one, other = draw(seed, 7, size), draw(seed + 1, 5, size)
    rotation = torch.linalg.qr(draw(seed + 2, size, size)).Q
    expected = pytest.approx(cka(one, other), abs=1e-10)
    assert cka(one @ rotation, other @ rotation) == expected
    assert cka(scale * one, other) == expected
    assert cka(one, -scale * other + 3) == expected
    assert cka(one[torch.randperm(7, generator=torch.Generator().manual_seed(seed))], other) == expected
    assert cka(one.repeat(2, 1), other) == expected  # covariances, not sums of squares


def test_cka_by_hand():
    along, across, both = (
        torch.tensor(rows) for rows in ([[1.0, 0], [-1, 0]], [[0.0, 1], [0, -1]], [[1.0, 1], [-1, -1]])
    )
    assert cka(along, across) == 0  # diag(1, 0) and diag(0, 1)
    assert cka(along, both) == pytest.approx(1 / 2)  # diag(1, 0) and all ones: 1 / (1 * 2)
    circle = torch.tensor([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
    assert cka(along, circle) == pytest.approx(2**-0.5)  # diag(1, 0) and diag(1/2, 1/2)


def test_the_matrix_holds_every_pair_and_its_mean_those_above_the_diagonal():
    clients = [draw(seed, 4 + seed, 5) for seed in range(4)]
    matrix = cka_matrix(clients)
    for i, j in product(range(4), repeat=2):
        assert float(matrix[i, j]) == pytest.approx(cka(clients[i], clients[j]), abs=1e-15)
    pairs = [float(matrix[i, j]) for i in range(4) for j in range(i)]
    assert mean_cka(matrix) == pytest.approx(sum(pairs) / 6, abs=1e-15)


def test_where_there_is_no_cka_there_is_none():
    varied, constant = draw(0, 5, 3), torch.full((7, 3), 0.1)
    broken = varied.clone()
    broken[2, 1] = torch.nan
    for other in (constant, varied[:1], varied[:0], broken, torch.full((3, 3), torch.inf)):
        assert cka(varied, other) is None
        assert cka(other, other) is None
    matrix = cka_matrix([varied, constant, 2 * varied])
    assert mean_cka(matrix) == pytest.approx(1)  # the pair that there is
    assert matrix.isnan().tolist() == [[False, True, False], [True, True, True], [False, True, False]]
    assert mean_cka(cka_matrix([varied])) is None and mean_cka(cka_matrix([])) is None
    with pytest.raises(DataError, match="features of one size are needed to compare clients, not 2, 3"):
        cka(varied, varied[:, :2])


# ---- class separation


def double_sums(vectors: Tensor, own: Tensor) -> float:
    """R^2 as the paper writes it: every pair of samples, i = j and c = k too."""
    units = vectors / vectors.norm(dim=1, keepdim=True)
    classes = [units[own == label] for label in own.unique()]

    def mean_distance(some: Tensor, others: Tensor) -> float:
        return sum(float(1 - one @ other) for one in some for other in others) / (len(some) * len(others))

    within = sum(mean_distance(each, each) for each in classes) / len(classes)
    total = sum(mean_distance(a, b) for a in classes for b in classes) / len(classes) ** 2
    return 1 - within / total


@settings(max_examples=50, deadline=None)
@given(seeds, st.lists(st.sampled_from([0, 1, 4]), min_size=3, max_size=9).filter(lambda own: len({*own}) > 1))
def test_the_closed_form_is_the_double_sums(seed, own):
    vectors, own = draw(seed, len(own), 4), torch.tensor(own)
    expected = pytest.approx(double_sums(vectors, own), abs=1e-12)
    assert class_separation(vectors, own) == expected
    order = torch.randperm(len(own), generator=torch.Generator().manual_seed(seed))
    assert class_separation(vectors[order], own[order]) == expected
    assert class_separation(vectors * (1 + own[:, None]), own) == expected  # only directions count
    assert class_separation(vectors.view(-1, 2, 2), own + 3) == expected  # nor do names of classes or shapes


def test_separation_by_hand():
    axes, own = torch.eye(2), torch.tensor([0, 0, 1])
    assert class_separation(axes[[0, 0, 1]], own) == 1  # classes at right angles, nothing within
    assert class_separation(axes[[0, 1, 0, 1]], torch.tensor([0, 0, 1, 1])) == 0  # the classes are alike
    # Means (1/2, 1/2) and (0, 1): within 1 - (1/2 + 1) / 2 = 1/4; together (1/4, 3/4): total 1 - 10/16 = 3/8
    assert class_separation(axes[[0, 1, 1]], own) == pytest.approx(1 - (1 / 4) / (3 / 8), abs=1e-15)
    # With a vector of zeros the means are (1/2, 0) and (0, 1): within 3/8, total 1 - 5/16
    assert class_separation(torch.tensor([[2.0, 0], [0, 0], [0, 3]]), own) == pytest.approx(1 - (3 / 8) / (11 / 16))


@pytest.mark.parametrize("vectors", [torch.full((3, 2), 0.1), torch.full((3, 2), torch.nan)], ids=["equal", "nan"])
def test_where_there_is_no_separation_there_is_none(vectors):
    assert class_separation(vectors, torch.tensor([0, 0, 1])) is None


def test_one_class_or_no_sample_has_no_separation():
    assert class_separation(draw(0, 3, 2), torch.zeros(3)) is None
    assert class_separation(draw(0, 0, 2), torch.zeros(0)) is None


# ---- t-SNE


def test_tsne_keeps_clusters_together_and_is_the_same_for_a_seed():
    own = torch.arange(60) % 3
    points = draw(0, 60, 5) * 0.01 + 10 * torch.eye(5, dtype=torch.float64)[own]
    rows = tsne_rows(points, own, seed=1)
    assert rows.shape == (60, 3) and (rows[:, 2] == own.numpy()).all()
    apart = np.linalg.norm(rows[:, None, :2] - rows[None, :, :2], axis=2)
    np.fill_diagonal(apart, np.inf)
    assert (rows[apart.argmin(axis=1), 2] == rows[:, 2]).all()
    assert (rows == tsne_rows(points, own, seed=1)).all()


@pytest.mark.parametrize("shape", [(0, 4), (1, 4), (2, 4), (3, 4), (4, 1), (5, 2, 3)])
def test_tsne_of_few_samples(shape):
    rows = tsne_rows(draw(0, *shape), torch.zeros(shape[0]), seed=0)
    assert rows.shape == (shape[0], 3) and np.isfinite(rows).all()


def test_tsne_of_what_is_equal_or_not_finite():
    assert (tsne_rows(torch.full((5, 2), 0.1), torch.ones(5), seed=0) == [0, 0, 1]).all()
    points = draw(0, 6, 2)
    points[3] = torch.inf
    assert np.isnan(tsne_rows(points, torch.zeros(6), seed=0)).nonzero()[0].tolist() == [3, 3]


# ---- features of a run


class WithProjector(Method):
    """A part beside the chain, with batch-norm of its own."""

    share = {"*": ALL, "projector": LOCAL, "p_head": LOCAL}

    def build(self, parts, sizes):
        size = sizes.features
        layers = torch.nn.Sequential(torch.nn.Linear(size, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5)).double()
        return parts.add("projector", layers).add("p_head", torch.nn.Linear(3, sizes.classes).double())

    def loss(self, net, b, me):
        z = net.body(b.x)
        return b.ce(net.p_head(net.projector(z))) + b.ce(net.head(z))

    def predict(self, net, x, me):
        return net.p_head(net.projector(net.body(x)))


@pytest.mark.parametrize("engine", ["loop", "vector"])
def test_the_last_part_on_the_features_gives_what_the_model_predicts(engine):
    simulation = simulate(WithProjector, network("cnn+bn"), engine=engine, rounds=2)
    result, source = Result(simulation), simulation.federation.source
    for test, own in ((True, simulation.federation.test), (False, simulation.federation.train)):
        u, y = client_features(result, "body projector", test), client_labels(result, test)
        z = client_features(simulation, ["body"], test)
        assert list(u) == list(z) == list(y) == simulation.clients
        for client, model in Models(simulation).some(simulation.clients).items():
            assert u[client].shape == (len(own[client]), 3) and not u[client].requires_grad
            expected = model(source.x[own[client]])
            assert torch.equal(model.network["p_head"](u[client]), expected)
            assert torch.equal(y[client], source.y[own[client]])
            assert torch.allclose(model.network["projector"](z[client]), u[client], atol=1e-12)


def test_features_of_an_adapting_method_are_those_of_its_adapted_models():
    simulation = simulate("fedbabu", network("mlp"), rounds=1, finetune_epochs=2)
    body = client_features(simulation, "body")
    for client, model in Models(simulation).some([0, 3]).items():
        x = simulation.federation.source.x[simulation.federation.test[client]]
        assert torch.allclose(model.network["head"](body[client]), model(x), atol=1e-12)


def test_a_run_that_is_measured_every_round_ends_bit_equal_to_one_that_is_not():
    settings = {"dtype": "float64", "device": "cpu", "batch": 8, "rounds": 3, "lr": 0.05, "clients": 8}
    measured, plain = (
        prepare(make_config(WithProjector, settings), awkward_federation(), network("cnn+bn")) for _ in range(2)
    )
    rows = []
    measured.run(lambda row: rows.append(representation_metrics(measured, "body projector")))
    assert len(rows) == 3 and rows[0].cka_mean != rows[2].cka_mean
    assert distance(measured, plain.run()) == 0


def test_metrics_of_a_run_are_those_of_its_features():
    simulation = simulate("fedper", network("mlp"), rounds=1)
    told = representation_metrics(Result(simulation), "body")
    z, y = client_features(simulation, "body"), client_labels(simulation)
    assert told.clients == list(z)
    matrix = cka_matrix(list(z.values()))
    assert np.array_equal(np.array(told.cka, dtype=float), matrix.numpy(), equal_nan=True)
    assert told.cka_mean == mean_cka(matrix)
    assert told.separation == {client: class_separation(z[client], y[client]) for client in z}
    known = [value for value in told.separation.values() if value is not None]
    assert told.separation[1] is None  # all its samples are of one class
    assert told.separation_mean == pytest.approx(np.mean(known), abs=1e-15)


def test_a_part_that_is_not_there_is_refused_with_the_nearest():
    simulation = simulate("fedper", network("mlp"), rounds=1)
    with pytest.raises(ConfigError, match="unknown part 'bodi'; did you mean 'body'"):
        client_features(simulation, "bodi")
