"""A run in a few numbers: summary.json, and a row of clients.csv for each client."""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from partwise.records.metrics import METRICS_OF, RANKING, Score
from partwise.records.record import Json
from partwise.records.rounds import MOMENTS, NOBODY, GlobalScores, MomentScores, given


@dataclass(frozen=True)
class Headline:
    """One moment over a whole run; every entry says after which round it was measured."""

    best: MomentScores = NOBODY  # by the metric that chooses rounds, on test data
    best_mean: MomentScores | None = None  # by the mean over clients of what ranks by default
    last: MomentScores = NOBODY
    best_per_client_mean: float | None = None  # the mean of each client's own best value of it

    def as_json(self) -> Json:
        """Return the entry of a moment in summary.json."""
        result = {name: scores.as_json() for name in TESTED if (scores := getattr(self, name)) is not None}
        return result | given(self, "best_per_client_mean")

    @classmethod
    def from_json(cls, values: Json) -> "Headline":
        """Read a moment's entry; older files lack some fields."""
        own: Json = {name: MomentScores.from_json(values[name]) for name in TESTED if name in values}
        if not own.keys() >= {"best", "last"}:
            raise KeyError("best and last")
        return cls(**own, best_per_client_mean=values.get("best_per_client_mean"))


TESTED = ("best", "best_mean", "last")


@dataclass(frozen=True)
class GlobalHeadline:
    """The global model over a whole run."""

    best: GlobalScores
    last: GlobalScores

    def as_json(self) -> Json:
        """Return the global model's entry in summary.json."""
        return {"best": self.best.as_json(), "last": self.last.as_json()}

    @classmethod
    def from_json(cls, values: Json) -> "GlobalHeadline":
        """Read the global model's entry."""
        return cls(**{name: GlobalScores.from_json(own) for name, own in values.items()})


@dataclass(frozen=True)
class RunSummary:
    """A run, finished or as far as it came. Shares are fractions."""

    method: str
    rounds: int
    bytes_per_participant: float  # a round, down and up
    seconds: float
    data: str = ""
    partition: str = ""
    clients: int = 0
    seed: int = 0
    restored: int | None = None  # the round that an early stop went back to
    moment: str = "received"  # at which methods are compared
    metric: str = "accuracy"  # by which they are
    positive: str | None = None  # the class of F1 and AUROC, where there are two
    validation: float | None = None  # the metric on all validation samples after the last round, at `moment`
    client_scores: list[float | None] = field(default_factory=list)  # (clients,) at `moment`: what ranks by default
    changed_at_end: bool = False  # the method's `end` changed the model
    held_out: list[str] = field(default_factory=list)  # clients that never trained
    epsilon: dict[str, float] | None = None  # spent, by what it protects
    moments: dict[str, Headline] = field(default_factory=dict)  # by MOMENTS
    global_model: GlobalHeadline | None = None
    chosen: MomentScores | None = None  # `received` on test data, after the round that is best on validation data
    task: str = "classes"

    def last(self, moment: str) -> MomentScores:
        """Return the scores after the last evaluated round; empty ones where a moment was not tested."""
        return self.moments[moment].last if moment in self.moments else NOBODY

    def best(self, moment: str) -> MomentScores:
        """Return the scores of the round that is best on test data; empty ones where a moment was not tested."""
        return self.moments[moment].best if moment in self.moments else NOBODY

    @property
    def value(self) -> float | None:
        """Return the number that methods are ranked by: the metric after the last round."""
        return self.last(self.moment).value(self.metric)

    def as_json(self) -> Json:
        """Return summary.json; what did not happen is left out."""
        result = {
            name: value
            for name in SUMMARY_FIELDS
            if (value := getattr(self, name)) or name not in OPTIONAL_SUMMARY_FIELDS
        }
        accuracy: Json = {moment: headline.as_json() for moment, headline in self.moments.items()}
        accuracy |= {} if self.global_model is None else {"global": self.global_model.as_json()}
        accuracy |= {} if self.chosen is None else {"chosen": self.chosen.as_json()}
        return result | {"accuracy": accuracy}

    @classmethod
    def from_json(cls, values: Json) -> "RunSummary":
        """Read a summary.json; older files lack some fields, and what they have besides is passed over."""
        numbers = [values[name] for name in ("clients", "rounds", "bytes_per_participant", "seconds")]
        texts = [values[name] for name in ("method", "data", "partition")]
        if not all(isinstance(n, int | float) for n in numbers) or not all(isinstance(t, str) for t in texts):
            raise TypeError("not the types of a summary")
        accuracy = dict(values["accuracy"])
        everywhere, chosen = accuracy.pop("global", None), accuracy.pop("chosen", None)
        return cls(
            **{name: values[key] for name in SUMMARY_FIELDS for key in (name, EARLIER.get(name)) if key in values},
            moments={moment: Headline.from_json(own) for moment, own in accuracy.items() if moment in MOMENTS},
            global_model=None if everywhere is None else GlobalHeadline.from_json(everywhere),
            chosen=None if chosen is None else MomentScores.from_json(chosen),
        )


