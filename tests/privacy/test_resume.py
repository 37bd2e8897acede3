"""A run with filters goes on from a checkpoint as if it had never stopped: what waits and what was spent are in it."""

import pytest

from tests.support.interrupted import assert_resumes

FEW = {"upload_top": 0.2, "upload_bits": 4, "upload_clip": 1.0}
NOISY = {"upload_clip": 1.0, "upload_noise": 0.1, "dp_clip": 1.0, "dp_noise": 0.1, "histograms": "laplace:1"}


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedavg", FEW),
        ("fedproto", NOISY),
        ("fed3p2p", NOISY),
    ],
)
def test_a_resumed_run_with_filters_is_the_uninterrupted_one(tmp_path, method, settings):
    assert_resumes(tmp_path, method, **settings)
