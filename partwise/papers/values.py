"""The numbers that finished runs left in their folders, by the paths that tables name."""

import json
import math
import statistics
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

from partwise.records.features import FeatureMetrics
from partwise.records.files import CLIENTS, CONFIG, LEDGER, METRICS, SUMMARY
from partwise.records.ledger import LedgerRecord
from partwise.records.rounds import RoundRecord
from partwise.records.setup import RunSettings
from partwise.records.summaries import RunSummary, read_clients

SAMPLES_COUNTED = 500  # training samples of a client in the scheduling paper's cost: 50,000 among 100
FLOAT_BYTES = 4
FEATURES = "features.json"  # beside a run's own files


def value_of(folder: Path, path: str) -> float | None:
    """Return a number that a finished run left in its folder; None where it has none.

    `received.best.acc_pooled`: of summary.json's `accuracy`. `method_adapted.at-100.acc_pooled`: of round 100 in
    metrics.jsonl. `clients.3.received`, `clients.min.received`: of clients.csv, also mean, median and max.
    `cost.paper`, `cost.flops`, `cost.bytes`: the cost of training as the scheduling paper counts it, and as measured.
    `features.after.cka_mean`: of features.json, in the last evaluated round.
    """
    first, *rest = path.split(".")
    if first == "clients":
        return client_value(folder, *rest)
    if first == "cost":
        return COSTS[rest[0]](folder)
    if first == "features":
        name, metric = rest
        measured = list(read_features(folder)[name].values())
        return getattr(measured[-1], metric)
    if rest[0].startswith("at-"):
        at = int(rest[0].removeprefix("at-"))
        found: object = next((each.as_json() for each in read_rounds(folder) if each.round == at), {})
        steps = [first, *rest[1:]]
    else:
        found, steps = read_summary(folder).as_json(), ["accuracy", first, *rest]
    for step in steps:
        found = found.get(step) if isinstance(found, dict) else None
    return found if isinstance(found, int | float) else None


def read_text(folder: Path, name: str) -> str:
    """Return the text of a file in a run's folder."""
    return (folder / name).read_text(encoding="utf-8")


def read_rounds(folder: Path) -> list[RoundRecord]:
    """Return the records of all rounds."""
    return [RoundRecord.from_json(json.loads(line)) for line in read_text(folder, METRICS).splitlines()]


def read_summary(folder: Path) -> RunSummary:
    """Return the summary of a run."""
    return RunSummary.from_json(json.loads(read_text(folder, SUMMARY)))


def read_features(folder: Path) -> dict[str, dict[int, FeatureMetrics]]:
    """Return the metrics of each representation, by its name and by round."""
    noted = json.loads(read_text(folder, FEATURES))
    return {name: {own["round"]: FeatureMetrics.from_json(own) for own in each} for name, each in noted.items()}


def client_values(folder: Path, column: str) -> list[float | None]:
    """Return a column of clients.csv."""
    return [client.as_row()[column] for client in read_clients(read_text(folder, CLIENTS))]


def client_value(folder: Path, which: str, column: str) -> float | None:
    """Return the value of one client by its number, or the mean, median, min or max over clients."""
    values = client_values(folder, column)
    if which.isdecimal():
        values, which = values[int(which) : int(which) + 1], "mean"
    numbers = [value for value in values if value is not None]
    over: dict[str, Callable[[list[float]], float]]
    over = {"mean": statistics.fmean, "median": statistics.median, "min": min, "max": max}
    return over[which](numbers) if numbers else None


def paper_cost(trainable: Iterable[float], clients: int, samples: int, batch: int, epochs: int = 1) -> float:
    """Return the scheduling paper's cost (Sec. 5.2): all clients' mini-batches x the parameters that a round trains."""
    return clients * math.ceil(samples / batch) * epochs * sum(trainable)


def paper_cost_of(folder: Path) -> float:
    """Return that cost of a run: in FedAvg, FedBABU and the schedules, participants upload just what they train."""
    settings = RunSettings.from_tables(tomllib.loads(read_text(folder, CONFIG)))
    trainable = [each.bytes_up / FLOAT_BYTES / max(1, len(each.participants)) for each in read_rounds(folder)]
    return paper_cost(trainable, settings.clients, SAMPLES_COUNTED, settings.batch, settings.epochs)


def flops_of(folder: Path) -> float | None:
    """Return the operations of local training."""
    return LedgerRecord.from_json(json.loads(read_text(folder, LEDGER))).training_flops


def bytes_of(folder: Path) -> float:
    """Return the bytes down and up in all rounds."""
    return sum(each.sent for each in read_rounds(folder))


COSTS: dict[str, Callable[[Path], float | None]] = {"paper": paper_cost_of, "flops": flops_of, "bytes": bytes_of}
