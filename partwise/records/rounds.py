"""The record of a round, a line of metrics.jsonl: participants, bytes and scores."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields

from partwise.records.metrics import METRICS_OF, RANKING, Score
from partwise.records.record import Json

# Of a client's own model: after download; after local training; of a copy that was fine-tuned, alike for every method;
# of one that was adapted in the method's own way; and of a client that joined after the last round
MOMENTS = ("received", "trained", "adapted", "method_adapted", "joined")


def pooled_key(metric: str) -> str:
    """Return the name in files of a metric over the samples of all clients."""
    return "acc_pooled" if metric == "accuracy" else metric


def global_key(metric: str) -> str:
    """Return the name in files of a metric of the global model."""
    return "g_test" if metric == "accuracy" else f"g_{metric}"


def keys_over_clients(task: str) -> dict[str, str]:
    """Return the names in files of the numbers over clients, by field."""
    prefix = "acc" if task == "classes" else RANKING[task]
    return {name: f"{prefix}_{name}" for name in ("mean", "std", "worst")}


def read_score(values: Json, key: Callable[[str], str]) -> Score | None:
    """Return the score in a part of a file, whose metrics have these names; None where it has none."""
    for task, names in METRICS_OF.items():
        if any(key(name) in values for name in names):
            return Score(None, task=task, **{name: values.get(key(name)) for name in names})
    return None


@dataclass(frozen=True)
class MomentScores:
    """How many clients' models do at one moment, each on its own samples."""

    clients: int = 0
    pooled: Score | None = None  # over the samples of all; None where nobody was tested
    mean: float | None = None  # over clients of what ranks, accuracy for classes, as are ...
    std: float | None = None  # ... its sample deviation
    worst: float | None = None  # ... and the mean of the worst tenth
    nonfinite: int = 0  # samples whose predictions were not finite: wrong answers
    diverged: list[int] | None = None  # clients whose adaptation diverged, where models were adapted
    round: int | None = None  # after which they were tested, where a round was chosen among all

    def value(self, metric: str) -> float | None:
        """Return a metric over the samples of all clients."""
        return None if self.pooled is None else self.pooled.value(metric)

    @property
    def accuracy(self) -> float | None:
        """Return the accuracy over the samples of all clients."""
        return self.value("accuracy")

    @property
    def ranking(self) -> float | None:
        """Return the metric that ranks by default, over the samples of all clients."""
        return None if self.pooled is None else self.pooled.ranking

    def as_json(self) -> Json:
        """Return the scores as a row of metrics.jsonl has them."""
        result: Json = {}
        if self.pooled is not None:
            first, *others = METRICS_OF[self.pooled.task]
            result |= {pooled_key(first): self.pooled.value(first)}
            result |= {key: getattr(self, name) for name, key in keys_over_clients(self.pooled.task).items()}
            result |= {pooled_key(name): self.pooled.value(name) for name in others}
        result |= {"clients": self.clients} | ({} if self.pooled is None else {"nonfinite": self.nonfinite})
        return result | given(self, "diverged", "round")

    @classmethod
    def from_json(cls, values: Json) -> "MomentScores":
        """Read the scores at a moment or of the global model; older files lack some."""
        pooled = read_score(values, pooled_key)
        own: Json = {name: values[name] for name in ("clients", "nonfinite", "diverged", "round") if name in values}
        own |= {name: values.get(key) for name, key in keys_over_clients(pooled.task if pooled else "classes").items()}
        return cls(pooled=pooled, **own)


@dataclass(frozen=True)
class GlobalScores:
    """How the global model does on the global test set, and on each client's own test samples."""

    everywhere: Score
    clients: MomentScores
    nonfinite: int = 0
    round: int | None = None  # after which it was tested, where a round was chosen among all

    def value(self, metric: str) -> float | None:
        """Return a metric on the global test set."""
        return self.everywhere.value(metric)

    def as_json(self) -> Json:
        """Return the scores as a row of metrics.jsonl has them."""
        result: Json = {global_key(name): self.everywhere.value(name) for name in METRICS_OF[self.everywhere.task]}
        result |= {"g_nonfinite": self.nonfinite, "p_test": self.clients.as_json()}
        return result | given(self, "round")

    @classmethod
    def from_json(cls, values: Json) -> "GlobalScores":
        """Read the scores at a moment or of the global model; older files lack some."""
        everywhere = read_score(values, global_key) or Score(None)
        clients = MomentScores.from_json(values.get("p_test", {}))
        return cls(everywhere, clients, values.get("g_nonfinite", 0), values.get("round"))


