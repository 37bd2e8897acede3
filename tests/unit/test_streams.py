"""Named streams, and who takes part in a round (P8)."""

import math
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partwise.method import ALL, Method, Relay, Stage, WithinGroups, train
from partwise.rounds.cohort import drawn, in_proportion, share_of
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from partwise.runs.simulation import Simulation
from partwise.streams import stream, stream_key, torch_stream
from tests.support.runs import awkward_federation, network

names = st.lists(st.text("abcxyz01 ", max_size=6) | st.integers(-9, 9), max_size=4)
law = settings(max_examples=100, deadline=None)

# ------------------------------------------------------------------------------------------------------- streams


def test_keys_and_draws_are_the_same_in_every_process_and_on_every_machine():
    """Written down once: neither Python's hash nor a new version may change what a seed means."""
    assert stream_key(0, "init", "body") == 16_902_652_202_112_183_034
    assert stream_key(0) == 7_163_381_271_710_615_482
    assert stream_key(2**70, "a", -3) == 11_716_017_188_765_527_521
    assert stream(0, "shuffle", 3, 7).integers(0, 1000, 5).tolist() == [482, 953, 796, 548, 116]
    assert stream(0, "shuffle", 3, 7).permutation(6).tolist() == [3, 4, 1, 5, 0, 2]
    assert torch.randint(0, 1000, (5,), generator=torch_stream(0, "server")).tolist() == [606, 848, 331, 844, 664]


@law
@given(seed=st.integers(0, 2**64), name=names)
def test_the_same_names_give_the_same_numbers(seed, name):
    assert stream_key(seed, *name) == stream_key(seed, *name) and 0 <= stream_key(seed, *name) < 2**64
    one = stream(seed, *name).random(4)
    stream(seed, *name, "another").random(7)
    assert np.array_equal(one, stream(seed, *name).random(4))
    assert torch.equal(*(torch.rand(4, generator=torch_stream(seed, *name)) for _ in range(2)))


@law
@given(one=st.tuples(st.integers(0, 99), names), two=st.tuples(st.integers(0, 99), names))
def test_different_names_give_different_numbers(one, two):
    (seed_1, name_1), (seed_2, name_2) = one, two
    if one == two:
        return
    assert stream_key(seed_1, *name_1) != stream_key(seed_2, *name_2)
    assert not np.array_equal(stream(seed_1, *name_1).random(4), stream(seed_2, *name_2).random(4))


def test_names_keep_their_order_their_type_and_their_borders():
    keys = [
        stream_key(0, *name) for name in ((1, 23), (12, 3), ("1", "23"), ("12", 3), (3, 12), (123,), ("a", ""), ("a",))
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    "other", [(1, "shuffle", 0, 0), (0, "shuffle", 1, 0), (0, "shuffle", 0, 1), (0, "cohort", 0, 0)]
)
def test_neighbouring_streams_are_uncorrelated(other):
    one, two = (stream(*name).standard_normal(20_000) for name in ((0, "shuffle", 0, 0), other))
    assert abs(np.corrcoef(one, two)[0, 1]) < 5 / math.sqrt(20_000)


# ---------------------------------------------------------------------------------------------------- participants


@law
@given(
    seed=st.integers(0, 2**32),
    among=st.lists(st.integers(0, 1000), min_size=1, max_size=40, unique=True).map(sorted),
    number=st.integers(1, 50),
)
def test_a_draw_has_the_exact_count_no_repetition_and_the_order_of_the_numbers(seed, among, number):
    result = drawn(stream(seed, "cohort", 0), among, number)
    assert len(result) == min(number, len(among))
    assert sorted(set(result)) == result and set(result) <= set(among)
    assert all(type(client) is int for client in result)
    assert result == drawn(stream(seed, "cohort", 0), among, number)


