"""Scores of many clients and several moments at once: the numbers of one client alone, whatever lies beside it."""

import dataclasses
import math
import typing
import warnings

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    brier_score_loss,
    f1_score,
    roc_auc_score,
)
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from partwise.engines import scores
from partwise.engines.scores import Judged, count
from partwise.records.metrics import CHOOSING, METRICS_OF, TITLES, Score
from partwise.records.rounds import pooled_key
from partwise.runs.metrics import Scores, measure_all
from partwise.runs.settings import Run
from partwise.tasks import TASKS, Classes
from tests.support.searching import for_any

TASK = Classes(())


@st.composite
def moments(draw: st.DrawFn) -> list[Judged]:
    """Up to three sets: few rows of logits that many samples share, one-class clients, sizes 0 and 1, broken rows."""
    classes = draw(st.integers(2, 5))
    distinct = torch.randn(9, classes, generator=torch.Generator().manual_seed(draw(st.integers(0, 9))))
    distinct[0, 0], distinct[1] = draw(st.sampled_from([math.nan, math.inf, -math.inf, 0.0])), 0.0
    result = []
    for _ in range(draw(st.integers(1, 3))):
        sizes = draw(st.lists(st.sampled_from([0, 1, 1, 2, 7, 20]), min_size=1, max_size=5))
        rows, labels = [], []
        for size in sizes:
            picked = draw(st.lists(st.integers(0, 8), min_size=size, max_size=size))
            kinds = draw(st.sampled_from([1, 2, classes]))
            rows += picked
            labels += [(3 * at + number) % kinds for at, number in enumerate(picked)]
        rows, labels = (torch.tensor(values, dtype=torch.long) for values in (rows, labels))
        result.append(Judged(distinct[rows], labels, range(10, 10 + len(sizes)), sizes))
    return result


def cut(one: Judged) -> list[tuple[int, Tensor, Tensor]]:
    """Each client, its logits and its labels."""
    return list(zip(one.clients, one.logits.split(one.sizes), one.labels.split(one.sizes), strict=True))


