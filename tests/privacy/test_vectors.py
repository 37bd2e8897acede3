"""What filters do to one vector: numbers that a reader can check by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partwise.errors import ConfigError
from partwise.privacy.histograms import HistogramForm, parse_histograms
from partwise.privacy.vectors import add_noise, clip_vector, largest_entries, quantised

vectors = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)


def random(seed=0):
    return np.random.default_rng(seed)


@given(vectors, st.floats(1e-3, 1e3))
@settings(max_examples=50)
def test_no_norm_is_above_the_clip_and_the_direction_stays(vector, clip):
    after = clip_vector(vector, clip)
    assert after.norm() <= clip * (1 + 1e-12)
    assert torch.allclose(after * vector.norm(), vector * after.norm(), rtol=1e-9)


def test_clipping_by_hand():
    assert clip_vector(torch.tensor([3.0, 4.0]), 1).tolist() == pytest.approx([0.6, 0.8])
    assert clip_vector(torch.tensor([3.0, 4.0]), 6).tolist() == [3.0, 4.0]
    assert clip_vector(torch.zeros(2), 1).tolist() == [0.0, 0.0]


def test_the_noise_has_the_deviation_that_was_asked_for():
    """Of n draws the deviation is within 4 / sqrt(2n) of itself, and the mean within 4 / sqrt(n) deviations of 0."""
    n, deviation = 40_000, 2.5
    noise = add_noise(torch.zeros(n, dtype=torch.float64), deviation, random())
    assert abs(float(noise.std()) / deviation - 1) < 4 / (2 * n) ** 0.5
    assert abs(float(noise.mean())) < 4 * deviation / n**0.5


@given(vectors, st.integers(1, 8))
@settings(max_examples=50)
def test_few_bits_are_levels_within_one_step(vector, bits):
    after, step = quantised(vector, bits, random()), (vector.max() - vector.min()) / (2**bits - 1)
    assert ((after - vector).abs() <= step * (1 + 1e-9) + 1e-9).all()
    assert len(after.unique()) <= 2**bits


def test_rounding_is_unbiased():
    """Rounded up with chance p, a number deviates from its mean by at most step / 2: so does the mean of n draws by
    more than 5 x step / (2 sqrt n) in less than one of a million cases."""
    n, vector = 10_000, torch.tensor([0.0, 0.1, 0.3, 0.77, 1.0], dtype=torch.float64)
    mean = quantised(vector.repeat(n), 2, random()).view(n, -1).mean(0)
    assert ((mean - vector).abs() <= 5 * (1 / 3) / (2 * n**0.5)).all()
    assert mean[0] == 0 and mean[-1] == pytest.approx(1)  # the ends are levels


def test_a_constant_and_nothing_are_quantised_to_themselves():
    assert quantised(torch.full((3,), 0.7), 1, random()).tolist() == pytest.approx([0.7] * 3)
    assert quantised(torch.zeros(0), 1, random()).tolist() == []


def test_the_largest_by_size():
    assert largest_entries(torch.tensor([1.0, -5.0, 3.0, 0.0]), 0.5).tolist() == [False, True, True, False]
    assert largest_entries(torch.tensor([1.0, -5.0, 3.0]), 0.01).tolist() == [False, True, False]
    assert largest_entries(torch.tensor([1.0, 2.0]), 1.0).all()


def test_ways_to_tell_counts():
    counts = torch.tensor([0, 4, 5, 12])
    for way, told in {
        parse_histograms("exact"): [0, 4, 5, 12],
        parse_histograms("exact", 5): [0, 0, 5, 12],
        parse_histograms("presence"): [0, 1, 1, 1],
        parse_histograms("presence", 5): [0, 0, 1, 1],
        parse_histograms("bits:16"): [0, 4, 5, 12],
        parse_histograms("laplace:1e9", 5): [0, 0, 5, 12],
    }.items():
        assert way.reported(counts, counts, random()).tolist() == told


def test_one_bit_tells_nothing_or_all():
    counts, way = torch.tensor([0, 6, 12]), parse_histograms("bits:1")
    told = torch.stack([way.reported(counts, counts, random(seed)) for seed in range(20)])
    assert told.unique().tolist() == [0, 12] and told[:, 1].unique().tolist() == [0, 12]


def test_laplace_noise_has_the_scale_of_its_sensitivity():
    """A mean absolute value of fewest / epsilon, within 4 / sqrt(n) of itself: its deviation is as large."""
    n, counts = 40_000, torch.full((40_000,), 1e6, dtype=torch.float64)
    for fewest, epsilon in ((1, 0.01), (5, 0.1)):
        told = HistogramForm("laplace", epsilon=epsilon, fewest=fewest).reported(counts, counts, random())
        assert abs(float((told - counts).abs().mean()) * epsilon / fewest - 1) < 4 / n**0.5 + 0.01  # counts are whole


def test_bytes_of_counts():
    ways = {"exact": 40, "presence": 2, "bits:3": 4 + 4, "laplace:1": 40}
    assert {way: parse_histograms(way).wire_bytes(10) for way in ways} == ways


@pytest.mark.parametrize("text", ["", "exact:1", "bits", "bits:0", "bits:17", "laplace:0", "laplace:x", "some"])
def test_what_is_no_way_is_refused(text):
    with pytest.raises(ConfigError, match="it takes exact, presence"):
        parse_histograms(text)
