"""Accuracy in the ways that the papers print it, F1, AUROC and calibration; best, last, best of each client.

A row of logits that is not finite is wrong in every way: no class was answered, the confidence was full, and in AUROC
every comparison with it is lost. A number that does not exist is None, never 0.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

# What may choose rounds and rank methods, and the name of its pooled value in a summary
METRICS = {"accuracy": "acc_pooled", "balanced": "balanced", "f1": "f1", "auroc": "auroc"}
# Of a client's own model: after download; after local training; of a copy that was fine-tuned, alike for every method;
# and of one that was adapted in the method's own way
MOMENTS = ("received", "trained", "adapted", "method_adapted")
OTHER_SCORES = ("balanced", "f1", "auroc", "ece")  # what a Score holds beside accuracy
BINS = 15  # of equal width, in which confidence is compared with accuracy


@dataclass(frozen=True)
class Score:
    """How one model (or each client's own) does on one set of samples."""

    samples: int
    accuracy: float
    balanced: float  # the mean recall of the classes that occur
    f1: float | None  # of two classes that of class 1; of more the mean over classes among the labels or the answers
    auroc: float | None  # a class against the rest, the mean over classes that have both; equal for both of two classes
    ece: float  # expected calibration error: |accuracy - mean of the top probability| in each bin, weighted by samples


@dataclass(frozen=True)
class Scores:
    """One moment: every client's score, and that of all their samples together."""

    each: dict[int, Score]
    together: Score | None  # None where nobody has a sample
    nonfinite: int = 0  # samples that got logits which are not finite: wrong answers, in every way


def measure(logits: dict[int, Tensor], labels: dict[int, Tensor]) -> Scores:
    """What clients answered against what is true. One without samples has no score."""
    clients = [client for client, true in labels.items() if len(true)]
    if not clients:
        return Scores({}, None)
    rows, true = (torch.cat([values[client] for client in clients]) for values in (logits, labels))
    each = score(rows, true, [len(labels[client]) for client in clients])
    return Scores(dict(zip(clients, each, strict=True)), score(rows, true, [len(true)])[0], nonfinite(rows))


def nonfinite(logits: Tensor) -> int:
    """How many rows hold a number that is not finite."""
    return int((~torch.isfinite(logits).all(1)).sum())


def score(logits: Tensor, labels: Tensor, sizes: Sequence[int]) -> list[Score]:
    """The score of each stretch of rows: the first `sizes[0]` of them, the next `sizes[1]`, and so on."""
    finite, answer, classes = torch.isfinite(logits).all(1), logits.argmax(1), logits.shape[1]
    right = finite & (answer == labels)
    logits = logits.double()
    likely = logits.log_softmax(1)
    confidence = torch.where(finite, likely.amax(1).exp(), 1.0)
    stretch = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))

    def tally(values: Tensor, column: Tensor, columns: int) -> Tensor:
        """(stretches, columns): sums of the values of the samples that belong there."""
        return torch.bincount(stretch * columns + column, values.double(), len(sizes) * columns).view(-1, columns)

    total = tally(torch.ones_like(labels), labels, classes)
    correct, answers = tally(right, labels, classes), tally(finite, answer, classes)
    samples = total.sum(1)
    f1 = 2 * correct / (total + answers)  # nan, here and below: there is no such class, and the mean passes over it
    gaps = tally(right.double() - confidence, ((confidence * BINS).ceil() - 1).clamp(0, BINS - 1).long(), BINS)

    # Of two classes the difference of the logits: it tells samples apart where both probabilities are rounded to 1.
    order = logits - logits.flip(1) if classes == 2 else likely
    order[~finite] = math.inf
    order[~finite, labels[~finite]] = -math.inf
    below = tally(ranks(order.T.contiguous(), labels, sizes), labels, classes)
    own = total.square() / 2  # what samples of a class contribute among themselves
    areas = (below - own) / (total * (samples[:, None] - total))

    columns = (
        correct.sum(1) / samples,
        (correct / total).nanmean(1),
        f1[:, 1] if classes == 2 else f1.nanmean(1),
        areas.nanmean(1),
        gaps.abs().sum(1) / samples,
    )
    rows: list[list[Any]] = [[None if math.isnan(v) else v for v in row] for row in torch.stack(columns, 1).tolist()]
    return [Score(size, *row) for size, row in zip(sizes, rows, strict=True)]


