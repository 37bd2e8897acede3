"""The evaluations of a run: the scores at each moment, and the best and the last of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch

from partwise.engines.scores import Judged
from partwise.engines.task_scores import count_answers
from partwise.records.metrics import FIELDS, METRICS_OF, RANKING, Score, best
from partwise.records.record import Json, Record
from partwise.records.rounds import MOMENTS, MomentScores, RoundRecord
from partwise.records.summaries import GlobalHeadline, Headline
from partwise.tasks import Task

T = TypeVar("T")


@dataclass(frozen=True)
class Scores:
    """One moment: every client's score, and that of all their samples together."""

    each: dict[int, Score]
    together: Score | None  # None where nobody has a sample
    nonfinite: int = 0  # samples that got predictions which are not finite: wrong answers, in every way


def measure_all(judged: Sequence[Judged], task: Task) -> list[Scores]:
    """Score several moments, with one copy from the device to the host. A client without samples has no score."""
    answered = [one for one in judged if len(one.labels)]
    if not answered:
        return [Scores({}, None) for _ in judged]
    counts, names = count_answers(answered, task), METRICS_OF[task.kind]
    columns = [counts.total, counts.nonfinite, *(FIELDS[name].compute(counts) for name in names)]
    table = torch.stack(columns, 1).tolist()  # the copy
    rows: list[list[Any]] = [[value if math.isfinite(value) else None for value in row] for row in table]
    scores = [
        (Score(int(total), task=task.kind, **dict(zip(names, values, strict=True))), int(nonfinite))
        for total, nonfinite, *values in rows
    ]
    each, together, result = iter(scores), iter(scores[-len(answered) :]), []
    for one in judged:
        own = {client: next(each)[0] for client, size in zip(one.clients, one.sizes, strict=True) if size}
        result.append(Scores(own, *next(together)) if own else Scores(own, None))
    return result


def over_clients(scores: Scores) -> MomentScores:
    """Return the scores of many clients in a few numbers."""
    if scores.together is None:
        return MomentScores()
    sign = FIELDS[RANKING[scores.together.task]].sign
    known = [value.ranking for value in scores.each.values() if value.ranking is not None]
    every = torch.tensor(known, dtype=torch.float64)
    return MomentScores(
        len(scores.each),
        scores.together,
        float(every.mean()) if known else None,
        float(every.std()) if len(known) > 1 else 0.0 if known else None,
        sign * float((sign * every).sort().values[: math.ceil(len(every) / 10)].mean()) if known else None,
        scores.nonfinite,
    )


def worse_off(own: Sequence[float | None], reference: Sequence[float | None], sign: int = 1) -> float | None:
    """Return the share of clients that are worse than their reference; None if no client has both.

    `sign` is that of the metric: -1 where lower is better.
    """
    worse = [sign * a < sign * b for a, b in zip(own, reference, strict=False) if a is not None and b is not None]
    return sum(worse) / len(worse) if worse else None


# What is said of a run in whose last round `changed_at_end` is set
CHANGED_AT_END = (
    "changed the model after the last round: earlier rounds, and `trained`, were tested without that change"
)


@dataclass(frozen=True)
class HistoryState(Record):
    """The measurements of a `History`."""

    rows: list[Json]  # the rounds, as in metrics.jsonl
    last: dict[str, dict[int, Score]]
    best: dict[str, dict[int, float]]


@dataclass
class History:
    """Every evaluation of a run: its rounds, and each client's scores at each moment."""

    metric: str = "accuracy"  # what chooses rounds: one of CHOOSING
    rounds: list[RoundRecord] = field(default_factory=list)
    scores: dict[str, dict[int, Score]] = field(default_factory=dict)  # moment -> client -> its newest score
    best: dict[str, dict[int, float]] = field(default_factory=dict)  # moment -> client -> its best value of what ranks

    @property
    def rows(self) -> list[Json]:
        """Return the rounds as in metrics.jsonl."""
        return [record.as_json() for record in self.rounds]

    def note(self, moment: str, scores: Scores) -> MomentScores:
        """Take in the scores of one moment of one round, and return them in a few numbers."""
        for client, score in scores.each.items():
            self.scores.setdefault(moment, {})[client] = score
            own = self.best.setdefault(moment, {})
            reached = best([own.get(client), score.ranking], RANKING[score.task])
            if reached is not None:  # a client whose labels allow no AUROC has no best one
                own[client] = reached
        return over_clients(scores)

    def state(self) -> HistoryState:
        """Return the history, for a checkpoint."""
        return HistoryState(self.rows, self.scores, self.best)

    def restore(self, state: HistoryState) -> None:
        """Restore a checkpoint's history; old ones have scores on validation samples too, which nothing reads."""
        self.rounds = list(map(RoundRecord.from_json, state.rows))
        self.scores = {name: own for name, own in state.last.items() if name in (*MOMENTS, "global")}
        self.best = {name: own for name, own in state.best.items() if name in (*MOMENTS, "global")}

    def headlines(self) -> dict[str, Headline]:
        """Return best and last of each moment, and the mean of the clients' own bests."""
        result = {}
        for moment in MOMENTS:
            tested = [scores_of(each, moment) for each in self.rounds if each.at(moment).pooled is not None]
            if tested:
                ranking = RANKING[tested[-1].pooled.task]  # type: ignore[union-attr]
                best_round = best_of(tested, [scores.value(self.metric) for scores in tested], self.metric)
                best_mean = best_of(tested, [scores.mean for scores in tested], ranking)
                each = self.best.get(moment, {}).values()  # unknown where only the rounds were read from a file
                own_bests = math.fsum(each) / len(each) if each else None
                result[moment] = Headline(best_round, best_mean, tested[-1], own_bests)
        return result

    def global_headline(self) -> GlobalHeadline | None:
        """Return best and last of the global model; None where it was never tested."""
        tested = [replace(each.global_model, round=each.round) for each in self.rounds if each.global_model]
        if not tested:
            return None
        return GlobalHeadline(
            best_of(tested, [scores.value(self.metric) for scores in tested], self.metric), tested[-1]
        )

    def chosen(self) -> MomentScores | None:
        """Return `received` on test data after the round that validation data alone choose; None without such data."""
        values = [validation_value(each, "received", self.metric) for each in self.rounds]
        if all(value is None for value in values):
            return None
        return scores_of(best_of(self.rounds, values, self.metric), "received")


def best_of(items: Sequence[T], values: Sequence[float | None], metric: str) -> T:
    """Return the first of the items with the best value of a metric; items without a value come last."""
    sign = FIELDS[metric].sign
    order = [-math.inf if value is None else sign * value for value in values]
    return items[order.index(max(order))]


def scores_of(record: RoundRecord, moment: str) -> MomentScores:
    """Return the scores at a moment, with the round after which they were measured."""
    return replace(record.at(moment), round=record.round)


def validation_value(record: RoundRecord, moment: str, metric: str) -> float | None:
    """Return a metric on all validation samples at a moment; None where nothing was measured."""
    return record.validation[moment].value(metric) if moment in record.validation else None
