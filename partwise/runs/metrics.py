"""Accuracy in the ways that the papers print it, F1, AUROC and calibration; best, last, best of each client.

A row of logits that is not finite is wrong in every way: no class was answered, the confidence was full, and in AUROC
every comparison with it is lost. A number that does not exist is None, never 0.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from partwise.runs.scores import UNIT, Counts, Judged, count

# Of a client's own model: after download; after local training; of a copy that was fine-tuned, alike for every method;
# and of one that was adapted in the method's own way
MOMENTS = ("received", "trained", "adapted", "method_adapted", "joined")


# ---- the table of metrics; nan: there is no such class, or no such number, and a mean over classes passes over it


def metric(title: str, compute: Callable[[Counts], Tensor], chooses: bool = True) -> Any:
    """Declare a field of `Score`: its title, its computation for every span, and whether it may choose rounds."""
    return field(metadata={"title": title, "compute": compute, "chooses": chooses})


def accuracy(counts: Counts) -> Tensor:
    """Return the share of right answers."""
    return counts.right.sum(1) / counts.total


def balanced(counts: Counts) -> Tensor:
    """Return the mean recall of the classes that occur."""
    return (counts.right / counts.samples).nanmean(1)


def f1(counts: Counts) -> Tensor:
    """Return F1: of class 1 for two classes; for more, the mean over classes among the labels or the answers."""
    values = 2 * counts.right / (counts.samples + counts.answers)
    return values[:, 1] if values.shape[1] == 2 else values.nanmean(1)


def auroc(counts: Counts) -> Tensor:
    """Return AUROC: one class against the rest, averaged over classes that have both."""
    others = counts.total[:, None] - counts.samples
    return (counts.above / 2 / (counts.samples * others)).nanmean(1)


def calibration_error(counts: Counts) -> Tensor:
    """Return the expected calibration error: |accuracy - mean top probability| per bin, weighted by samples."""
    return counts.surplus.abs().sum(1) / UNIT / counts.total


@dataclass(frozen=True)
class Score:
    """How one model (or each client's own) does on one set of samples."""

    samples: int
    accuracy: float = metric("accuracy", accuracy)
    balanced: float = metric("balanced accuracy", balanced)
    f1: float | None = metric("F1", f1)
    auroc: float | None = metric("AUROC", auroc)
    ece: float = metric("ECE", calibration_error, chooses=False)


FIELDS = {entry.name: entry.metadata for entry in fields(Score) if entry.metadata}
TITLES = {name: entry["title"] for name, entry in FIELDS.items()}
POOLED = {name: "acc_pooled" if name == "accuracy" else name for name in FIELDS}  # its pooled value in a summary
METRICS = {name: POOLED[name] for name, entry in FIELDS.items() if entry["chooses"]}  # may choose rounds, rank methods
OTHER_SCORES = tuple(name for name in FIELDS if name != "accuracy")  # what a Score holds beside accuracy


@dataclass(frozen=True)
class Scores:
    """One moment: every client's score, and that of all their samples together."""

    each: dict[int, Score]
    together: Score | None  # None where nobody has a sample
    nonfinite: int = 0  # samples that got logits which are not finite: wrong answers, in every way


def measure_all(judged: Sequence[Judged]) -> list[Scores]:
    """Score several moments, with one copy from the device to the host. A client without samples has no score."""
    answered = [one for one in judged if len(one.labels)]
    if not answered:
        return [Scores({}, None) for _ in judged]
    counts = count(answered)
    columns = [counts.total, counts.nonfinite, *(entry["compute"](counts) for entry in FIELDS.values())]
    table = torch.stack(columns, 1).tolist()  # the copy
    rows: list[list[Any]] = [[None if math.isnan(value) else value for value in row] for row in table]
    scores = [(Score(int(total), *values), int(nonfinite)) for total, nonfinite, *values in rows]
    each, together, result = iter(scores), iter(scores[-len(answered) :]), []
    for one in judged:
        own = {client: next(each)[0] for client, size in zip(one.clients, one.sizes, strict=True) if size}
        result.append(Scores(own, *next(together)) if own else Scores(own, None))
    return result


def summary(scores: Scores) -> dict[str, Any]:
    """Summarise many clients. `acc_std` is the sample deviation, `acc_worst` the mean of the worst tenth."""
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
    """Return the share of clients below their reference accuracy; None if no client has both."""
    worse = [a < b for a, b in zip(own, reference, strict=False) if a is not None and b is not None]
    return sum(worse) / len(worse) if worse else None


# What is said of a run in whose last row `changed_at_end` stands.
CHANGED_AT_END = (
    "changed the model after the last round: earlier rounds, and `trained`, were tested without that change"
)


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
        """Return best and last (with the round) of each moment, and the mean of the clients' own bests."""
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
    """Return the first of the rows with the highest value; rows without a value come last."""
    return max(rows, key=lambda row: -math.inf if row[moment].get(key) is None else row[moment][key])


def validation_at(moment: str) -> str:
    """Return the key of the validation scores in a row, at the moment that compares methods."""
    return "validation" if moment == "received" else f"validation_{moment}"


def global_key(key: str) -> str:
    """Return the key of a pooled value of the global model on the global test set."""
    return "g_test" if key == "acc_pooled" else f"g_{key}"
