"""What a label is: losses, bins and checks by hand, and what `--task auto` takes labels for."""

import math

import numpy as np
import pandas
import pytest
import torch

from partwise.data import Source, check
from partwise.data.own import as_data
from partwise.data.reading import Reading
from partwise.errors import DataError
from partwise.network.view import Batch
from partwise.tasks import TASKS, Classes, Labels, Numbers, Places
from tests.support.files import refusal

NAN = math.nan
WHOLE = [0, 1, 2, 0, 1, 2]


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def loss(task, output, labels, real):
    """The loss of a mini-batch of which the first `real` rows count."""
    y = torch.as_tensor(labels)
    return float(Batch(y, y, torch.arange(len(y)) < real, task).loss(tensor(output)))


# ----------------------------------------------------------------------------------------------------------- losses


def test_the_loss_of_numbers_is_the_mean_of_squares_over_known_cells():
    output, y = [[1.0, 2.0], [3.0, 9.0], [7.0, 7.0]], tensor([[0, 4], [1, NAN], [NAN, NAN]])
    assert loss(Numbers(("a", "b")), output, y, 3) == (1 + 4 + 4) / 3  # cell by cell, not row by row
    assert loss(Numbers(("a", "b")), output, y, 1) == (1 + 4) / 2  # rows behind are padding


def test_the_loss_of_labels_is_sigmoid_cross_entropy_over_known_cells():
    output, y = [[math.log(3), 0.0], [0.0, 5.0]], tensor([[1, 0], [NAN, NAN]])
    assert loss(Labels(("a", "b")), output, y, 2) == pytest.approx((math.log(4 / 3) + math.log(2)) / 2, abs=1e-15)


def test_the_loss_of_places_is_cross_entropy_over_places_with_a_class():
    output = [[[math.log(3), 0.0, 9.0], [0.0, 0.0, 1.0]], [[0.0, 0.0, 0.0], [9.0, 9.0, 9.0]]]
    y = torch.tensor([[0, 1, -1], [0, 0, 0]])
    assert loss(Places(("a", "b")), output, y, 1) == pytest.approx((math.log(4 / 3) + math.log(2)) / 2, abs=1e-15)
    wanted = torch.nn.functional.cross_entropy(tensor(output), y, ignore_index=-1)
    assert loss(Places(("a", "b")), output, y, 2) == pytest.approx(float(wanted), abs=1e-14)


