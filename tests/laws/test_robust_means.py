"""Robust means: laws on numbers that anybody can check, and Krum against its definition."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from partwise.errors import ConfigError
from partwise.method import GROUP, MIXED_GUIDE, Method
from partwise.rounds import robust
from partwise.rounds.mixing import Copies, mean_matrix, mixed
from partwise.rounds.robust import RobustMean, check_mean, parse_robust
from tests.support.runs import network, simulate

law = settings(max_examples=30, deadline=None)
RULES = ["median", "trimmed", "trimmed:0.4", "krum", "krum:1", "clip"]
every_rule = pytest.mark.parametrize("rule", RULES)
in_the_hull = pytest.mark.parametrize("rule", ["median", "trimmed", "trimmed:0.4", "krum", "krum:1"])
values = st.floats(-100, 100, width=32)
rounds = st.integers(1, 9).flatmap(lambda number: arrays.arrays("float64", (number, 4), elements=values))


def uploads_of(rows):
    """Two tensors of an upload: a matrix, and a number."""
    rows = torch.as_tensor(rows)
    return {"body.weight": rows[:, :3].reshape(-1, 3, 1), "head.scale": rows[:, 3]}


def mean_of(rule, rows, weights=None, current=None):
    """(coordinates,) the robust mean of uploads that are rows of a matrix."""
    rows = torch.as_tensor(rows)
    weights = torch.full((len(rows),), 1 / len(rows), dtype=torch.float64) if weights is None else weights
    current = torch.zeros(1, 4, dtype=rows.dtype) if current is None else current[None]
    result = parse_robust(rule).mixed(weights[None], uploads_of(rows), uploads_of(current))
    return torch.cat([result["body.weight"].flatten(), result["head.scale"].flatten()])


# ------------------------------------------------------------------------------------------------- by hand


def test_by_hand():
    column = torch.tensor([[1.0], [2.0], [4.0], [100.0], [-50.0]]).double()
    rows = column.expand(5, 4).contiguous()
    assert mean_of("median", rows).tolist() == [2] * 4
    assert mean_of("median", rows[:4]).tolist() == [3] * 4  # between 2 and 4
    assert mean_of("trimmed:0.2", rows).tolist() == pytest.approx([7 / 3] * 4)  # of 1, 2 and 4
    assert mean_of("trimmed:0.1", rows).tolist() == pytest.approx([7 / 3] * 4)  # half an upload is a whole one
    assert mean_of("krum:1", rows).tolist() == [2] * 4  # 1 + 4 away from its two nearest; 1 is 1 + 9, 4 is 4 + 9


def test_clipping_by_hand():
    rows = torch.tensor([[3.0, 4, 0, 0], [0, 0, 6, 8], [0, 0, 0, 1]]).double()  # norms 5, 10 and 1, the median is 5
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    expected = torch.tensor([3.0, 4, 3, 5]).double() / 3  # the second is halved
    assert torch.allclose(mean_of("clip", rows, third), expected, atol=1e-15)
    assert torch.allclose(mean_of("clip:10", rows, third), rows.mean(0), atol=1e-15)
    moved = mean_of("clip", rows + 7, third, torch.full((4,), 7.0).double())  # differences count, not values
    assert torch.allclose(moved, expected + 7, atol=1e-14)


# ---------------------------------------------------------------------------------------------------- laws


@every_rule
@law
@given(st.integers(1, 9), arrays.arrays("float64", 4, elements=values), st.sampled_from(["float32", "float64"]))
def test_of_identical_uploads_it_is_the_mean_bit_for_bit(rule, number, row, dtype):
    rows = torch.as_tensor(row).to(getattr(torch, dtype)).expand(number, 4).contiguous()
    weights = torch.arange(1, number + 1).double()
    weights = weights / weights.sum()
    plain = mixed(weights[None], rows, torch.zeros_like(rows[:1]))[0]
    assert torch.equal(mean_of(rule, rows, weights), plain)


@in_the_hull
@law
@given(rows=rounds)
def test_every_coordinate_lies_between_those_of_the_uploads(rule, rows):
    rows = torch.as_tensor(rows)
    result = mean_of(rule, rows)
    assert (result >= rows.amin(0)).all() and (result <= rows.amax(0)).all()


@every_rule
@law
@given(data=st.data())
def test_the_order_of_clients_changes_nothing(rule, data):
    rows = torch.as_tensor(data.draw(rounds))
    order = data.draw(st.permutations(range(len(rows))))
    rows = rows + torch.randn(rows.shape, generator=torch.Generator().manual_seed(0), dtype=rows.dtype)  # no equals
    assert torch.allclose(mean_of(rule, rows), mean_of(rule, rows[order]), rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("rule", "honest", "attackers"), [("median", 3, 2), ("median", 9, 8), ("trimmed:0.4", 3, 2), ("trimmed", 16, 4)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [1e30, -1e30, 3e38, 5.0])
def test_attackers_cannot_carry_a_coordinate_out_of_the_hull_of_the_honest(rule, honest, attackers, dtype, value):
    rows = torch.randn(honest, 4, generator=torch.Generator().manual_seed(1)).to(dtype)
    attack = torch.full((attackers, 4), value, dtype=dtype) * torch.tensor([1, -1, 1, -1], dtype=dtype)
    result = mean_of(rule, torch.cat([attack, rows]))
    assert (result >= rows.amin(0)).all() and (result <= rows.amax(0)).all()


@pytest.mark.parametrize(("honest", "attackers"), [(4, 1), (5, 2), (11, 8), (16, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [1e30, -3e38])
def test_krum_is_made_of_the_honest_where_attackers_are_far_away(honest, attackers, dtype, value):
    rows = torch.randn(honest, 4, generator=torch.Generator().manual_seed(1)).to(dtype)
    attack = torch.full((attackers, 4), value, dtype=dtype)
    result = mean_of(f"krum:{attackers}", torch.cat([attack, rows]))
    assert (result >= rows.amin(0)).all() and (result <= rows.amax(0)).all()


@pytest.mark.parametrize("value", [1e30, -3e38])
def test_clipping_bounds_how_far_attackers_carry(value):
    rows = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)).float()
    attack = torch.full((2, 4), value)
    assert mean_of("clip:0.5", torch.cat([attack, rows])).norm() <= 0.5 + 1e-6


# --------------------------------------------------------------------------------- Krum, as its paper defines it


def plain_krum(rows, attackers, chosen):
    """Blanchard et al., Sec. 4: those with the smallest sums of squared distances to their n - f - 2 nearest."""
    scores = []
    for i, own in enumerate(rows):
        others = [other for j, other in enumerate(rows) if j != i]
        distances = sorted(sum((a - b) ** 2 for a, b in zip(own, other, strict=True)) for other in others)
        scores.append(sum(distances[: len(rows) - attackers - 2]))
    best = sorted(range(len(rows)), key=scores.__getitem__)[:chosen]
    return [sum(rows[i][column] for i in best) / chosen for column in range(len(rows[0]))]


@law
@given(st.integers(5, 12), st.integers(0, 4), st.integers(0, 1000))
def test_krum_is_that_of_its_paper(number, attackers, seed):
    attackers = min(attackers, (number - 3) // 2)
    rows = torch.randn(number, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = plain_krum(rows.tolist(), attackers, number - 2 * attackers - 2)
    assert mean_of(f"krum:{attackers}", rows).tolist() == pytest.approx(expected, rel=0, abs=1e-12)


def test_krum_of_as_many_as_it_needs_chooses_one():
    rows = torch.randn(9, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    expected = torch.tensor(plain_krum(rows.tolist(), 3, 1), dtype=torch.float64)
    assert torch.equal(mean_of("krum:3", rows), expected)  # 2 x 3 + 3


def test_of_three_the_two_that_are_nearest_are_averaged():
    rows = torch.tensor([[0.0] * 4, [10.0] * 4, [1.0] * 4]).double()
    for order in itertools.permutations(range(3)):
        assert mean_of("krum", rows[list(order)]).tolist() == [0.5] * 4


# ---------------------------------------------------------------------------------------------- groups and copies


@every_rule
def test_groups_are_averaged_for_themselves_and_a_copy_without_participants_stays(rule):
    rows = torch.randn(7, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    before = torch.arange(12.0).view(3, 4).double()
    group = torch.tensor([0, 0, 2, 0, 2, 2, 0])
    matrix = mean_matrix(Copies(before, group), list(range(7)), torch.ones(7).double())
    result = parse_robust(rule).mixed(matrix, {"body": rows}, {"body": before})["body"]
    assert torch.equal(result[1], before[1])
    for copy in (0, 2):
        own = rows[group == copy]
        alone = mean_of(rule, own, current=before[copy])
        assert torch.allclose(result[copy], alone, rtol=0, atol=1e-14)


def test_pieces_change_no_bit(monkeypatch):
    rows = torch.randn(5, 4, generator=torch.Generator().manual_seed(3))
    whole = mean_of("trimmed", rows)
    monkeypatch.setattr(robust, "SORT_BLOCK", 1)
    assert torch.equal(mean_of("trimmed", rows), whole)


@pytest.mark.parametrize(
    "text", ["mean", "trimmed:0.5", "trimmed:0", "krum:1.5", "krum:-1", "clip:0", "clip:x", "median:1", "clip:"]
)
def test_what_is_no_robust_mean_is_refused(text):
    with pytest.raises(ConfigError, match=r"it must be median, trimmed\[:SHARE\], krum\[:ATTACKERS\] or clip\[:NORM\]"):
        parse_robust(text)
    with pytest.raises(ConfigError, match="robust = "):
        simulate("fedavg", network("mlp"), robust=text)


# -------------------------------------------------------------------------------------------------- refused mixes


class Clouds(Method):
    share = {"*": MIXED_GUIDE}


class Blends(Method):
    """Each of two groups gets a little of the other."""

    share = {"*": GROUP}

    def groups(self, server):
        return [0, 1] * 4

    def mix(self, server, updates):
        rows = torch.tensor([client % 2 == 0 for client in updates.clients]).double()
        matrix = torch.stack([rows + 0.5, 1.5 - rows])
        return matrix / matrix.sum(1, keepdim=True)


def test_a_mix_for_each_client_is_refused_before_the_first_round():
    with pytest.raises(
        ConfigError, match=r"^robust = median replaces means only, but .* is MIXED_GUIDE: a mix for each client"
    ):
        simulate(Clouds, network("mlp"), robust="median")
    for method in ("fedamp", "fedpac"):
        with pytest.raises(ConfigError, match="a mix for each client"):
            simulate(method, network("mlp"), robust="krum")


def test_a_matrix_that_is_no_mean_is_refused_at_the_first_mix():
    assert simulate(Blends, network("mlp"), rounds=1).server.round == 1
    with pytest.raises(
        ConfigError,
        match=r"Blends.mix mixes 'body.* differently for each copy, but robust = clip:2 replaces means only",
    ):
        simulate(Blends, network("mlp"), robust="clip:2")


def test_which_matrices_are_means():
    fine = [[[0.2, 0.8, 0]], [[0.5, 0.5, 0], [0, 0, 1]], [[0, 0, 0]], [[0.5, 0.5, 0], [0.5, 0.5, 0]]]
    for matrix in fine:
        check_mean(RobustMean("median"), "M.mix", "body", torch.tensor(matrix))
    for matrix in ([[0.5, 0.5], [1.0, 0]], [[1.5, -0.5]]):
        with pytest.raises(ConfigError, match=r"M.mix mixes 'body'"):
            check_mean(RobustMean("median"), "M.mix", "body", torch.tensor(matrix))


def test_more_attackers_than_krum_withstands_are_refused():
    with pytest.raises(ConfigError, match="robust = krum:3 needs 9 participants in a round, but there are 8"):
        simulate("fedavg", network("mlp"), robust="krum:3")
    assert simulate("fedavg", network("mlp"), robust="krum:2", rounds=1).server.round == 1


def test_where_nothing_is_averaged_it_is_said():
    run = simulate("local", network("mlp"), rounds=1, robust="median")
    assert "robust = median has no effect, because the method averages no part" in run.notes
    assert not any("robust" in note for note in simulate("fedper", network("mlp"), rounds=1, robust="median").notes)


def test_a_robust_run_is_not_a_plain_one():
    runs = [
        simulate("fedavg", network("mlp"), rounds=1, robust=rule).server for rule in (None, *RULES[:2], "krum", "clip")
    ]
    for one, two in itertools.combinations(runs, 2):
        assert not torch.equal(one.copies["head.weight"].values, two.copies["head.weight"].values)
