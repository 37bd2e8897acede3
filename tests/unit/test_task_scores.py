"""Scores of numbers, labels and places: those of scikit-learn and scipy, for each client and for all together."""

import json
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from scipy.stats import spearmanr
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    f1_score,
    jaccard_score,
    log_loss,
    mean_absolute_error,
    mean_squared_error,
    r2_score,
    roc_auc_score,
)

from partwise.engines.scores import Judged
from partwise.records.metrics import METRICS_OF, RANKING
from partwise.runs.metrics import Scores, measure_all, over_clients
from partwise.tasks import Labels, Numbers, Places
from tests.support.searching import for_any

CLASSES = 3
NOT_FINITE = (math.nan, math.inf, -math.inf)


@st.composite
def moments(draw, task):
    """Up to three sets: clients of 0 to 20 rows, many ties, all unknown, constant or one kind, broken predictions."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    columns, result = draw(st.integers(1, 3)), []
    for _ in range(draw(st.integers(1, 3))):
        sizes = draw(st.lists(st.sampled_from([0, 1, 1, 2, 7, 20]), min_size=1, max_size=4))
        shape, given = ((2, 3), (CLASSES, 2, 3)) if task == "places" else ((columns,), (columns,))
        output = random.integers(-3, 4, (sum(sizes), *given)) / 2
        labels = random.integers(0, CLASSES if task == "places" else 2, (sum(sizes), *shape)).astype(np.float64)
        labels += random.integers(0, 5, labels.shape) / 4 if task == "numbers" else 0
        for own in np.split(labels, np.cumsum(sizes)[:-1]):
            kind = draw(st.sampled_from(["any", "all known", "one kind", "first unknown", "all unknown"]))
            if kind == "one kind":
                own[:] = draw(st.sampled_from([0.0, 1.0]))
            if kind in ("any", "one kind"):
                own[random.random(own.shape) < 0.2] = math.nan
            if kind in ("first unknown", "all unknown"):
                own[:, : 1 if kind == "first unknown" else None] = math.nan
        if draw(st.booleans()):
            output[random.random(output.shape) < 0.02] = draw(st.sampled_from(NOT_FINITE))
        y = torch.from_numpy(labels)
        y = y.nan_to_num(nan=-1).long() if task == "places" else y
        result.append(Judged(torch.from_numpy(output), y, range(10, 10 + len(sizes)), sizes))
    return result


def task_of(kind, judged):
    names = tuple("abc"[: judged[0].labels.shape[1]])
    return {"numbers": Numbers(names), "labels": Labels(names), "places": Places(tuple("xyz"))}[kind]


def mean(values):
    """The mean of the values that exist; None where there is none."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None


def numbers(output, labels):
    """RMSE, MAE, R2 and Spearman's correlation, averaged over the numbers that have them."""
    found = []
    for own, true in zip(output.T, labels.T, strict=True):
        own, true = own[~np.isnan(true)], true[~np.isnan(true)]
        if not np.isfinite(own).all():
            return dict.fromkeys(METRICS_OF["numbers"])  # one broken number is not hidden behind the others
        if len(true):
            varied = len({*true}) > 1
            error = mean_squared_error(true, own) ** 0.5, mean_absolute_error(true, own)
            ranks = spearmanr(own, true).statistic if varied and len({*own}) > 1 else None
            found.append((*error, r2_score(true, own) if varied else None, ranks))
    columns = zip(*found, strict=True) if found else [()] * 4
    return dict(zip(METRICS_OF["numbers"], map(mean, columns), strict=True))


def labels(output, labels):
    """Mean AUROC and average precision, micro and macro F1; a row that is not finite loses every comparison."""
    finite = np.isfinite(output).all(1, keepdims=True)
    output = np.where(finite, output, np.where(labels == 1, -1e6, 1e6))
    areas, precisions, f1s, every = [], [], [], []
    for own, true in zip(output.T, labels.T, strict=True):
        own, true = own[~np.isnan(true)], true[~np.isnan(true)]
        answer = own > 0
        areas += [roc_auc_score(true, own)] if 0 < true.sum() < len(true) else []
        precisions += [average_precision_score(true, own)] if true.any() else []
        f1s += [f1_score(true, answer)] if true.any() or answer.any() else []
        every += zip(true, answer, strict=True)
    micro = f1_score(*zip(*every, strict=True)) if f1s else None
    return dict(zip(METRICS_OF["labels"], (mean(areas), mean(precisions), micro, mean(f1s)), strict=True))