@dataclass(frozen=True)
class RoundRecord:
    """A round, evaluated or not."""

    round: int  # from 1
    stage: int = 0  # from 0
    participants: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)  # whose updates were not mixed
    train_loss: float | None = None  # mean over participants
    bytes_down: int = 0
    bytes_up: int = 0
    groups: list[int] | None = None  # (clients,), where this round changed them
    epsilon: dict[str, float] | None = None  # spent so far, by what it protects, where an accountant counts it
    changed_at_end: bool = False  # the method's `end` changed the model: earlier rounds were tested without
    restored: int | None = None  # the round that an early stop went back to
    global_model: GlobalScores | None = None
    moments: dict[str, MomentScores] = field(default_factory=dict)  # by MOMENTS, on test samples
    validation: dict[str, MomentScores] = field(default_factory=dict)  # likewise, on validation samples
    noted: Json = field(default_factory=dict)  # what observers added
    seconds: float = 0.0

    def at(self, moment: str) -> MomentScores:
        """Return the scores at a moment; empty ones where nothing was tested."""
        return self.moments.get(moment, NOBODY)

    def value(self, moment: str, metric: str) -> float | None:
        """Return a metric at a moment; `global`: the server's model on all test samples."""
        if moment == "global":
            return None if self.global_model is None else self.global_model.value(metric)
        return self.at(moment).value(metric)

    @property
    def sent(self) -> int:
        """Return the bytes down and up."""
        return self.bytes_down + self.bytes_up

    def as_json(self) -> Json:
        """Return the record as a line of metrics.jsonl; what did not happen is left out."""
        result: Json = {
            name: value for name in PLAIN_FIELDS if (value := getattr(self, name)) or name not in OPTIONAL_ROUND_FIELDS
        }
        result |= {} if self.global_model is None else {"global": self.global_model.as_json()}
        result |= {moment: scores.as_json() for moment, scores in self.moments.items()}
        result |= {validation_at(moment): scores.as_json() for moment, scores in self.validation.items()}
        return result | dict(self.noted) | {"seconds": self.seconds}

    @classmethod
    def from_json(cls, row: Json) -> "RoundRecord":
        """Read a line of metrics.jsonl; older files lack some fields."""
        rest = dict(row)
        own: Json = {name: rest.pop(name) for name in (*PLAIN_FIELDS, "seconds") if name in rest}
        everywhere = rest.pop("global", None)
        tested = {name: MomentScores.from_json(rest.pop(name)) for name in MOMENTS if name in rest}
        validated = {
            moment: MomentScores.from_json(rest.pop(validation_at(moment)))
            for moment in MOMENTS
            if validation_at(moment) in rest
        }
        of_server = None if everywhere is None else GlobalScores.from_json(everywhere)
        return cls(**own, global_model=of_server, moments=tested, validation=validated, noted=rest)


NOBODY = MomentScores()
SCORED = ("global_model", "moments", "validation", "noted", "seconds")  # what is written in a form of its own, or last
PLAIN_FIELDS = [entry.name for entry in fields(RoundRecord) if entry.name not in SCORED]
OPTIONAL_ROUND_FIELDS = ("groups", "epsilon", "changed_at_end", "restored")  # left out of a line where they say nothing


def given(record: object, *names: str) -> Json:
    """Return the fields that are not None."""
    return {name: value for name in names if (value := getattr(record, name)) is not None}


def validation_at(moment: str) -> str:
    """Return the key of the validation scores in a row, at the moment that compares methods."""
    return "validation" if moment == "received" else f"validation_{moment}"
