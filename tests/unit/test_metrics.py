"""Accuracy as the papers print it, checked by hand, against a published table and against scikit-learn."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, balanced_accuracy_score

from partwise.runs.metrics import History, Score, score, summary

# FedTC, Table 1: FedAvg on CIFAR-10, the accuracy of every client in %, and the printed deviation
TABLE_1 = {
    0.1: ([64.28, 62.93, 46.69, 63.79, 56.88, 53.58, 60.95, 48.46, 68.81, 66.40], 0.0758),
    0.5: ([67.12, 67.04, 57.64, 67.10, 67.22, 76.74, 63.49, 73.90, 57.48, 69.09], 0.0611),
    5.0: ([71.31, 72.01, 70.60, 65.94, 68.76, 66.47, 66.95, 67.11, 69.36, 70.12], 0.0215),
}
CLASSES = 5
pairs = st.lists(st.tuples(st.integers(0, CLASSES - 1), st.integers(0, CLASSES - 1)), max_size=30)  # label, prediction
clients = st.lists(pairs, min_size=1, max_size=6)


def counted(correct: int, total: int) -> Score:
    """So many right of so many samples of one class."""
    return Score(torch.tensor([float(correct)]).double(), torch.tensor([float(total)]).double())


def scored(answers: list[tuple[int, int]]) -> Score:
    """The score of predictions, from logits whose largest is the predicted class."""
    y = torch.tensor([label for label, _ in answers], dtype=torch.long)
    predicted = torch.tensor([guess for _, guess in answers], dtype=torch.long)
    random = torch.Generator().manual_seed(len(answers))
    logits = torch.randn(len(answers), CLASSES, generator=random)
    logits[torch.arange(len(answers)), predicted] = 10.0
    return score(logits, y, CLASSES)


# ---------------------------------------------------------------------------------------------------- one moment


@pytest.mark.parametrize("alpha", TABLE_1)
def test_the_deviation_is_the_one_that_fedtc_prints(alpha):
    accuracies, printed = TABLE_1[alpha]
    line = summary({client: counted(round(100 * value), 10_000) for client, value in enumerate(accuracies)})
    assert round(line["acc_std"], 4) == printed
    assert line["acc_std"] == pytest.approx(np.std(accuracies, ddof=1) / 100, abs=1e-14)
    assert round(float(np.std(accuracies) / 100), 4) != printed  # the other deviation would not do
    assert line["clients"] == 10


def test_the_mean_of_fedtcs_table_is_not_its_pooled_accuracy():
    accuracies, _ = TABLE_1[0.1]
    line = summary({client: counted(round(100 * value), 10_000) for client, value in enumerate(accuracies)})
    assert round(100 * line["acc_mean"], 2) == 59.28


def test_a_moment_by_hand():
    line = summary({0: counted(9, 10), 1: counted(10, 40), 2: counted(0, 0)})
    assert line["acc_pooled"] == 19 / 50
    assert line["acc_mean"] == pytest.approx((0.9 + 0.25) / 2, abs=1e-15)
    assert line["acc_std"] == pytest.approx((0.9 - 0.25) / math.sqrt(2), abs=1e-15)
    assert line["clients"] == 2  # one without test samples is no client with accuracy 0


def test_a_single_client_has_no_deviation_and_nobody_no_accuracy():
    assert summary({4: counted(3, 4)}) == {
        "acc_pooled": 0.75,
        "acc_mean": 0.75,
        "acc_std": 0.0,
        "acc_worst": 0.75,
        "balanced": 0.75,
        "clients": 1,
    }
    assert summary({}) == summary({3: counted(0, 0)}) == {"clients": 0}


@settings(max_examples=100, deadline=None)
@given(clients)
def test_pooled_accuracy_is_the_mean_weighted_by_samples(answers):
    scores = {client: scored(rows) for client, rows in enumerate(answers)}
    line = summary(scores)
    tested = {client: value for client, value in scores.items() if value.samples}
    assert line["clients"] == len(tested)
    if tested:
        weighted = sum(value.accuracy * value.samples for value in tested.values())
        assert line["acc_pooled"] == pytest.approx(
            weighted / sum(value.samples for value in tested.values()), abs=1e-12
        )
        assert line["acc_pooled"] == accuracy_score(*zip(*(row for rows in answers for row in rows), strict=True))
        lowest, highest = (kind(value.accuracy for value in tested.values()) for kind in (min, max))
        for name in ("acc_pooled", "acc_mean"):
            assert 0 <= line[name] <= 1 and lowest - 1e-12 <= line[name] <= highest + 1e-12
        assert 0 <= line["balanced"] <= 1 and line["acc_std"] >= 0


@settings(max_examples=100, deadline=None)
@given(pairs.filter(len))
def test_accuracy_and_balanced_accuracy_are_those_of_scikit_learn(answers):
    y, predicted = zip(*answers, strict=True)
    value = scored(answers)
    assert value.samples == len(answers)
    assert value.accuracy == pytest.approx(accuracy_score(y, predicted), abs=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of predicted classes that no label has
        assert value.balanced == pytest.approx(balanced_accuracy_score(y, predicted), abs=1e-12)


def test_balanced_accuracy_of_many_clients_is_that_of_all_samples_together():
    one, two = [(0, 0)] * 9 + [(1, 0)], [(1, 1), (2, 0)]
    line = summary({0: scored(one), 1: scored(two)})
    assert line["balanced"] == pytest.approx((1 + 1 / 2 + 0) / 3, abs=1e-15)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_is_wrong(broken):
    """Whatever argmax makes of it: torch takes nan for the largest."""
    y = torch.tensor([0, 1, 2, 2])
    logits = torch.eye(4)[:, :3].clone()
    logits[3] = torch.tensor([0.0, 0.0, 1.0])
    assert score(logits, y, 3).correct.tolist() == [1, 1, 2]
    logits[1, 1] = broken
    logits[3, 0] = broken
    value = score(logits, y, 3)
    assert value.correct.tolist() == [1, 0, 1] and value.total.tolist() == [1, 1, 2]
    assert value.accuracy == 0.5
    everything = score(torch.full((4, 3), broken), y, 3)
    assert everything.accuracy == 0.0 and everything.balanced == 0.0


# ------------------------------------------------------------------------------------------------------- history


def history(*rounds: dict[str, dict[int, Score]], start: int = 1) -> History:
    """A history of evaluations: for every round the scores of every moment."""
    result = History()
    for number, moments in enumerate(rounds, start):
        row = {"round": number, **{moment: result.note(moment, scores) for moment, scores in moments.items()}}
        result.rows.append(row)
    return result


def of(*right: int) -> dict[int, Score]:
    """Client 0 tests on 10 samples, client 1 on 30, client 2 on 5: so many are right."""
    return {
        client: counted(number, total) for client, (number, total) in enumerate(zip(right, (10, 30, 5), strict=False))
    }


def test_best_last_and_the_clients_own_bests():
    made = history({"received": of(5, 9)}, {"received": of(2, 24)}, {"received": of(9, 15)}, {"received": of(4, 18)})
    line = made.headline()["received"]
    assert (line["best"]["round"], line["best"]["acc_pooled"]) == (2, 26 / 40)
    assert (line["best_mean"]["round"], line["best_mean"]["acc_mean"]) == (3, pytest.approx(0.7))
    assert (line["last"]["round"], line["last"]["acc_pooled"]) == (4, 22 / 40)
    assert line["best_per_client_mean"] == pytest.approx((0.9 + 0.8) / 2, abs=1e-15)  # of rounds 3 and 2


def test_the_first_of_equal_rounds_is_the_best():
    made = history({"received": of(5, 9)}, {"received": of(6, 8)}, {"received": of(1, 1)})
    assert made.headline()["received"]["best"]["round"] == 1


def test_rounds_without_an_evaluation_are_passed_over():
    made = history({"received": of(5, 9)}, {"trained": of(6, 9)}, {}, start=3)
    line = made.headline()
    assert line["received"]["last"]["round"] == 3 and line["trained"]["last"]["round"] == 4
    assert set(line) == {"received", "trained"}
    assert History().headline() == {}


def test_a_clients_best_counts_only_rounds_in_which_it_was_tested():
    made = history({"trained": {0: counted(5, 10)}}, {"trained": {1: counted(6, 30)}}, {"trained": {0: counted(4, 10)}})
    line = made.headline()["trained"]
    assert line["best_per_client_mean"] == pytest.approx((0.5 + 0.2) / 2, abs=1e-15)
    assert made.last["trained"][0].accuracy == 0.4 and made.last["trained"][1].accuracy == 0.2
    assert line["last"]["clients"] == 1


def test_with_validation_samples_the_round_is_chosen_on_them_alone():
    made = history(
        {"received": of(10, 30), "validation": of(1, 9)},
        {"received": of(3, 12), "validation": of(2, 27)},
        {"received": of(9, 15), "validation": of(9, 10)},
    )
    line = made.headline()
    assert line["chosen"]["round"] == 2 and line["chosen"]["acc_pooled"] == 15 / 40
    assert line["received"]["best"]["round"] == 1


def test_a_client_without_validation_samples_has_no_vote():
    empty = counted(0, 0)
    made = history(
        {"received": of(1, 3), "validation": {0: counted(1, 2), 1: empty}},
        {"received": of(2, 6), "validation": {0: counted(2, 2), 1: empty}},
    )
    assert made.headline()["chosen"]["round"] == 2
    assert made.rows[0]["validation"]["clients"] == 1


def test_the_global_model_has_its_best_and_last():
    made = History(
        rows=[
            {"round": number, "global": {"g_test": value, "p_test": {"acc_mean": value / 2, "clients": 2}}}
            for number, value in ((1, 0.2), (2, 0.6), (3, 0.4))
        ]
    )
    line = made.headline()["global"]
    assert (line["best"]["round"], line["best"]["g_test"]) == (2, 0.6)
    assert (line["last"]["round"], line["last"]["p_test"]["acc_mean"]) == (3, 0.2)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 30), st.integers(0, 5)), min_size=1, max_size=8))
def test_nothing_is_better_than_best_and_no_client_better_than_its_own(rounds):
    made = history(*({"received": of(*right)} for right in rounds))
    line = made.headline()["received"]
    pooled = [row["received"]["acc_pooled"] for row in made.rows]
    assert line["best"]["acc_pooled"] == max(pooled) and line["last"]["acc_pooled"] == pooled[-1]
    best = [max(right[client] for right in rounds) / total for client, total in enumerate((10, 30, 5))]
    assert line["best_per_client_mean"] == pytest.approx(sum(best) / 3, abs=1e-12)
    assert line["best_per_client_mean"] >= line["best_mean"]["acc_mean"] - 1e-12