def places(output, labels):
    """Accuracy, perplexity, Dice (F1 over places) and IoU (Jaccard), the means over classes that occur."""
    rows, true = np.moveaxis(output, 1, -1)[labels >= 0], labels[labels >= 0]
    finite = np.isfinite(rows).all(1)
    answer = np.where(finite, rows.argmax(1), CLASSES)  # a class that no label has
    if not len(true):
        return dict.fromkeys(METRICS_OF["places"])
    shares = torch.from_numpy(rows).softmax(1).numpy()
    perplexity = math.exp(log_loss(true, shares, labels=range(CLASSES))) if finite.all() else None
    there = sorted({*true, *answer} - {CLASSES})
    scores = [each(true, answer, labels=there, average=None).mean() for each in (f1_score, jaccard_score)]
    return dict(zip(METRICS_OF["places"], (accuracy_score(true, answer), perplexity, *scores), strict=True))


REFERENCES = {"numbers": numbers, "labels": labels, "places": places}


def assert_scored(score, kind, output, labels):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's, of what is undefined
        expected = REFERENCES[kind](output.numpy(), labels.numpy())
    assert (score.samples, score.task) == (len(labels), kind)
    for name, value in expected.items():
        found = score.value(name)
        assert (found is None) == (value is None) and (value is None or abs(found - value) < 1e-11), (name, value)


def assert_as_scikit_learn(kind, judged):
    for one, found in zip(judged, measure_all(judged, task_of(kind, judged)), strict=True):
        if not len(one.labels):
            assert found == Scores({}, None)
            continue
        assert found.nonfinite == int((~torch.isfinite(one.logits.flatten(1)).all(1)).sum())
        assert list(found.each) == [client for client, size in zip(one.clients, one.sizes, strict=True) if size]
        spans = zip(one.clients, one.logits.split(one.sizes), one.labels.split(one.sizes), strict=True)
        for client, output, labels in spans:
            if len(labels):
                assert_scored(found.each[client], kind, output, labels)
        assert_scored(found.together, kind, one.logits, one.labels)


def assert_as_alone(kind, judged):
    task = task_of(kind, judged)
    together = measure_all(judged, task)
    assert together == [found for one in judged for found in measure_all([one], task)]
    for one, found in zip(judged, together, strict=True):
        spans = zip(one.clients, one.logits.split(one.sizes), one.labels.split(one.sizes), strict=True)
        for client, output, labels in spans:
            [alone] = measure_all([Judged(output, labels, [client], [len(labels)])], task)
            assert alone.together == alone.each.get(client) == found.each.get(client)


@for_any(moments("numbers"), few=25, many=300)
def test_numbers_are_scored_as_scikit_learn_does(judged):
    assert_as_scikit_learn("numbers", judged)


@for_any(moments("labels"), few=25, many=300)
def test_labels_are_scored_as_scikit_learn_does(judged):
    assert_as_scikit_learn("labels", judged)


@for_any(moments("places"), few=25, many=300)
def test_places_are_scored_as_scikit_learn_does(judged):
    assert_as_scikit_learn("places", judged)


@for_any(st.sampled_from(sorted(REFERENCES)).flatmap(lambda k: st.tuples(st.just(k), moments(k))), few=30, many=300)
def test_sets_and_clients_are_scored_as_if_they_were_alone(drawn):
    assert_as_alone(*drawn)


# ------------------------------------------------------------------------------------------------------- by hand


def scored(task, output, labels, sizes=None):
    output, labels = torch.as_tensor(output, dtype=torch.float64), torch.as_tensor(labels)
    sizes = sizes or [len(labels)]
    return measure_all([Judged(output, labels, range(len(sizes)), sizes)], task)[0]