def by_scikit_learn(logits: Tensor, labels: Tensor) -> tuple[float | None, ...]:
    """Accuracy, balanced accuracy, F1, AUROC, average precision and Brier score of one span."""
    classes, finite = logits.shape[1], torch.isfinite(logits).all(1)
    answers = torch.where(finite, logits.argmax(1), classes).numpy()  # a class that no label has
    likely = logits.double().log_softmax(1)
    likely = (logits.double() - logits.double().flip(1) if classes == 2 else likely).numpy()
    true = labels.numpy()
    areas, precisions = [], []
    for kind in range(classes):
        own, values = true == kind, likely[:, kind].copy()
        values[~finite.numpy()] = np.where(own, -1e6, 1e6)[~finite.numpy()]  # lose against everything
        if 0 < own.sum() < len(own):
            areas.append(roc_auc_score(own, values))
        if own.any() and (classes > 2 or kind == 1):
            precisions.append(average_precision_score(own, values))
    shares = torch.where(finite[:, None], logits.double().softmax(1), 0.0).numpy()
    squares = np.square(shares - np.eye(classes)[true]).sum(1) / 2
    squares[~finite.numpy()] = 1  # as far as can be
    if classes == 2 and finite.all():
        assert close(squares.mean(), brier_score_loss(true, shares[:, 1], pos_label=1, labels=[0, 1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of answers that no label has, and of single labels
        occurring = sorted({*true, *answers} - {classes})
        f1 = f1_score(true, answers, labels=occurring, average="macro", zero_division=0) if occurring else None
        if classes == 2:
            f1 = f1_score(true, answers, labels=[1], average="macro") if 1 in occurring else None
        recall = balanced_accuracy_score(true, answers)
    means = [np.mean(values) if values else None for values in (areas, precisions)]
    return accuracy_score(true, answers), recall, f1, *means, squares.mean()


def close(value: float | None, other: float | None) -> bool:
    return other is None if value is None else other is not None and abs(value - other) < 1e-12


@for_any(moments(), few=8, many=20)
def test_every_client_and_all_together_are_scored_as_scikit_learn_does(judged):
    for one, found in zip(judged, measure_all(judged, TASK), strict=True):
        tested = [(client, logits, labels) for client, logits, labels in cut(one) if len(labels)]
        assert list(found.each) == [client for client, _, _ in tested]
        if len(one.labels) == 0:
            assert found == Scores({}, None)
            continue
        assert found.nonfinite == int((~torch.isfinite(one.logits).all(1)).sum())
        spans = [(found.each[client], logits, labels) for client, logits, labels in tested]
        for value, logits, labels in [*spans, (found.together, one.logits, one.labels)]:
            assert value.samples == len(labels)
            numbers = value.accuracy, value.balanced, value.f1, value.auroc, value.average_precision, value.brier
            assert all(map(close, numbers, by_scikit_learn(logits, labels))), value


@for_any(moments(), few=20, many=60)
def test_sets_and_clients_are_scored_as_if_they_were_alone(judged):
    together = measure_all(judged, TASK)
    assert together == [found for one in judged for found in measure_all([one], TASK)]
    for one, found in zip(judged, together, strict=True):
        for client, logits, labels in cut(one):
            [alone] = measure_all([Judged(logits, labels, [client], [len(labels)])], TASK)
            assert alone.together == alone.each.get(client) == found.each.get(client)


@for_any(moments(), st.sampled_from([1, 50]), few=10, many=30)
def test_a_few_classes_at_a_time_give_the_same(judged, most):
    whole = measure_all(judged, TASK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scores, "SORTED_AT_ONCE", most)
        assert measure_all(judged, TASK) == whole


def arithmetic(classes: int) -> Judged:
    """Logits of few values, one of which is none; labels of which many are answered."""
    row, column = torch.arange(17)[:, None], torch.arange(classes)
    logits = ((row * row + 3 * row * column + 5 * column * column) % 7).double() / 2
    logits[4, 0] = math.nan
    labels = torch.where(row[:, 0] % 3 == 0, logits.argmax(1), row[:, 0] % min(classes, 3))
    return Judged(logits, labels, range(5), [6, 0, 1, 7, 3])


# As they were computed client by client and with numpy's sort, before everything was counted at once
NAMES = ("samples", "accuracy", "balanced", "f1", "auroc", "ece")
RECORDED = {
    2: [
        (6, 2 / 3, 2 / 3, 0.8, 5 / 9, 0.3338670610385515),
        (1, 1.0, 1.0, 1.0, None, 0.2689414213699951),
        (7, 6 / 7, 0.875, 6 / 7, 1.0, 0.20779561591538004),
        (3, 2 / 3, 0.75, 2 / 3, 0.5, 0.49470267086108616),
        (17, 13 / 17, 0.7708333333333333, 14 / 17, 0.7291666666666666, 0.24425335611240928),
    ],
    4: [
        (6, 0.5, 0.375, 0.25, 0.125, 0.3779136049719973),
        (1, 1.0, 1.0, 1.0, None, 0.5730672993047512),
        (7, 4 / 7, 2 / 3, 0.5178571428571428, 7 / 9, 0.5399395022466923),
        (3, 2 / 3, 0.5, 1 / 3, 0.75, 0.20272237093849643),
        (17, 10 / 17, 0.6878306878306878, 0.42032163742690054, 0.6577380952380952, 0.2210277411063441),
    ],
}


def test_the_numbers_are_those_that_were_recorded():
    for classes, recorded in RECORDED.items():
        [found] = measure_all([arithmetic(classes)], TASK)
        assert list(found.each) == [0, 2, 3, 4] and found.nonfinite == 1
        for value, expected in zip([*found.each.values(), found.together], recorded, strict=True):
            for name, number in zip(NAMES, expected, strict=True):
                assert close(getattr(value, name), number), (classes, name)


class Calls(TorchDispatchMode):
    """The operations that are carried out, by name."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def test_more_clients_take_no_more_operations_and_none_of_them_waits():
    random = torch.Generator().manual_seed(0)
    called = []
    for sizes in ([600, 1, 599], [4] * 300):
        logits, labels = torch.randn(1200, 3, generator=random), torch.randint(3, (1200,), generator=random)
        with Calls() as calls:
            count([Judged(logits, labels, range(len(sizes)), sizes)] * 2)
        called.append(calls.names)
    assert called[0] == called[1]
    # On a GPU these copy to the host, or have to know how much there is.
    assert not {"_local_scalar_dense", "nonzero", "bincount", "unique", "masked_select"} & set(called[0])


def test_fields_and_names_follow_from_the_table():
    assert [each.name for each in dataclasses.fields(Score)] == ["samples", *TITLES, "task"]
    assert [name for names in METRICS_OF.values() for name in names] == list(TITLES)
    assert METRICS_OF.keys() == TASKS.keys()
    assert pooled_key("accuracy") == "acc_pooled" and all(pooled_key(name) == name for name in [*TITLES][1:])


def test_what_may_choose_rounds_is_a_setting():
    assert typing.get_args(typing.get_type_hints(Run)["metric"]) == CHOOSING
