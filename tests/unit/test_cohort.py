"""Law P8: a draw has exactly as many as it should, nobody twice, and everybody is as likely as the others."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from partwise.rounds.cohort import drawn, in_proportion, share_of
from partwise.streams import stream


@settings(max_examples=100, deadline=None)
@given(st.sets(st.integers(0, 200), min_size=1), st.integers(1, 250), st.integers(0, 2**32))
def test_as_many_as_asked_nobody_twice_in_order(among, number, seed):
    chosen = drawn(stream(seed, "cohort", 0), np.array(sorted(among)), number)
    assert len(chosen) == min(number, len(among)) == len(set(chosen))
    assert chosen == sorted(chosen) and set(chosen) <= among


def test_everybody_is_as_likely_as_the_others():
    """By a chi-square test over 4,000 rounds; at this level one seed of a million would fail."""
    counts = np.zeros(12)
    for number in range(4000):
        counts[drawn(stream(0, "cohort", number), np.arange(12), 5)] += 1
    assert counts.sum() == 20_000
    assert chisquare(counts).pvalue > 1e-6


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.floats(0.01, 1))
def test_a_cohort_spread_over_groups_is_whole_and_no_group_gives_more_than_it_has(sizes, share):
    total = max(share_of(sum(sizes), share), len(sizes))
    numbers = in_proportion(total, sizes)
    assert sum(numbers) == total and all(1 <= number <= size for number, size in zip(numbers, sizes, strict=True))