def test_numbers_by_hand_are_in_the_labels_own_unit():
    task = Numbers(("days", "cost"), centre=(10.0, 0.0), scale=(2.0, 1.0))  # days = 10 + 2 x what is trained
    found = scored(task, [[0, 5], [1, 5], [2, 5]], [[0.0, 5], [0, math.nan], [0.5, 5]]).together
    # days: 10, 10, 11, predicted 10, 12, 14: errors 0, 2, 3; cost: 5, unknown, 5, predicted 5 each: no error
    assert found.rmse == pytest.approx((math.sqrt(13 / 3) + 0) / 2, abs=1e-15)
    assert found.mae == pytest.approx((5 / 3 + 0) / 2, abs=1e-15)
    assert found.r2 == pytest.approx(1 - 13 / (2 / 3), abs=1e-12)  # of days alone: cost does not vary
    assert found.spearman == pytest.approx(math.sqrt(3) / 2, abs=1e-15)  # ranks 1.5, 1.5, 3 beside 1, 2, 3


def test_labels_by_hand():
    found = scored(
        Labels(("sick", "old")),
        [[2, -1], [1, 0.5], [-1, 9], [3, -2]],
        [[1.0, 0], [0, 1], [1, math.nan], [math.nan, 0]],
    ).together
    # sick: 1, 0, 1 at 2, 1, -1; answers 1, 1, 0. old: 0, 1, 0 at -1, 0.5, -2: right everywhere
    assert found.mean_auroc == (0.5 + 1) / 2
    assert found.mean_ap == pytest.approx(((1 + 2 / 3) / 2 + 1) / 2, abs=1e-15)
    assert found.micro_f1 == 2 * 2 / (3 + 3)  # right: 1 + 1; labels that are 1: 2 + 1; answers: 2 + 1
    assert found.macro_f1 == (0.5 + 1) / 2


def test_places_by_hand():
    three = math.log(3)
    output = [[[three, 0, 0, 0], [0, three, 0, three]]]  # (rows, classes, places): 0, 1, a tie (0), 1
    found = scored(Places(("a", "b")), output, [[0, 1, 1, -1]]).together
    assert found.place_accuracy == 2 / 3
    assert found.perplexity == pytest.approx((4 / 3 * 4 / 3 * 2) ** (1 / 3), abs=1e-12)  # shares 3/4, 3/4, 1/2
    assert found.dice == (2 * 1 / (1 + 2) + 2 * 1 / (2 + 1)) / 2
    assert found.iou == (1 / 2 + 1 / 2) / 2


NOTHING = {
    "numbers": (Numbers(("a",)), [[1.0], [2.0]], [[math.nan]] * 2),
    "labels": (Labels(("a",)), [[1.0], [2.0]], [[math.nan]] * 2),
    "places": (Places(("a", "b")), [[[1.0], [2.0]]] * 2, [[-1]] * 2),
}


@pytest.mark.parametrize("kind", NOTHING)
def test_what_is_unknown_everywhere_has_no_score_and_is_no_zero(kind):
    found = scored(*NOTHING[kind], sizes=[1, 1])
    for score in (*found.each.values(), found.together):
        assert [score.value(name) for name in METRICS_OF[kind]] == [None] * 4
    line = over_clients(found)
    assert (line.clients, line.mean, line.std, line.worst) == (2, None, None, None)


@pytest.mark.parametrize("kind", NOTHING)
@pytest.mark.parametrize("number", [*NOT_FINITE, 1e200, -1e200])
def test_a_prediction_beyond_all_bounds_gives_finite_numbers_or_none(kind, number):
    """What is written is JSON, which has no infinity; a row that is not finite is counted."""
    task, output, labels = NOTHING[kind]
    output = torch.full_like(torch.tensor(output), number, dtype=torch.float64)
    output[0] = torch.linspace(-1e200, 1e200, output[0].numel(), dtype=torch.float64).view_as(output[0])
    labels = torch.tensor(labels).fill_(1)
    found = scored(task, output, labels)
    json.dumps([found.together.value(name) for name in METRICS_OF[kind]], allow_nan=False)
    assert found.nonfinite == (0 if math.isfinite(number) else 1)


def test_over_clients_the_worst_tenth_is_the_one_with_the_largest_rmse():
    output, labels = [[float(error)] for error in range(1, 21)], [[0.0]] * 20
    line = over_clients(scored(Numbers(("a",)), output, labels, sizes=[1] * 20))
    assert (line.mean, line.worst) == (10.5, 19.5)  # errors 1 to 20; the worst two of twenty are 19 and 20
    assert RANKING[line.pooled.task] == "rmse"