UNKNOWN = {
    "numbers": (Numbers(("a", "b")), (2, 2), tensor([[NAN, NAN], [NAN, 1]])),
    "labels": (Labels(("a", "b")), (2, 2), tensor([[NAN, NAN], [NAN, 1]])),
    "places": (Places(("a", "b")), (2, 2, 3), torch.tensor([[-1, -1, -1], [-1, 1, -1]])),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_what_is_unknown_or_padding_gets_no_gradient_and_no_part_in_the_loss(kind):
    """A mini-batch of it alone has the loss 0."""
    task, shape, y = UNKNOWN[kind]
    cell = (1, slice(None), 1) if kind == "places" else (1, 1)  # the one that is known
    for real, known in ((2, True), (1, False)):
        output = torch.full(shape, 3.0, dtype=torch.float64, requires_grad=True)
        with torch.no_grad():
            if kind == "places":
                output[1, 0] = 2.0
        value = Batch(y, y, torch.arange(2) < real, task).loss(output)
        (gradient,) = torch.autograd.grad(value, output)
        assert (float(value.detach()) > 0) == known == bool(gradient[cell].any())
        gradient[cell] = 0
        assert not gradient.any()


def test_the_loss_in_half_precision_is_taken_in_float32():
    value = Numbers(("a",)).loss(torch.ones(1, 1, dtype=torch.bfloat16), torch.zeros(1, 1), torch.ones(1).bool())
    assert value.dtype == torch.float32


# ------------------------------------------------------------------------------------------------------------- bins


def test_bins_of_numbers_are_tenths_of_the_samples():
    y = torch.arange(100.0, dtype=torch.float64)[:, None]
    task = Numbers.of(y, ("a",))
    assert task.edges == (10, 20, 30, 40, 50, 60, 70, 80, 90)
    assert task.bin_names[:2] == ("below 10", "10 to 20") and task.bin_names[-1] == "from 90"
    assert torch.bincount(task.binned(y)).tolist() == [10] * 10
    assert task.binned(tensor([[9.99], [10], [-5], [1e9], [NAN]])).tolist() == [0, 1, 0, 9, 0]


def test_bins_of_few_numbers_are_no_more_than_there_are_numbers():
    task = Numbers.of(tensor([[5.0, 1]] * 8 + [[7.0, 2]] * 2), ("a", "b"))  # by the first number alone
    assert (task.edges, task.bin_names) == ((7.0,), ("below 7", "from 7"))
    constant = Numbers.of(tensor([[5.0]] * 3), ("a",))
    assert (constant.bins, constant.bin_names, constant.binned(tensor([[5.0]])).tolist()) == (1, ("all",), [0])


def test_bins_are_those_of_the_labels_own_unit_where_labels_are_standardised():
    y = tensor([[value / 7] for value in range(70)])
    task = Numbers.of(y, ("a",))
    other = task.standardised_by(tensor([1 / 3]), tensor([0.1]))
    assert torch.equal(other.binned(other.standardised(y)), task.binned(y))
    assert torch.allclose(other.in_own_unit(other.standardised(y)), y, atol=1e-14, rtol=0)


def test_bins_of_labels_are_their_patterns_and_rare_ones_share_the_last():
    y = tensor([[1, 0], [1, 0], [0, 0], [1, 1], [NAN, 1]])
    task = Labels.of(y, ("sick", "old"))
    assert task.bin_names == ("none", "old", "sick", "sick + old", "others")  # of few labels every pattern
    assert task.binned(y).tolist() == [2, 2, 0, 3, 4]
    assert Labels(("sick", "old"), ((-1, 1), (0, 0))).bin_names == ("sick? + old", "none", "others")  # ?: unknown
    many = tensor([[int(bit) for bit in f"{number:06b}"] for number in range(64)])
    assert Labels.of(torch.cat([many, many[-50:]]), tuple("abcdef")).patterns == tuple(
        tuple(int(bit) for bit in f"{number:06b}") for number in range(14, 64)
    )


def test_the_bin_of_places_is_the_most_frequent_class_and_the_first_of_equals():
    y = torch.tensor([[[2, 2], [0, -1]], [[1, 0], [0, 1]], [[-1, -1], [-1, -1]]])
    assert Places(("a", "b", "c")).binned(y).tolist() == [2, 0, 0]


def test_rows_of_bins_are_zero_where_they_are_padding():
    y = tensor([[0], [5], [5]])
    b = Batch(y, y, torch.tensor([True, True, False]), Numbers(("a",), edges=(3.0,)))
    assert b.bins().tolist() == [[1, 0], [0, 1], [0, 0]]


# ----------------------------------------------------------------------------------------------------------- checks


CHECKS = [
    (Labels(("a",)), tensor([[0], [2]]), "label 'a' is 2 in a sample; it must be 0, 1 or unknown"),
    (Labels(("a",)), tensor([[NAN], [NAN]]), "label 'a' is unknown in every sample"),
    (Labels(("a",)), torch.tensor([[0]]), "y must be (1, 1) float64 labels, got torch.int64 of shape (1, 1)"),
    (Numbers(("a", "b")), tensor([[0, math.inf], [1, 1]]), "label 'b' is infinite in 1 samples"),
    (Numbers(("a", "b")), tensor([[0, NAN], [1, NAN]]), "label 'b' is unknown in every sample"),
    (Numbers(("a",)), tensor([[0, 1]]), "y must be (1, 1) float64 numbers, got torch.float64 of shape (1, 2)"),
    (Places(("a", "b")), torch.tensor([[0, -2]]), "1 places have labels such as -2; a place without a class has -1"),
    (Places(("a", "b")), torch.tensor([[0, 2]]), "1 places have labels such as 2, but classes are 0..1"),
    (Places(("a", "b")), torch.tensor([[-1, -1]]), "no place has a class"),
    (Places(("a",)), torch.tensor([[0, 0]]), "places need at least two classes"),
    (Places(("a", "b")), torch.tensor([0, 1]), "y must be (2, places...) int64 classes, got torch.int64 of shape (2,)"),
    (Classes(("a", "b")), torch.tensor([0, 2]), "1 labels are not in 0..1: 2 (1 samples)"),
]


@pytest.mark.parametrize(("task", "y", "line"), CHECKS)
def test_labels_that_a_task_cannot_have_are_named(task, y, line):
    assert task.check(y) == line
    source = Source("made", torch.zeros(len(y), 2), y, task.bins, len(y), (0.0,), (1.0,), own_task=task)
    assert refusal(DataError, lambda: check(source)) == f"data set 'made': {line}"


# ----------------------------------------------------------------------------------------------------------- guessing


def of_columns(wanted="auto", **columns):
    """The data set of a table, whose columns are labels beside one feature."""
    rows = len(next(iter(columns.values())))
    frame = pandas.DataFrame({"feature": np.arange(rows) / 2, **columns})
    return check(as_data(frame, Reading(label=",".join(columns), task=wanted)))


def of_array(y, wanted="auto"):
    return check(as_data((np.eye(len(y)), np.asarray(y)), Reading(task=wanted)))


GUESSED = [  # the labels, their task, and what the run says of it
    (lambda: of_columns(a=list("xyzxyz")), "classes", ""),
    (lambda: of_columns(a=[True, False] * 3), "classes", ""),
    (lambda: of_columns(a=[0.0, 1.0] * 3), "classes", ""),
    (
        lambda: of_columns(a=WHOLE),
        "classes",
        "task: classes, the 3 whole numbers of 'a'; --task numbers for a quantity",
    ),
    (lambda: of_columns(a=[0.5, 1, NAN]), "numbers", "task: numbers, because 'a' holds fractions"),
    (lambda: of_columns(a=range(101)), "numbers", "task: numbers, because 'a' has 101 different numbers"),
    (lambda: of_columns(a=range(100)), "classes", "task: classes, the 100 whole numbers of 'a'; --task numbers for a"),
    (lambda: of_columns(a=[0, 1, NAN], b=[1, 1, 0]), "labels", "task: labels, because the label columns hold 0 and 1"),
    (lambda: of_columns(a=[True, False], b=[1, 0]), "labels", "task: labels, because the label columns hold 0 and 1"),
    (
        lambda: of_columns(a=[0, 1, 2], b=[1, NAN, 0]),
        "numbers",
        "task: numbers, because the label columns hold numbers",
    ),
    (lambda: of_array(WHOLE), "classes", ""),
    (lambda: of_array(range(200)), "classes", ""),  # of arrays, however many
    (lambda: of_array([0.0, 1.0, 2.0]), "classes", ""),
    (lambda: of_array([[0], [1], [0]]), "classes", ""),
    (lambda: of_array([0.5, 1, 2]), "numbers", "task: numbers, because y holds fractions"),
    (lambda: of_array([[0.5, 1], [2, NAN]]), "numbers", "task: numbers, because y is float64 of shape (2, 2)"),
    (lambda: of_array([[0.0, 1], [1, NAN]]), "labels", "task: labels, because y is float64 of shape (2, 2)"),
    (lambda: of_array([[True, False], [True, True]]), "labels", "task: labels, because y is bool of shape (2, 2)"),
    (lambda: of_array([[0, 1], [2, -1]]), "places", "task: places, because y is int64 of shape (2, 2)"),
    (lambda: of_array([[[0, 1]], [[2, -1]]]), "places", "task: places, because y is int64 of shape (2, 1, 2)"),
]


@pytest.mark.parametrize(("source", "kind", "note"), GUESSED)
def test_the_task_is_read_from_the_labels(source, kind, note):
    found = source()
    assert (found.task.kind, "".join(found.notes)[: len(note) or None]) == (kind, note)
    assert isinstance(found.task, TASKS[kind])


NAMED = [
    (lambda: of_columns("numbers", a=WHOLE), "numbers"),
    (lambda: of_columns("labels", a=[0, 1]), "labels"),
    (lambda: of_columns("numbers", a=[0, 1], b=[1, 0]), "numbers"),
    (lambda: of_array(WHOLE, "numbers"), "numbers"),
    (lambda: of_array([[0, 1], [1, 1]], "labels"), "labels"),
    (lambda: of_array([[0, 1], [1, 1]], "numbers"), "numbers"),
]


@pytest.mark.parametrize(("source", "kind"), NAMED)
def test_a_task_that_is_named_is_taken_without_a_note(source, kind):
    found = source()
    assert (found.task.kind, found.notes) == (kind, ())


WRONG = [
    (lambda: of_columns(a=[0, 1], b=["x", "y"]), "column 'b': string; several label columns must all hold numbers"),
    (lambda: of_columns(a=[0, 1], b=[NAN, NAN]), "'a' and 'b': label 'b' is unknown in every sample"),
    (lambda: of_columns(a=[0.5, math.inf]), "'a': label 'a' is infinite in 1 samples"),
    (lambda: of_columns(a=[0, "x", 1]), "column 'a': labels of several types, which cannot be sorted"),
    (lambda: of_columns("classes", a=[0, 1], b=[0, 1]), "2 label columns are no class; use --task labels or numbers"),
    (lambda: of_columns("numbers", a=["x", "y"]), "column 'a': string; --task numbers takes numbers alone"),
    (lambda: of_columns("labels", a=[0, 2]), "'a': label 'a' is 2 in a sample; it must be 0, 1 or unknown"),
    (lambda: of_columns("places", a=[0, 1]), "a table has no places; --task classes, labels or numbers"),
    (lambda: of_array(["x", "y"], "numbers"), "--task numbers takes numbers, and y holds texts; use --task classes"),
    (lambda: of_array(WHOLE, "places"), "--task places takes whole numbers (samples, places...), and y is int64 of"),
    (lambda: of_array(np.ones((2, 3, 4))), "--task numbers takes y of shape (samples, numbers), got (2, 3, 4)"),
    (lambda: of_array([[0, 1], [1, 0]], "classes"), "--task classes takes one class a sample, and y is int64 of shape"),
    (lambda: of_array(np.ones((3, 0))), "y holds no label, it is float64 of shape (3, 0)"),
    (lambda: of_array(np.ones((3, 0), int)), "y holds no label, it is int64 of shape (3, 0)"),
    (lambda: of_array([[0, 10**9]]), "a place has label 1,000,000,000; at most 1,000 classes are allowed"),
    (lambda: of_array([[0, -2], [1, 1]]), "1 places have labels such as -2; a place without a class has -1"),
    (lambda: of_array([[NAN, 1.0], [NAN, 0.5]]), "label 'y0' is unknown in every sample"),
]


@pytest.mark.parametrize(("source", "line"), WRONG)
def test_labels_that_fit_no_task_are_refused_in_one_line(source, line):
    assert line in refusal(DataError, source)


def test_a_label_column_is_named_once():
    frame = pandas.DataFrame({"feature": [0.5, 1.5], "a": [0, 1]})
    line = refusal(DataError, lambda: as_data(frame, Reading(label="a,a")))
    assert line == "table 'table': label columns 'a' and 'a'; name each once"
