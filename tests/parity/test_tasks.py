"""Numbers, labels and places: vector is the loop, with unknown labels and padded rows; workers are in test_workers."""

import pytest
import torch

from tests.support.parity import BLOCKS, TASK_CASES, TRACED, assert_engines_agree, run_of

every_case = pytest.mark.parametrize(("task", "method", "net"), TASK_CASES)


@every_case
def test_vector_equals_loop_in_other_tasks(task, method, net):
    assert_engines_agree(method, net, task=task, rounds=2)


@every_case
def test_traced_steps_equal_loop_in_other_tasks(task, method, net):
    assert_engines_agree(method, net, TRACED, task=task, rounds=2)


@pytest.mark.parametrize(("task", "net"), [("numbers", "mlp"), ("labels", "mlp"), ("places", "places")])
def test_padded_rows_change_no_bit_in_other_tasks(task, net):
    first, second = (run_of("fedtc", net, **BLOCKS, filler=filler, task=task, rounds=2) for filler in (0, 55))
    assert all(torch.equal(first[name], second[name]) for name in first)
