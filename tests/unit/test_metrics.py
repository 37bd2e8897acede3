"""Metrics as the papers print them, checked by hand, against a published table and against scikit-learn."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import assume
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, roc_auc_score
from torch import Tensor

from partwise.engines.scores import Judged
from partwise.records.metrics import TITLES, Score
from partwise.records.rounds import RoundRecord
from partwise.records.summaries import RunSummary
from partwise.runs.metrics import History, Scores, measure_all, over_clients, worse_off
from partwise.tasks import Classes
from tests.support.searching import for_any

# FedTC, Table 1: FedAvg on CIFAR-10, the accuracy of every client in %, and the printed deviation
TABLE_1 = {
    0.1: ([64.28, 62.93, 46.69, 63.79, 56.88, 53.58, 60.95, 48.46, 68.81, 66.40], 0.0758),
    0.5: ([67.12, 67.04, 57.64, 67.10, 67.22, 76.74, 63.49, 73.90, 57.48, 69.09], 0.0611),
    5.0: ([71.31, 72.01, 70.60, 65.94, 68.76, 66.47, 66.95, 67.11, 69.36, 70.12], 0.0215),
}
CLASSES = 5
pairs = st.lists(st.tuples(st.integers(0, CLASSES - 1), st.integers(0, CLASSES - 1)), max_size=30)  # label, answer
clients = st.lists(pairs, min_size=1, max_size=6)
binary = st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3)), min_size=1, max_size=30)  # label, score of class 1
numbers = st.one_of(st.floats(-1e3, 1e3, width=32), st.sampled_from([math.nan, math.inf, -math.inf, 1e38]))

TASK = Classes(())


def rows(answers: list[tuple[int, int]], classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    """Logits whose largest is the answer, and labels."""
    labels = torch.tensor([label for label, _ in answers], dtype=torch.long)
    random = torch.Generator().manual_seed(len(answers))
    logits = torch.randn(len(answers), classes, generator=random)
    logits[torch.arange(len(answers)), torch.tensor([answer for _, answer in answers], dtype=torch.long)] = 10.0
    return logits, labels


def margins(answers: list[tuple[int, float]]) -> tuple[Tensor, Tensor]:
    """Two classes: so much more for class 1 than for class 0."""
    more = torch.tensor([value for _, value in answers], dtype=torch.float64)
    return torch.stack([torch.zeros_like(more), more], 1), torch.tensor([label for label, _ in answers])


def measure(logits: dict[int, Tensor], labels: dict[int, Tensor]) -> Scores:
    """What clients answered against what is true, at one moment."""
    if not labels:
        return Scores({}, None)
    rows, true = (torch.cat([values[client] for client in labels]) for values in (logits, labels))
    return measure_all([Judged(rows, true, list(labels), [len(own) for own in labels.values()])], TASK)[0]


def score(logits: Tensor, labels: Tensor, sizes: list[int]) -> list[Score]:
    """The score of each span of rows: the first `sizes[0]` of them, the next `sizes[1]`, and so on."""
    return list(measure_all([Judged(logits, labels, range(len(sizes)), sizes)], TASK)[0].each.values())


def scored(logits: Tensor, labels: Tensor) -> Score:
    [value] = score(logits, labels, [len(labels)])
    return value


def measured(answers: dict[int, list[tuple[int, int]]]) -> Scores:
    made = {client: rows(each) for client, each in answers.items()}
    return measure({k: logits for k, (logits, _) in made.items()}, {k: labels for k, (_, labels) in made.items()})


def counted(correct: int, total: int) -> list[tuple[int, int]]:
    """So many right of so many samples of one class."""
    return [(0, 0)] * correct + [(0, 1)] * (total - correct)


# ---------------------------------------------------------------------------------------------------- one moment


@pytest.mark.parametrize("alpha", TABLE_1)
def test_the_deviation_is_the_one_that_fedtc_prints(alpha):
    accuracies, printed = TABLE_1[alpha]
    line = summary(measured({client: counted(round(100 * value), 10_000) for client, value in enumerate(accuracies)}))
    assert round(line["acc_std"], 4) == printed
    assert line["acc_std"] == pytest.approx(np.std(accuracies, ddof=1) / 100, abs=1e-14)
    assert round(float(np.std(accuracies) / 100), 4) != printed  # the other deviation would not do
    assert line["clients"] == 10


def test_the_mean_of_fedtcs_table_is_not_its_pooled_accuracy():
    accuracies, _ = TABLE_1[0.1]
    line = summary(measured({client: counted(round(100 * value), 10_000) for client, value in enumerate(accuracies)}))
    assert round(100 * line["acc_mean"], 2) == 59.28


def test_a_moment_by_hand():
    line = summary(measured({0: counted(9, 10), 1: counted(10, 40), 2: counted(0, 0)}))
    assert line["acc_pooled"] == 19 / 50
    assert line["acc_mean"] == pytest.approx((0.9 + 0.25) / 2, abs=1e-15)
    assert line["acc_std"] == pytest.approx((0.9 - 0.25) / math.sqrt(2), abs=1e-15)
    assert line["acc_worst"] == 0.25
    assert line["balanced"] == 19 / 50 and line["auroc"] is None  # all samples are of one class
    assert line["f1"] == pytest.approx((2 * 19 / (50 + 19) + 0) / 2)  # of the class that is there and of the wrong one
    assert line["clients"] == 2  # one without test samples is no client with accuracy 0


def test_a_single_client_has_no_deviation_and_nobody_no_accuracy():
    line = summary(measured({4: counted(3, 4)}))
    assert (line["acc_pooled"], line["acc_mean"], line["acc_std"], line["acc_worst"]) == (0.75, 0.75, 0.0, 0.75)
    assert (line["balanced"], line["clients"]) == (0.75, 1)
    assert summary(measured({})) == summary(measured({3: counted(0, 0)})) == {"clients": 0}


@for_any(clients, few=20, many=60)
def test_pooled_accuracy_is_the_mean_weighted_by_samples(answers):
    scores = measured(dict(enumerate(answers)))
    line, tested = summary(scores), scores.each.values()
    assert line["clients"] == len(tested) == sum(map(bool, answers))
    if tested:
        samples = sum(value.samples for value in tested)
        weighted = sum(value.accuracy * value.samples for value in tested) / samples
        assert line["acc_pooled"] == pytest.approx(weighted, abs=1e-12)
        assert line["acc_pooled"] == accuracy_score(*zip(*(row for rows in answers for row in rows), strict=True))
        lowest, highest = (kind(value.accuracy for value in tested) for kind in (min, max))
        for name in ("acc_pooled", "acc_mean", "acc_worst"):
            assert lowest - 1e-12 <= line[name] <= highest + 1e-12
        # In a bin, what one client is too confident may be what another is too little.
        assert line["ece"] <= sum(value.ece * value.samples for value in tested) / samples + 1e-12


@for_any(clients, st.randoms(use_true_random=False), few=20, many=60)
def test_the_order_of_clients_changes_nothing_and_each_is_scored_as_if_it_were_alone(answers, random):
    scores = measured(dict(enumerate(answers)))
    for client, value in scores.each.items():
        assert value == scored(*rows(answers[client]))
    shuffled = random.sample(list(enumerate(answers)), len(answers))
    again = measured(dict(shuffled))
    assert again.each == scores.each
    assert summary(again) == pytest.approx(summary(scores), abs=1e-12)


@for_any(pairs.filter(len), few=20, many=60)
def test_what_counts_answers_is_what_scikit_learn_makes_of_them(answers):
    labels, predicted = zip(*answers, strict=True)
    value = scored(*rows(answers))
    assert value.samples == len(answers)
    assert value.accuracy == pytest.approx(accuracy_score(labels, predicted), abs=1e-12)
    assert value.f1 == pytest.approx(f1_score(labels, predicted, average="macro"), abs=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of predicted classes that no label has
        assert value.balanced == pytest.approx(balanced_accuracy_score(labels, predicted), abs=1e-12)


@for_any(pairs.filter(len), st.permutations(range(CLASSES)), few=20, many=60)
def test_the_names_of_classes_change_nothing(answers, names):
    logits, labels = rows(answers)
    renamed = scored(logits[:, torch.tensor(names).argsort()], torch.tensor(names)[labels])
    value = scored(logits, labels)
    for name in TITLES:
        assert getattr(renamed, name) == pytest.approx(getattr(value, name), abs=1e-12), name


def test_balanced_accuracy_of_many_clients_is_that_of_all_samples_together():
    one, two = [(0, 0)] * 9 + [(1, 0)], [(1, 1), (2, 0)]
    line = summary(measured({0: one, 1: two}))
    assert line["balanced"] == pytest.approx((1 + 1 / 2 + 0) / 3, abs=1e-15)


# ------------------------------------------------------------------------------------------ F1, AUROC, calibration


def test_f1_by_hand():
    value = scored(*rows([(0, 0), (0, 1), (1, 1), (1, 1), (2, 0)]))
    assert value.f1 == pytest.approx((2 / 4 + 4 / 5 + 0) / 3)  # classes 3 and 4 occur nowhere
    assert scored(*rows([(0, 3)])).f1 == 0.0


def test_of_two_classes_f1_is_that_of_class_1():
    assert scored(*rows([(1, 1), (1, 0), (0, 1), (0, 0), (0, 0)], classes=2)).f1 == 0.5  # the mean would be higher
    assert scored(*rows([(0, 0), (0, 1)], classes=2)).f1 == 0.0
    assert scored(*rows([(0, 0), (0, 0)], classes=2)).f1 is None  # nothing to find, and nothing was found


def test_auroc_by_hand():
    logits, labels = margins([(1, 0.8), (1, 0.4), (0, 0.4), (0, 0.1)])
    assert scored(logits, labels).auroc == 3.5 / 4  # three of four pairs in order, one tied
    assert scored(logits, labels * 0).auroc is None and scored(logits, labels * 0 + 1).auroc is None
    alone = measure({0: logits[:2], 1: logits[2:]}, {0: labels[:2], 1: labels[2:]})
    assert [value.auroc for value in alone.each.values()] == [None, None] and alone.together.auroc == 3.5 / 4


def test_auroc_of_many_classes_is_the_mean_over_those_with_both_kinds():
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 2.0, 1.0], [1.0, 3.0, 0.0], [2.0, 1.0, 0.0]])
    value = scored(logits, torch.tensor([0, 0, 1, 1]))  # nothing is of class 2
    # Probabilities of class 0: 0.67, 0.09 against 0.11, 0.67; of class 1: 0.84, 0.24 against 0.24, 0.67.
    assert value.auroc == (1.5 / 4 + 2.5 / 4) / 2


@for_any(binary, few=20, many=60)
def test_auroc_of_two_classes_is_that_of_scikit_learn(answers):
    labels, scores = zip(*answers, strict=True)
    value = scored(*margins(answers)).auroc
    if len(set(labels)) == 1:
        assert value is None
    else:
        assert value == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


@for_any(
    st.lists(st.tuples(st.integers(0, CLASSES - 1), st.integers(0, 7)), min_size=1, max_size=40),
    st.integers(0, 9),
    few=20,
    many=60,
)
def test_auroc_of_many_classes_is_that_of_scikit_learn(answers, seed):
    """Samples share a few rows of logits, so that there are ties; some classes are missing."""
    labels = np.array([label for label, _ in answers])
    distinct = torch.randn(8, CLASSES, generator=torch.Generator().manual_seed(seed)).double()
    logits = distinct[[row for _, row in answers]]
    likely = logits.softmax(1).numpy()
    areas = [roc_auc_score(labels == c, likely[:, c]) for c in range(CLASSES) if 0 < sum(labels == c) < len(labels)]
    value = scored(logits, torch.from_numpy(labels)).auroc
    assert value == (pytest.approx(np.mean(areas), abs=1e-12) if areas else None)
    if set(labels) == set(range(CLASSES)):
        assert value == pytest.approx(roc_auc_score(labels, likely, multi_class="ovr"), abs=1e-12)


@for_any(binary, few=20, many=60)
def test_auroc_knows_the_order_of_scores_alone(answers):
    value = scored(*margins(answers)).auroc
    assume(value is not None)
    for grow in (lambda x: 5 * x, lambda x: x**3 + 100, lambda x: -math.exp(-x)):
        assert scored(*margins([(label, grow(x)) for label, x in answers])).auroc == value
    assert scored(*margins([(label, -x) for label, x in answers])).auroc == pytest.approx(1 - value, abs=1e-12)
    assert scored(*margins([(1 - label, x) for label, x in answers])).auroc == pytest.approx(1 - value, abs=1e-12)


def test_auroc_tells_samples_apart_that_are_all_but_certain():
    assert scored(*margins([(1, 60.0), (0, 50.0), (0, 40.0)])).auroc == 1.0  # every probability is 1 in float64


def test_average_precision_and_brier_score_by_hand():
    value = scored(*margins([(1, 3.0), (0, 2.0), (1, 2.0), (0, 1.0), (1, 0.0)]))
    # Of class 1 are 1 of 1 sample from the first on, 2 of 3 from the two that are equal on, 3 of 5 from the last on.
    assert value.average_precision == pytest.approx((1 + 2 / 3 + 3 / 5) / 3, abs=1e-12)
    shares = [1 / (1 + math.exp(-margin)) for margin in (3, 2, 2, 1, 0)]
    squares = [(share - label) ** 2 for share, label in zip(shares, (1, 0, 1, 0, 1), strict=True)]
    assert value.brier == pytest.approx(math.fsum(squares) / 5, abs=1e-7)  # logits are float32
    certain = scored(5e4 * torch.eye(3), torch.tensor([0, 1, 1]))  # right, right, and as wrong as can be
    assert certain.brier == pytest.approx(1 / 3, abs=1e-12) and certain.average_precision is not None


def test_calibration_by_hand():
    sure, unsure = math.log(0.9 / 0.1), math.log(0.6 / 0.4)
    answers = [
        (1, sure),
        (1, sure),
        (1, sure),
        (0, sure),
        (1, unsure),
        (0, unsure),
    ]  # 3 of 4 right at 0.9, 1 of 2 at 0.6
    assert scored(*margins(answers)).ece == pytest.approx((4 * 0.15 + 2 * 0.1) / 6)
    assert scored(*margins([(0, 50.0)])).ece == pytest.approx(1) and scored(*margins([(1, 50.0)])).ece == pytest.approx(
        0
    )
    # Bins end at 9/15 = 0.6 and at 10/15 = 0.667: within one only the means are compared, here those of 0.61 and 0.66.
    low, middle, high = (math.log(p / (1 - p)) for p in (0.61, 0.66, 0.68))
    assert scored(*margins([(1, middle), (0, low)])).ece == pytest.approx(0.635 - 0.5)
    assert scored(*margins([(1, middle), (0, high)])).ece == pytest.approx((1 - 0.66) / 2 + 0.68 / 2)


@for_any(st.lists(st.tuples(st.integers(5, 7), st.booleans()), min_size=1, max_size=6), few=10, many=30)
def test_as_often_right_as_it_says_is_perfectly_calibrated(groups):
    """In each group of eight, k are right with a probability of k / 8."""
    answers = []
    for right, positive in groups:
        more = math.log(right / (8 - right)) * (1 if positive else -1)
        answers += [(int(positive), more)] * right + [(int(not positive), more)] * (8 - right)
    assert scored(*margins(answers)).ece == pytest.approx(0, abs=1e-12)


# ------------------------------------------------------------------------------------------------- broken answers


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_is_wrong(broken):
    """Whatever argmax makes of it: torch takes nan for the largest."""
    labels = torch.tensor([0, 1, 2, 2])
    logits = 5 * torch.eye(4)[:, :3]
    logits[3] = torch.tensor([0.0, 0.0, 5.0])
    assert scored(logits, labels).accuracy == scored(logits, labels).auroc == 1.0
    logits[1, 1] = broken
    logits[3, 0] = broken
    value = scored(logits, labels)
    assert value.accuracy == 0.5 and value.balanced == pytest.approx((1 + 0 + 1 / 2) / 3)
    assert value.f1 == pytest.approx((2 / 2 + 0 / 1 + 2 / 3) / 3)  # two rows answered nothing
    # Class 0 is above the finite row of three, class 1 above none; of class 2 one row is above row 0 of two others.
    assert value.auroc == pytest.approx((1 / 3 + 0 + 1 / 4) / 3)
    confidence = math.exp(5) / (math.exp(5) + 2)
    assert value.ece == pytest.approx((2 * confidence + 2 - 2) / 4)  # all four in the last bin
    everything = scored(torch.full((4, 3), broken), labels)
    assert (everything.samples, everything.accuracy, everything.balanced) == (4, 0.0, 0.0)
    assert (everything.f1, everything.auroc, everything.ece) == (0.0, 0.0, 1.0)


@for_any(st.integers(2, 4), st.data(), few=33, many=100)
def test_whatever_the_answers_every_metric_is_a_share(classes, data):
    row = st.tuples(st.integers(0, classes - 1), st.lists(numbers, min_size=classes, max_size=classes))
    answers = data.draw(st.lists(row, min_size=1, max_size=12))
    logits = torch.tensor([each for _, each in answers])
    labels = torch.tensor([label for label, _ in answers])
    half = len(labels) // 2
    for value in (scored(logits, labels), *score(logits, labels, [half, len(labels) - half] if half else [1])):
        for name in TITLES:
            number = value.value(name)
            missing = number is None and name not in (
                "accuracy",
                "balanced",
                "ece",
                "brier",
            )  # these exist for every sample
            assert missing or -1e-12 <= number <= 1 + 1e-12, name


# ------------------------------------------------------------------------------------------------------- history


def summary(scores: Scores) -> dict:
    """The scores of many clients, as files have them."""
    return over_clients(scores).as_json()


def headline(made: History) -> dict:
    """Best and last, as summary.json has them."""
    return RunSummary(
        "", 0, 0, 0, moments=made.headlines(), global_model=made.global_headline(), chosen=made.chosen()
    ).as_json()["accuracy"]


def history(*rounds: dict[str, dict[int, list[tuple[int, int]]]], start: int = 1) -> History:
    """A history of evaluations: for every round the answers of every moment."""
    result = History()
    for number, moments in enumerate(rounds, start):
        line = {moment: result.note(moment, measured(answers)).as_json() for moment, answers in moments.items()}
        result.rounds.append(RoundRecord.from_json({"round": number, **line}))
    return result


def of(*right: int) -> dict[int, list[tuple[int, int]]]:
    """Client 0 tests on 10 samples, client 1 on 30, client 2 on 5: so many are right."""
    return {
        client: counted(number, total) for client, (number, total) in enumerate(zip(right, (10, 30, 5), strict=False))
    }


def test_best_last_and_the_clients_own_bests():
    made = history({"received": of(5, 9)}, {"received": of(2, 24)}, {"received": of(9, 15)}, {"received": of(4, 18)})
    line = headline(made)["received"]
    assert (line["best"]["round"], line["best"]["acc_pooled"]) == (2, 26 / 40)
    assert (line["best_mean"]["round"], line["best_mean"]["acc_mean"]) == (3, pytest.approx(0.7))
    assert (line["last"]["round"], line["last"]["acc_pooled"]) == (4, 22 / 40)
    assert line["best_per_client_mean"] == pytest.approx((0.9 + 0.8) / 2, abs=1e-15)  # of rounds 3 and 2


def test_the_first_of_equal_rounds_is_the_best():
    made = history({"received": of(5, 9)}, {"received": of(6, 8)}, {"received": of(1, 1)})
    assert headline(made)["received"]["best"]["round"] == 1


def test_rounds_without_an_evaluation_are_passed_over():
    made = history({"received": of(5, 9)}, {"trained": of(6, 9)}, {}, start=3)
    line = headline(made)
    assert line["received"]["last"]["round"] == 3 and line["trained"]["last"]["round"] == 4
    assert set(line) == {"received", "trained"}
    assert headline(History()) == {}


def test_a_clients_best_counts_only_rounds_in_which_it_was_tested():
    made = history({"trained": {0: counted(5, 10)}}, {"trained": {1: counted(6, 30)}}, {"trained": {0: counted(4, 10)}})
    line = headline(made)["trained"]
    assert line["best_per_client_mean"] == pytest.approx((0.5 + 0.2) / 2, abs=1e-15)
    assert made.scores["trained"][0].accuracy == 0.4 and made.scores["trained"][1].accuracy == 0.2
    assert line["last"]["clients"] == 1


def test_a_clients_best_is_the_lowest_rmse_and_none_where_it_was_never_defined():
    made, undefined = History("rmse"), Score(3, task="numbers")
    for own in (undefined, Score(3, rmse=2.0, task="numbers"), Score(3, rmse=3.0, task="numbers")):
        made.note("received", Scores({0: own, 1: undefined}, own))
    assert made.best == {"received": {0: 2.0}}


def test_with_validation_samples_the_round_is_chosen_on_them_alone():
    made = history(
        {"received": of(10, 30), "validation": of(1, 9)},
        {"received": of(3, 12), "validation": of(2, 27)},
        {"received": of(9, 15), "validation": of(9, 10)},
    )
    line = headline(made)
    assert line["chosen"]["round"] == 2 and line["chosen"]["acc_pooled"] == 15 / 40
    assert line["received"]["best"]["round"] == 1


def test_a_client_without_validation_samples_has_no_vote():
    empty = counted(0, 0)
    made = history(
        {"received": of(1, 3), "validation": {0: counted(1, 2), 1: empty}},
        {"received": of(2, 6), "validation": {0: counted(2, 2), 1: empty}},
    )
    assert headline(made)["chosen"]["round"] == 2
    assert made.rows[0]["validation"]["clients"] == 1


def test_the_global_model_has_its_best_and_last():
    rows = [
        {"round": number, "global": {"g_test": value, "p_test": {"acc_pooled": value, "acc_mean": value / 2}}}
        for number, value in ((1, 0.2), (2, 0.6), (3, 0.4))
    ]
    made = History(rounds=list(map(RoundRecord.from_json, rows)))
    line = headline(made)["global"]
    assert (line["best"]["round"], line["best"]["g_test"]) == (2, 0.6)
    assert (line["last"]["round"], line["last"]["p_test"]["acc_mean"]) == (3, 0.2)


def pooled(accuracy: float, **others: float | None) -> dict[str, float | None]:
    return {"acc_pooled": accuracy, "acc_mean": accuracy, "balanced": accuracy, "f1": None, "auroc": None, **others}


@pytest.mark.parametrize(("metric", "best"), [("accuracy", 1), ("balanced", 1), ("f1", 2), ("auroc", 3)])
def test_the_metric_chooses_the_best_round_and_the_one_on_validation_data(metric, best):
    values = [pooled(0.9, f1=0.2), pooled(0.8, f1=0.3, auroc=0.6), pooled(0.7, f1=0.1, auroc=0.7)]
    made = History(metric, best={"trained": {0: 0.9}, "received": {0: 0.9}})
    for number, value in enumerate(values, 1):
        everywhere = {f"g_{name}": value[name] for name in ("balanced", "f1", "auroc")}
        row = {"round": number, "trained": value, "validation": value, "received": pooled(number / 9)}
        made.rounds.append(RoundRecord.from_json({**row, "global": {"g_test": value["acc_pooled"], **everywhere}}))
    line = headline(made)
    assert line["trained"]["best"].items() >= {**values[best - 1], "round": best}.items()
    assert line["trained"]["last"]["round"] == 3
    assert line["trained"]["best_mean"]["round"] == 1  # whatever chooses, this is of accuracy
    assert line["global"]["best"]["round"] == best
    assert line["chosen"].items() >= {**pooled(best / 9), "round": best}.items()


def test_a_metric_that_is_never_defined_chooses_nothing():
    record = RoundRecord.from_json({"round": 1, "received": pooled(0.5), "validation": pooled(0.5)})
    made = History("auroc", [record], best={"received": {0: 0.5}})
    assert "chosen" not in headline(made) and headline(made)["received"]["best"]["auroc"] is None


@for_any(
    st.lists(st.tuples(st.integers(0, 10), st.integers(0, 30), st.integers(0, 5)), min_size=1, max_size=8),
    few=13,
    many=40,
)
def test_nothing_is_better_than_best_and_no_client_better_than_its_own(rounds):
    made = history(*({"received": of(*right)} for right in rounds))
    line = headline(made)["received"]
    pooled = [row["received"]["acc_pooled"] for row in made.rows]
    assert line["best"]["acc_pooled"] == max(pooled) and line["last"]["acc_pooled"] == pooled[-1]
    best = [max(right[client] for right in rounds) / total for client, total in enumerate((10, 30, 5))]
    assert line["best_per_client_mean"] == pytest.approx(sum(best) / 3, abs=1e-12)
    assert line["best_per_client_mean"] >= line["best_mean"]["acc_mean"] - 1e-12


# ----------------------------------------------------------------------------------------------------- worse off


def test_worse_off_are_clients_that_lose_against_their_own_reference():
    assert worse_off([0.5, 0.9, 0.1, None, 0.2], [0.6, 0.8, 0.1, 0.5, None]) == 1 / 3  # equal is no loss
    assert worse_off([0.5], [0.6, 0.8]) == 1.0
    assert worse_off([], []) is None and worse_off([None], [0.5]) is None