NESTED_FIELDS = ("moments", "global_model", "chosen")
SUMMARY_FIELDS = [entry.name for entry in fields(RunSummary) if entry.name not in NESTED_FIELDS]
EARLIER = {"client_scores": "client_accuracy"}  # what fields were called in older files
OPTIONAL_SUMMARY_FIELDS = ("changed_at_end", "held_out", "epsilon")


@dataclass(frozen=True)
class ClientRecord:
    """A client after the run: a row of clients.csv."""

    client: int
    name: str
    train_samples: int
    validation_samples: int
    test_samples: int
    classes: int | None  # None where only the client knows
    rounds: int  # in which it took part
    scores: dict[str, Score] = field(default_factory=dict)  # by moment, and `global`: after the last round
    best: dict[str, float] = field(default_factory=dict)  # likewise: its best value of what ranks by default
    task: str = "classes"

    def ranking(self, moment: str) -> float | None:
        """Return what ranks by default, accuracy for classes, after the last round; None where it was not tested."""
        return self.scores[moment].ranking if moment in self.scores else None

    def as_row(self) -> Json:
        """Return the row, with the same columns for every client."""
        row: Json = {name: getattr(self, name) for name in ABOUT_CLIENT}
        for moment in (*MOMENTS, "global"):
            score = self.scores.get(moment)
            row[column_of(moment, RANKING[self.task])] = self.ranking(moment)
            row |= {f"{moment}_{name}": score and score.value(name) for name in METRICS_OF[self.task][1:]}
            row[f"{moment}_best"] = self.best.get(moment)
        return row

    @classmethod
    def from_row(cls, row: Mapping[str, str]) -> "ClientRecord":
        """Read a row of clients.csv; older files lack some columns."""
        numbers = {key: float(text) for key, text in row.items() if text and key not in ABOUT_CLIENT}
        task = next((task for task, first in RANKING.items() if column_of("received", first) in row), "classes")
        scores = {
            moment: Score(None, task=task, **{name: numbers.get(column_of(moment, name)) for name in METRICS_OF[task]})
            for moment in (*MOMENTS, "global")
            if column_of(moment, RANKING[task]) in numbers
        }
        best = {moment: numbers[f"{moment}_best"] for moment in scores if f"{moment}_best" in numbers}
        about: Json = {
            name: text if name == "name" else int(text) if text else None
            for name in ABOUT_CLIENT
            for text in [row.get(name, "")]
        }
        return cls(**about, scores=scores, best=best, task=task)


ABOUT_CLIENT = [entry.name for entry in fields(ClientRecord) if entry.name not in ("scores", "best", "task")]


def column_of(moment: str, metric: str) -> str:
    """Return the column of clients.csv that holds a metric at a moment."""
    return moment if metric == "accuracy" else f"{moment}_{metric}"


def read_clients(text: str) -> list[ClientRecord]:
    """Return the rows of clients.csv, whose names may hold signs at which Python would break a line."""
    return list(map(ClientRecord.from_row, csv.DictReader(io.StringIO(text, newline=""))))