def ranks(scores: Tensor, labels: Tensor, sizes: Sequence[int]) -> Tensor:
    """How many samples of its stretch a sample is above in the score of its class; equals, itself too, count half.

    `scores` is (classes, samples); the result is (samples,), because only the score of a sample's own class is needed.
    """
    ordered = scores.clone()
    for stretch in ordered.split(list(sizes), 1):
        stretch.numpy().sort(axis=1)  # in place, and several times faster than torch's
    own = scores[labels, torch.arange(len(labels))]
    lengths = torch.tensor(sizes)
    first, size = (values.repeat_interleave(lengths) for values in (lengths.cumsum(0) - lengths, lengths))
    found = []
    for precedes in (torch.lt, torch.le):
        count = torch.zeros_like(labels)
        for step in (1 << bit for bit in reversed(range(max(sizes).bit_length()))):  # bisection, all samples at once
            reached = count + step
            last = ordered[labels, first + reached.clamp(max=size) - 1]
            count = torch.where((reached <= size) & precedes(last, own), reached, count)
        found.append(count)
    return (found[0] + found[1]) / 2


def summary(scores: Scores) -> dict[str, Any]:
    """One line of numbers for many clients. `acc_std` is the sample deviation, `acc_worst` the worst tenth's mean."""
    if scores.together is None:
        return {"clients": 0}
    every = torch.tensor([value.accuracy for value in scores.each.values()], dtype=torch.float64)
    return {
        "acc_pooled": scores.together.accuracy,
        "acc_mean": float(every.mean()),
        "acc_std": float(every.std()) if len(every) > 1 else 0.0,
        "acc_worst": float(every.sort().values[: math.ceil(len(every) / 10)].mean()),
        **{name: getattr(scores.together, name) for name in OTHER_SCORES},
        "clients": len(every),
        "nonfinite": scores.nonfinite,
    }


def worse_off(own: Sequence[float | None], reference: Sequence[float | None]) -> float | None:
    """The share of clients whose accuracy is below their reference; None where no client has both."""
    worse = [a < b for a, b in zip(own, reference, strict=False) if a is not None and b is not None]
    return sum(worse) / len(worse) if worse else None


@dataclass
class History:
    """Every evaluation of a run: the rows of metrics.jsonl, and each client's scores at each moment."""

    metric: str = "accuracy"  # what chooses rounds: one of METRICS
    rows: list[dict[str, Any]] = field(default_factory=list)
    last: dict[str, dict[int, Score]] = field(default_factory=dict)  # moment -> client -> its newest score
    best: dict[str, dict[int, float]] = field(default_factory=dict)  # moment -> client -> its best accuracy

    @property
    def key(self) -> str:
        return METRICS[self.metric]

    def note(self, moment: str, scores: Scores) -> dict[str, Any]:
        """Take in the scores of one moment of one round."""
        for client, value in scores.each.items():
            self.last.setdefault(moment, {})[client] = value
            best = self.best.setdefault(moment, {})
            best[client] = max(best.get(client, -math.inf), value.accuracy)
        return summary(scores)

    def headline(self) -> dict[str, dict[str, Any]]:
        """For each moment: best and last (with the round), and the mean of the clients' own bests."""
        result: dict[str, dict[str, Any]] = {}
        for moment in MOMENTS:
            rows = [row for row in self.rows if "acc_pooled" in row.get(moment, {})]
            if rows:
                best, best_mean = highest(rows, moment, self.key), highest(rows, moment, "acc_mean")
                result[moment] = {
                    "best": {**best[moment], "round": best["round"]},
                    "best_mean": {**best_mean[moment], "round": best_mean["round"]},
                    "last": {**rows[-1][moment], "round": rows[-1]["round"]},
                    "best_per_client_mean": math.fsum(self.best[moment].values()) / len(self.best[moment]),
                }
        rows = [row for row in self.rows if "global" in row]
        if rows:
            best = highest(rows, "global", global_key(self.key))
            result["global"] = {
                "best": {**best["global"], "round": best["round"]},
                "last": {**rows[-1]["global"], "round": rows[-1]["round"]},
            }
        rows = [row for row in self.rows if row.get("validation", {}).get(self.key) is not None]
        if rows:
            # The round is chosen on validation data alone; the test value of that round is what counts.
            chosen = highest(rows, "validation", self.key)
            result["chosen"] = {**chosen["received"], "round": chosen["round"]}
        return result


def highest(rows: list[dict[str, Any]], moment: str, key: str) -> dict[str, Any]:
    """The first of the rows with the highest value; a row without one comes last."""
    return max(rows, key=lambda row: -math.inf if row[moment].get(key) is None else row[moment][key])


def global_key(key: str) -> str:
    """What a pooled value is called of the global model on the global test set."""
    return "g_test" if key == "acc_pooled" else f"g_{key}"