@pytest.mark.parametrize(
    ("number", "share", "expected"),
    [(100, 0.1, 10), (20, 0.1, 2), (10, 0.25, 3), (10, 0.24, 2), (5, 0.5, 3), (8, 0.01, 1), (1, 1.0, 1), (7, 1.0, 7)],
)
def test_a_share_is_rounded_half_up_and_never_nobody(number, share, expected):
    assert share_of(number, share) == expected


def prepared(method=Method, sizes: tuple[int, ...] = (2,) * 6, **options) -> Simulation:
    federation = awkward_federation(sizes, tested=1)
    config = make_config(method, {"clients": len(sizes), "device": "cpu", "engine": "loop", "rounds": 9999, **options})
    return prepare(config, federation, network("mlp"))


def cohorts(simulation: Simulation, rounds: int) -> list[list[int]]:
    server = simulation.server
    result = []
    for server.round in range(rounds):
        result.append(server.sample())
    return result


def chi_square(counts: list[int], total: int) -> float:
    """Against equal counts."""
    expected = total / len(counts)
    return sum((count - expected) ** 2 / expected for count in counts)


def test_every_pair_of_clients_is_drawn_as_often_as_every_other():
    """2 of 6: 15 equally likely cohorts, 3000 rounds; the 0.9999 quantile of chi-square with 14 degrees is 42.6."""
    counts = Counter(map(tuple, cohorts(prepared(clients_per_round=2), 3000)))
    assert set(counts) == set(combinations(range(6), 2))
    assert chi_square(list(counts.values()), 3000) < 42.6


@pytest.mark.parametrize("options", [{"participation": 0.3}, {"clients_per_round": 6}])
def test_every_client_is_drawn_as_often_as_every_other(options):
    """6 of 20 in 2000 rounds. A round's counts depend on each other: (N-1)/(N-k) times the sum is chi-square, 19."""
    chosen = cohorts(prepared(sizes=(2,) * 20, **options), 2000)
    assert {len(cohort) for cohort in chosen} == {6}
    assert all(cohort == sorted(set(cohort)) for cohort in chosen)
    counts = Counter(client for cohort in chosen for client in cohort)
    statistic = chi_square([counts[client] for client in range(20)], 2000 * 6) * 19 / 14
    assert 4 < statistic < 50.8  # between the 0.0001 and the 0.9999 quantiles
    assert abs(sum(5 in cohort and 6 in cohort for cohort in chosen) / 2000 - 6 / 20 * 5 / 19) < 0.03


def test_rounds_and_seeds_draw_other_cohorts_and_the_same_ones_again():
    one, again, other = (cohorts(prepared(sizes=(2,) * 20, clients_per_round=5, seed=seed), 40) for seed in (0, 0, 1))
    assert one == again and one != other
    assert len(set(map(tuple, one))) > 35


def test_a_cohort_does_not_depend_on_the_rounds_before_it():
    simulation = prepared(sizes=(2,) * 20, clients_per_round=5)
    in_turn = cohorts(simulation, 30)
    simulation.server.round = 17
    assert simulation.server.sample() == in_turn[17]


@pytest.mark.parametrize(
    ("options", "number"), [({"participation": 1.0}, 4), ({"participation": 0.5}, 3), ({"clients_per_round": 3}, 3)]
)
def test_clients_without_samples_are_never_drawn(options, number):
    simulation = prepared(sizes=(0, 3, 0, 2, 5, 1), **options)
    chosen = cohorts(simulation, 200)
    assert {client for cohort in chosen for client in cohort} == {1, 3, 4, 5}
    assert {len(cohort) for cohort in chosen} == {number}
    assert "clients without training samples, never sampled: 0, 2" in simulation.notes


def halves(server) -> list[int]:
    return [int(client >= 2) for client in range(server.clients)]


class Within(Method):
    def stages(self):
        yield Stage(train(), {"*": ALL}, rounds=self.rounds, cohort=WithinGroups(halves))


