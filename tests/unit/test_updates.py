"""What must not be mixed is left out (faults 35-38), and a mean is a mean (P1)."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

from partwise.errors import ConfigError, Diverged
from partwise.method import Method
from partwise.network.view import ClassRows
from partwise.rounds.acceptance import accept_updates
from partwise.rounds.events import Event
from partwise.rounds.messages import Request, Updates, concatenated
from partwise.rounds.mixing import Copies, checked_matrix, mixed, spread_to_groups
from partwise.rounds.plan import plans
from partwise.rounds.server import Server
from tests.support.runs import awkward_federation, network, simulate

law = settings(max_examples=80, deadline=None)

# ---------------------------------------------------------------------------------------- accepted and refused

EXPECTED = {"body.weight": torch.zeros(2, 3), "head.bias": torch.zeros(3)}
REGISTERED = torch.tensor([5, 10, 0, 7, 9, 4])
PLAN = plans(Method(), network("mlp"))[0]
ASKED = [0, 1, 3, 5]


def order(clients: list[int] = ASKED, round: int = 4) -> Request:
    return Request("train", PLAN, round, clients, {})


def sound(clients: list[int] = ASKED) -> Updates:
    """Updates with which nothing is wrong."""
    random = torch.Generator().manual_seed(0)
    number = len(clients)
    return Updates(
        clients,
        4,
        REGISTERED[clients].double(),
        torch.ones(number),
        torch.zeros(number),
        {name: torch.randn(number, *value.shape, generator=random) for name, value in EXPECTED.items()},
        {
            "means": ClassRows(torch.randn(number, 4, 2, generator=random), torch.ones(number, 4)),
            "norm": torch.rand(number, generator=random),
        },
    )


def judge(updates: Updates) -> tuple[Updates, list[Event]]:
    return accept_updates(updates, order(), EXPECTED, REGISTERED)


def changed(updates: Updates, **parts: Any) -> Updates:
    return replace(updates, parts={**updates.parts, **parts})


def everybody(reason: str) -> list[Event]:
    return [Event(4, client, "refused", reason) for client in ASKED]


def assert_rows(accepted: Updates, before: Updates, rows: list[int]) -> None:
    """Exactly these rows, not a bit of them changed."""
    assert accepted.clients == [before.clients[row] for row in rows]
    for name in ("samples", "steps", "loss"):
        assert torch.equal(getattr(accepted, name), getattr(before, name)[rows])
    for name, value in before.parts.items():
        assert torch.equal(accepted.parts[name], value[rows])
    means, old = accepted.extras["means"], before.extras["means"]
    assert isinstance(means, ClassRows)
    assert torch.equal(means.sums, old.sums[rows]) and torch.equal(means.counts, old.counts[rows])
    assert torch.equal(accepted.extras["norm"], before.extras["norm"][rows])


def test_sound_updates_are_accepted_as_they_are():
    updates = sound()
    accepted, refused = judge(updates)
    assert accepted is updates and refused == []


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        ({"body.weight": torch.zeros(4, 2, 3)}, "head.bias"),
        ({**sound().parts, "extra.bias": torch.zeros(4, 3)}, "extra.bias"),
        ({"body.weight": torch.zeros(4, 2, 3), "head.bais": torch.zeros(4, 3)}, "head.bais, head.bias"),
        ({}, "body.weight, head.bias"),
    ],
    ids=["missing", "extra", "misnamed", "none"],
)
def test_missing_or_unexpected_tensors_are_refused(parts, names):
    accepted, refused = judge(replace(sound(), parts=parts))
    assert accepted.clients == []
    assert refused == everybody(f"missing or unexpected tensors: {names}")


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (torch.zeros(4, 1), "(1,) torch.float32"),  # would broadcast to (3,)
        (torch.zeros(4), "() torch.float32"),
        (torch.zeros(4, 1, 3), "(1, 3) torch.float32"),
        (torch.zeros(4, 4), "(4,) torch.float32"),
        (torch.zeros(4, 3, dtype=torch.float64), "(3,) torch.float64"),
        (torch.zeros(4, 3, dtype=torch.float16), "(3,) torch.float16"),
        (torch.zeros(4, 3, dtype=torch.int64), "(3,) torch.int64"),
    ],
    ids=str,
)
def test_wrong_shapes_and_types_are_refused_also_those_that_would_broadcast(value, got):
    accepted, refused = judge(changed(sound(), **{"head.bias": value}))
    assert accepted.clients == []
    assert refused == everybody(f"'head.bias' is {got}, not (3,) torch.float32")


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("row", range(4))
@pytest.mark.parametrize("place", ["body.weight", "head.bias", "sums", "counts", "norm"])
def test_numbers_that_are_not_finite_are_refused_in_parts_and_in_extras(place, row, broken):
    updates = sound()
    where = {
        **updates.parts,
        "sums": updates.extras["means"].sums,
        "counts": updates.extras["means"].counts,
        "norm": updates.extras["norm"],
    }[place]
    where.view(4, -1)[row, -1] = broken
    accepted, refused = judge(updates)
    assert refused == [Event(4, ASKED[row], "refused", "holds numbers that are not finite")]
    assert_rows(accepted, updates, [other for other in range(4) if other != row])


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        (0.0, "counts 0 samples, registered 10"),
        (-3.0, "counts -3 samples, registered 10"),
        (math.nan, "counts nan samples, registered 10"),
        (math.inf, "counts inf samples, registered 10"),
        (1e12, "counts 1e+12 samples, registered 10"),
        (11.0, "counts 11 samples, registered 10"),
    ],
)
def test_false_sample_counts_are_refused(samples, reason):
    updates = sound()
    updates.samples[1] = samples
    accepted, refused = judge(updates)
    assert refused == [Event(4, 1, "refused", reason)]
    assert_rows(accepted, updates, [0, 2, 3])


def test_nobody_gets_a_weight_when_all_count_0():
    accepted, refused = judge(replace(sound(), samples=torch.zeros(4)))
    assert accepted.clients == [] and len(refused) == 4


def test_fewer_samples_than_registered_are_fine():
    updates = sound()
    updates.samples[1] = 1.0
    assert judge(updates) == (updates, [])


@pytest.mark.parametrize("round", [3, 5, -1])
def test_the_answer_to_another_round_is_refused(round):
    accepted, refused = judge(replace(sound(), round=round))
    assert accepted.clients == []
    assert refused == [Event(4, client, "refused", f"belongs to round {round}, not 4") for client in ASKED]


def test_the_second_answer_of_a_client_is_refused_and_the_first_counts():
    updates = sound([0, 1, 1, 3, 1])
    accepted, refused = judge(updates)
    assert refused == [Event(4, 1, "refused", "did not take part, or answered twice")] * 2
    assert_rows(accepted, updates, [0, 1, 3])


@pytest.mark.parametrize("stranger", [4, 2, 99, -1])
def test_a_client_that_was_not_asked_is_refused(stranger):
    updates = replace(sound([0, 1, 3, 5]), clients=[0, 1, 3, stranger])
    accepted, refused = judge(updates)
    assert refused == [Event(4, stranger, "refused", "did not take part, or answered twice")]
    assert_rows(accepted, updates, [0, 1, 2])


@law
@given(
    faults=st.dictionaries(
        st.integers(0, 3), st.sampled_from(["nan in parts", "inf in extras", "samples", "stranger"]), max_size=4
    )
)
def test_each_update_is_judged_alone_and_the_others_stay_untouched(faults):
    updates = sound()
    clients = list(updates.clients)
    for row, fault in faults.items():
        if fault == "nan in parts":
            updates.parts["body.weight"][row, 1, 2] = math.nan
        elif fault == "inf in extras":
            updates.extras["means"].sums[row, 0, 0] = math.inf
        elif fault == "samples":
            updates.samples[row] = -1
        else:
            clients[row] = 10 + row
    updates = replace(updates, clients=clients)
    accepted, refused = judge(updates)
    assert_rows(accepted, updates, [row for row in range(4) if row not in faults])
    assert [refusal.client for refusal in refused] == [clients[row] for row in sorted(faults)]


def test_updates_in_pieces_come_together_in_the_order_of_the_clients():
    whole = sound([0, 1, 3, 4, 5])
    pieces = [whole.only([4, 1]), whole.only([2]), whole.only([3, 0])]
    assert_rows(concatenated(pieces), whole, [0, 1, 2, 3, 4])


@law
@given(st.permutations(range(5)), st.integers(1, 4))
def test_how_updates_are_cut_and_in_which_order_they_come_does_not_matter(permutation, cut):
    whole = sound([0, 1, 3, 4, 5])
    assert_rows(concatenated([whole.only(permutation[:cut]), whole.only(permutation[cut:])]), whole, [0, 1, 2, 3, 4])


# ---------------------------------------------------------------------------------------------------- the server


def test_a_run_goes_on_without_a_refused_update_and_names_it():
    class Poisoned(Method):
        def finish(self, net, me):
            return me.keep, {"trust": 1 / (me.samples - 1)}  # the client with one sample sends inf

    run = simulate(Poisoned, network("mlp"), rounds=3)
    assert [row["refused"] for row in run.history.rows] == [[0]] * 3
    assert {(refusal.client, refusal.detail) for refusal in run.server.events} == {
        (0, "holds numbers that are not finite")
    }
    assert all(torch.isfinite(copies.values).all() for copies in run.server.copies.values())


def test_a_run_stops_when_fewer_than_half_of_the_updates_can_be_used():
    class Exploding(Method):
        def finish(self, net, me):
            return me.keep, {"trust": torch.log(9 - me.samples)}  # nan above 9 samples, -inf at 9

    with pytest.raises(
        Diverged, match=r"^diverged at round 1: 3 of 8 updates can be used, 5 refused, client 3 first: holds numbers"
    ):
        simulate(Exploding, network("mlp"), rounds=3)


def tiny_server(samples: list[int], aggregation: str = "samples") -> Server:
    """A server of FedAvg on the small network, without an engine."""
    method, parts = Method(aggregation=aggregation), network("mlp")
    return Server(method, parts, None, plans(method, parts), torch.tensor(samples), 0, None)  # type: ignore[arg-type]


def uploads(server: Server, clients: list[int], samples: Tensor) -> Updates:
    parts = {}
    for name, copies in server.copies.items():
        random = torch.Generator().manual_seed(len(name))
        parts[name] = torch.randn(len(server.samples), *copies.values.shape[1:], generator=random).double()[clients]
    empty = torch.zeros(len(clients))
    return Updates(clients, 0, samples, empty, empty, parts, {})


@pytest.mark.parametrize(("aggregation", "weights"), [("samples", [5, 10, 3, 7]), ("uniform", [1, 1, 1, 1])])
def test_the_mean_is_weighted_by_the_samples_of_the_participants_or_by_nothing(aggregation, weights):
    server = tiny_server([5, 9, 10, 3, 8, 7], aggregation)
    clients = [0, 2, 3, 5]
    updates = uploads(server, clients, server.samples[clients].double())
    server.mix(updates)
    share = torch.tensor(weights).double() / sum(weights)
    for name, value in updates.parts.items():
        expected = torch.einsum("k,k...->...", share, value)
        assert float((server.copies[name].values[0] - expected).abs().max()) < 1e-14


@pytest.mark.parametrize("factor", [2.0, 0.125, 1000.0, 3.7])
def test_only_the_ratio_of_the_weights_matters(factor):
    results = []
    for scale in (1.0, factor):
        server = tiny_server([5, 10, 3])
        server.mix(uploads(server, [0, 1, 2], server.samples.double() * scale))
        results.append(server.copies)
    for name in results[0]:
        assert float((results[0][name].values - results[1][name].values).abs().max()) < 1e-14


def test_the_mean_does_not_depend_on_the_order_in_which_updates_came():
    """Bit for bit, because they are sorted by client before they are summed."""
    server = tiny_server([5, 9, 10, 3, 8, 7])
    whole = uploads(server, list(range(6)), server.samples.double())
    server.mix(whole)
    for permutation in ([5, 4, 3, 2, 1, 0], [2, 0, 5, 1, 4, 3]):
        other = tiny_server([5, 9, 10, 3, 8, 7])
        other.mix(concatenated([whole.only([row]) for row in permutation]))
        assert all(torch.equal(other.copies[name].values, server.copies[name].values) for name in other.copies)


def test_groups_mix_among_themselves_and_a_group_without_participants_keeps_its_copy():
    server = tiny_server([5, 10, 3, 7])
    groups = torch.tensor([0, 1, 0, 2])
    server.copies = {name: spread_to_groups(copies, groups, server.clients) for name, copies in server.copies.items()}
    before = {name: copies.values.clone() for name, copies in server.copies.items()}
    updates = uploads(server, [0, 2, 3], torch.tensor([5, 3, 7]).double())
    server.mix(updates)
    for name, value in updates.parts.items():
        after = server.copies[name].values
        assert float((after[0] - (5 * value[0] + 3 * value[1]) / 8).abs().max()) < 1e-14
        assert torch.equal(after[1], before[name][1])
        assert float((after[2] - value[2]).abs().max()) < 1e-14
        assert torch.equal(server.copies[name].of([3, 0, 2, 1])[3], before[name][1])


# ------------------------------------------------------------------------------------------------- laws of the mean

numbers = st.floats(-1e6, 1e6, width=32)
weights = st.floats(1e-3, 1e3)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """The uploads of some clients and their weights."""
    shape = (draw(st.integers(1, 6)), *draw(st.sampled_from([(1,), (4,), (2, 3)])))
    values = torch.from_numpy(draw(arrays.arrays("float64", shape, elements=numbers)))
    weight = torch.tensor(draw(st.lists(weights, min_size=shape[0], max_size=shape[0])), dtype=torch.float64)
    return values, weight


def mean(values: Tensor, weight: Tensor) -> Tensor:
    return mixed((weight / weight.sum())[None], values, torch.zeros(1, *values.shape[1:], dtype=values.dtype))[0]


@law
@given(rounds(), st.sampled_from([torch.float32, torch.float64]))
def test_a_mean_is_within_the_hull_of_every_coordinate(case, dtype):
    values, weight = case
    values = values.to(dtype)
    result = mean(values, weight)
    assert result.dtype is dtype and result.shape == values.shape[1:]
    rounding = 16 * torch.finfo(dtype).eps * values.abs().amax(0)
    assert (result >= values.amin(0) - rounding).all() and (result <= values.amax(0) + rounding).all()


@law
@given(rounds())
def test_a_mean_is_the_weighted_sum(case):
    values, weight = case
    expected = torch.einsum("k,k...->...", weight / weight.sum(), values)
    assert (mean(values, weight) - expected).abs().max() <= 1e-14 * (1 + values.abs().max())


@law
@given(rounds(), st.sampled_from([torch.float32, torch.float64]))
def test_the_mean_of_equal_models_is_that_model(case, dtype):
    values, weight = case
    equal = values[:1].to(dtype).expand(len(values), *values.shape[1:])
    assert torch.equal(mean(equal, weight), equal[0])


@law
@given(rounds())
def test_a_coordinate_that_is_equal_in_all_models_stays_as_it_is(case):
    values, weight = case
    values[:, 0] = values[0, 0].clone()
    assert torch.equal(mean(values, weight)[0], values[0, 0])


@law
@given(rounds(), st.sampled_from([torch.float32, torch.float64]))
def test_the_mean_of_one_model_is_that_model(case, dtype):
    values, weight = case
    values = values[:1].to(dtype)
    assert torch.equal(mean(values, weight[:1]), values[0])


@law
@given(rounds(), st.floats(1e-3, 1e3))
def test_a_mean_does_not_change_with_the_scale_of_the_weights(case, factor):
    values, weight = case
    difference = mean(values, weight) - mean(values, weight * factor)
    assert difference.abs().max() <= 1e-13 * (1 + values.abs().max())
    assert torch.equal(mean(values, weight), mean(values, weight * 8))  # powers of two: not a bit


@law
@given(rounds(), st.randoms(use_true_random=False))
def test_a_mean_does_not_change_with_the_order_beyond_rounding(case, random):
    values, weight = case
    order = list(range(len(values)))
    random.shuffle(order)
    difference = mean(values, weight) - mean(values[order], weight[order])
    assert difference.abs().max() <= 1e-13 * (1 + values.abs().max())


@law
@given(rounds(), st.integers(0, 3))
def test_a_row_without_participants_keeps_its_copy(case, empty):
    values, weight = case
    matrix = torch.zeros(4, len(values), dtype=torch.float64)
    matrix[:] = weight / weight.sum()
    matrix[empty] = 0
    before = torch.arange(4.0, dtype=torch.float64).view(4, *[1] * (values.dim() - 1)).expand(4, *values.shape[1:])
    result = mixed(matrix, values, before)
    assert torch.equal(result[empty], before[empty])
    for row in range(4):
        if row != empty:
            difference = result[row] - mean(values, weight)
            assert difference.abs().max() <= 1e-13 * (1 + values.abs().max())


def test_a_mixing_matrix_must_have_rows_that_sum_to_1_or_are_empty():
    checked_matrix("M.mix", "body", torch.tensor([[0.25, 0.75], [0.0, 0.0], [1.5, -0.5]]), (3, 2))
    for row in ([0.5, 0.4], [1.0, 1e-3], [1.0, -1.0], [math.nan, 1.0]):
        with pytest.raises(ConfigError, match=r"^M.mix gives 'body' a mixing matrix \(1, 2\) with rows that sum to "):
            checked_matrix("M.mix", "body", torch.tensor([row]), (1, 2))
    with pytest.raises(ConfigError, match=r"it must be \(2, 2\) \(copies, participants\)"):
        checked_matrix("M.mix", "body", torch.tensor([[0.5, 0.5]]), (2, 2))


# --------------------------------------------------------------------------------------------------------- copies


def test_everybody_has_the_copy_of_its_row():
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert Copies(values[:1]).of([4, 0, 2]).tolist() == [[1, 2]] * 3
    assert Copies(values, torch.tensor([0, 1, 1])).of([2, 0]).tolist() == [[3, 4], [1, 2]]


def test_one_client_alone_ends_with_its_own_model():
    """A federation of one: the server's copy is, bit for bit, what the client holds."""
    federation = awkward_federation((9,), tested=2)
    run = simulate("fedavg", network("mlp"), federation, rounds=2)
    alone = simulate("local", network("mlp"), federation, rounds=2)
    own = alone.engine.store.own(0, list(run.server.copies))
    assert all(torch.equal(run.server.copies[name].values[0], own[name]) for name in own)
