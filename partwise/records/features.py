"""Comparisons of clients' features in an evaluated round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from partwise.records.record import JsonObject


@dataclass(frozen=True)
class FeatureMetrics(JsonObject):
    """Similarity between clients and separation of classes; None is a number that does not exist."""

    clients: Sequence[int] = ()
    cka: Sequence[Sequence[float | None]] = ()  # client x client, 0 .. 1
    cka_mean: float | None = None  # over pairs of clients
    separation: Mapping[int, float | None] = field(default_factory=dict)  # of classes, by client
    separation_mean: float | None = None
