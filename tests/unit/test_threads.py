"""Threads by rule: one for small steps, torch's own choice for large ones, whatever was asked for."""

import pytest
import torch

from partwise.runs import choose
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from partwise.runs.simulation import switches
from tests.support.runs import awkward_federation, network

FORWARD = 2 * (64 * 100 + 100 * 4)  # of a sample through the network of one hidden layer: products and their sums
STEPS = {
    "loop": 3 * FORWARD * 8,  # a mini-batch of 8; backward costs two forward passes
    "vector": 3 * FORWARD * 8 * 4,  # of half of the 8 clients
    "workers": FORWARD * 256,  # the global model is all that is left to this process
}


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def prepared(**settings):
    settings = {"device": "cpu", "dtype": "float64", "batch": 8, "clients": 8, "participation": 0.5, **settings}
    return prepare(make_config("fedavg", settings), awkward_federation(), network("mlp"))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("engine", STEPS)
def test_one_where_a_step_has_fewer_operations_than_pay(engine, monkeypatch):
    monkeypatch.setattr(choose, "THREADS_PAY", STEPS[engine])
    large = prepared(engine=engine)
    monkeypatch.setattr(choose, "THREADS_PAY", STEPS[engine] + 1)
    small = prepared(engine=engine)
    assert (large.threads, large.notes[1]) == (2, "threads: 2, because training steps are large")
    assert (small.threads, small.notes[1]) == (1, "threads: 1, because training steps are small")


@pytest.mark.usefixtures("two_threads")
def test_a_number_that_is_asked_for_is_used_and_needs_no_note():
    asked = prepared(engine="loop", threads=3)
    assert asked.threads == 3 and asked.notes == ["engine: loop on cpu"]


def test_torchs_compiler_is_left_alone_where_nothing_changes(monkeypatch):
    monkeypatch.setattr(torch, "use_deterministic_algorithms", None)  # a call would fail
    before = torch.get_num_threads()
    with switches(deterministic=False, threads=before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