class Relayed(Method):
    def stages(self):
        yield Stage(train(), {"*": ALL}, rounds=self.rounds, cohort=Relay(halves))


def test_within_groups_the_share_is_drawn_in_every_group_and_at_least_one():
    simulation = prepared(Within, sizes=(2,) * 12, participation=0.3)
    simulation.server.begin()
    chosen = cohorts(simulation, 600)
    for cohort in chosen:
        assert cohort == sorted(set(cohort))
        assert [sum(client < 2 for client in cohort), sum(client >= 2 for client in cohort)] == [1, 3]
    counts = Counter(client for cohort in chosen for client in cohort)
    assert chi_square([counts[0], counts[1]], 600) < 15.2  # 1 degree of freedom
    assert chi_square([counts[client] for client in range(2, 12)], 1800) * 9 / 7 < 33.8  # 9 degrees


@law
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12), share=st.floats(0, 1))
def test_a_total_is_spread_over_groups_in_proportion(sizes, share):
    """Nobody is asked for more than it has or left out; where every share is at least 1, it is missed by less."""
    total = round(len(sizes) + share * (sum(sizes) - len(sizes)))
    numbers = in_proportion(total, sizes)
    shares = [total * size / sum(sizes) for size in sizes]
    assert sum(numbers) == total
    assert all(1 <= number <= size for number, size in zip(numbers, sizes, strict=True))
    if min(shares) >= 1:
        assert all(abs(number - each) < 1 for number, each in zip(numbers, shares, strict=True))


@pytest.mark.parametrize(
    ("total", "sizes", "expected"),
    [
        (8, [3, 5, 4, 3, 5], [1, 2, 2, 1, 2]),  # 1.2, 2, 1.6, 1.2, 2
        (4, [5, 5, 5], [2, 1, 1]),  # three equal claims to the fourth: the first group's
        (4, [1, 1, 10], [1, 1, 2]),  # 0.33, 0.33, 3.33: the small groups' own come from the large one
        (3, [7, 9, 2], [1, 1, 1]),
    ],
)
def test_participants_of_groups_by_hand(total, sizes, expected):
    assert in_proportion(total, sizes) == expected


def fives(server) -> list[int]:
    return [client // 4 for client in range(server.clients)]


class WithinFives(Method):
    def stages(self):
        yield Stage(train(), {"*": ALL}, rounds=self.rounds, cohort=WithinGroups(fives))


class RelayWithinFives(Method):
    def stages(self):
        yield Stage(train(), {"*": ALL}, rounds=self.rounds, cohort=Relay(fives, "within"))


@pytest.mark.parametrize(
    ("method", "options", "number"),
    [
        (WithinFives, {"participation": 0.4}, 8),
        (WithinFives, {"participation": 0.1}, 5),
        (WithinFives, {"clients_per_round": 7}, 7),
        (RelayWithinFives, {"participation": 0.4}, 10),  # every chain rounds for itself: 1.6 of 4
    ],
)
def test_of_groups_the_total_is_drawn_that_was_asked_for(method, options, number):
    simulation = prepared(method, sizes=(2,) * 20, **options)
    simulation.server.begin()
    assert {len(cohort) for cohort in cohorts(simulation, 50)} == {number}


def test_more_groups_than_participants_are_told_once(caplog):
    simulation = prepared(WithinFives, sizes=(2,) * 20, participation=0.1)
    simulation.server.begin()
    cohorts(simulation, 3)
    assert [record.getMessage() for record in caplog.records] == [
        "5 of 20 clients, 25%, take part in a round, not 2: each of the 5 groups needs a participant"
    ]


def test_a_relay_takes_whole_groups():
    simulation = prepared(Relayed, sizes=(2, 0, 2, 2, 0, 2), participation=0.5)
    simulation.server.begin()
    chosen = cohorts(simulation, 200)
    assert set(map(tuple, chosen)) == {(0,), (2, 3, 5)}
