"""On a CUDA device: scores are those of the CPU, bit-equal every time, and only their copy to the host waits."""

import dataclasses
import math

import pytest
import torch

from partwise.engines.scores import Judged, count
from partwise.records.metrics import METRICS_OF
from partwise.runs.metrics import measure_all

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def judged(classes: int) -> list[Judged]:
    """Three sets on the CPU: clients of all sizes, rows that several samples share, some that are not finite."""
    random = torch.Generator().manual_seed(classes)
    result = []
    for sizes in ([500] * 20, [0, 1, 1, 2, 7, 3000], [5000]):
        rows = sum(sizes)
        logits = torch.randn(rows, classes, generator=random)[torch.randint(rows, (rows,), generator=random)]
        logits[::97, 1] = math.nan
        result.append(
            Judged(logits, torch.randint(classes, (rows,), generator=random), range(100, 100 + len(sizes)), sizes)
        )
    return result


def moved(sets: list[Judged]) -> list[Judged]:
    return [dataclasses.replace(one, logits=one.logits.cuda(), labels=one.labels.cuda()) for one in sets]


@pytest.fixture(params=[False, True], ids=["", "deterministic"])
def mode(request):
    """Torch as it is, and with deterministic algorithms alone."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(request.param)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_scores_on_cuda_are_those_on_the_cpu_and_the_same_every_time(classes, mode):
    here, there = judged(classes), moved(judged(classes))
    found = measure_all(there)
    assert measure_all(there) == found
    for one, other in zip(measure_all(here), found, strict=True):
        assert (list(one.each), one.nonfinite) == (list(other.each), other.nonfinite)
        pairs = [*zip(one.each.values(), other.each.values(), strict=True), (one.together, other.together)]
        for mine, theirs in pairs:
            assert mine.samples == theirs.samples and mine.accuracy == theirs.accuracy
            for name in METRICS_OF["classes"][1:]:
                margin = 1e-9 if name == "auroc" else 1e-12
                number = mine.value(name)
                close = None if number is None else pytest.approx(number, rel=0, abs=margin)
                assert theirs.value(name) == close, name


def test_counting_waits_for_nothing():
    there = moved(judged(10))
    count(there)  # what is loaded the first time may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        count(there)
    finally:
        torch.cuda.set_sync_debug_mode("default")
