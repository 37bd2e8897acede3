"""Accuracy in the ways that the papers print it: pooled, mean, deviation, balanced; best, last, best of each client."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Score:
    """How one model does on one set of samples: counts for each class."""

    correct: Tensor  # (classes,)
    total: Tensor  # (classes,)

    @property
    def samples(self) -> int:
        return int(self.total.sum())

    @property
    def accuracy(self) -> float:
        return float(self.correct.sum() / self.total.sum())

    @property
    def balanced(self) -> float:
        """The mean recall of the classes that occur."""
        present = self.total > 0
        return float((self.correct[present] / self.total[present]).mean())


def score(logits: Tensor, labels: Tensor, classes: int) -> Score:
    """Count what is right. A row that is not finite is wrong."""
    right = (logits.argmax(1) == labels) & torch.isfinite(logits).all(1)
    return Score(
        torch.bincount(labels[right], minlength=classes).double(), torch.bincount(labels, minlength=classes).double()
    )


def summary(scores: dict[int, Score]) -> dict[str, Any]:
    """One line of numbers for many clients. `acc_std` is the sample deviation, `acc_worst` the worst tenth's mean."""
    scores = {client: value for client, value in scores.items() if value.samples}
    if not scores:
        return {"clients": 0}
    every = torch.tensor([value.accuracy for value in scores.values()], dtype=torch.float64)
    together = Score(
        torch.stack([value.correct for value in scores.values()]).sum(0),
        torch.stack([value.total for value in scores.values()]).sum(0),
    )
    return {
        "acc_pooled": together.accuracy,
        "acc_mean": float(every.mean()),
        "acc_std": float(every.std()) if len(every) > 1 else 0.0,
        "acc_worst": float(every.sort().values[: math.ceil(len(every) / 10)].mean()),
        "balanced": together.balanced,
        "clients": len(scores),
    }


@dataclass
class History:
    """Every evaluation of a run: the rows of metrics.jsonl, and each client's accuracies at each moment."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    last: dict[str, dict[int, Score]] = field(default_factory=dict)  # moment -> client -> its newest score
    best: dict[str, dict[int, float]] = field(default_factory=dict)  # moment -> client -> its best accuracy

    def note(self, moment: str, scores: dict[int, Score]) -> dict[str, Any]:
        """Take in the scores of one moment of one round."""
        for client, value in scores.items():
            if value.samples:
                self.last.setdefault(moment, {})[client] = value
                best = self.best.setdefault(moment, {})
                best[client] = max(best.get(client, -math.inf), value.accuracy)
        return summary(scores)

    def headline(self) -> dict[str, dict[str, Any]]:
        """For each moment: best and last (with the round), and the mean of the clients' own bests."""
        result: dict[str, dict[str, Any]] = {}
        for moment in ("received", "trained", "adapted"):
            rows = [row for row in self.rows if "acc_pooled" in row.get(moment, {})]
            if rows:
                best = max(rows, key=lambda row: row[moment]["acc_pooled"])
                best_mean = max(rows, key=lambda row: row[moment]["acc_mean"])
                result[moment] = {
                    "best": {**best[moment], "round": best["round"]},
                    "best_mean": {**best_mean[moment], "round": best_mean["round"]},
                    "last": {**rows[-1][moment], "round": rows[-1]["round"]},
                    "best_per_client_mean": math.fsum(self.best[moment].values()) / len(self.best[moment]),
                }
        rows = [row for row in self.rows if "global" in row]
        if rows:
            best = max(rows, key=lambda row: row["global"]["g_test"])
            result["global"] = {
                "best": {**best["global"], "round": best["round"]},
                "last": {**rows[-1]["global"], "round": rows[-1]["round"]},
            }
        rows = [row for row in self.rows if "acc_pooled" in row.get("validation", {})]
        if rows:
            # The round is chosen on validation data alone; the test value of that round is what counts.
            chosen = max(rows, key=lambda row: row["validation"]["acc_pooled"])
            result["chosen"] = {**chosen["received"], "round": chosen["round"]}
        return result
