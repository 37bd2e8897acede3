"""A partition to look at: a table, numbers for programs, and a picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from partwise.data import Federation
from partwise.reporting.figures import draw_view
from partwise.reporting.tables import NOTHING, Cells, percent
from partwise.reporting.views.kinds import SampleCounts

MOST_ROWS = 40  # rows of a table: of more clients the middle ones are left out


def partition_table(federation: Federation) -> Cells:
    """Return a row for every client; the notes tell how unlike the clients are."""
    counts = federation.class_counts().numpy()
    sizes, classes = counts.sum(axis=1), (counts > 0).sum(axis=1)
    rows = []
    for client, name in enumerate(federation.names):
        sets = (federation.train[client], federation.validation[client], federation.test[client])
        largest = percent(counts[client].max() / sizes[client]) if sizes[client] else NOTHING
        label = name if name == str(client) else f"{client} {name}"
        rows.append([label, *(f"{len(own):,}" for own in sets), str(classes[client]), largest])
    task = federation.source.task
    one, several = task.bin_word, task.bin_words
    notes = [
        f"training samples: {sizes.sum():,} in all; smallest client {sizes.min():,}, largest {sizes.max():,}, "
        f"median {np.median(sizes):,g}",
        f"{f'{one}: {task.bins_are}; ' if task.bins_are else ''}{several}: of {counts.shape[1]} in the data set, "
        f"{classes.mean():.1f} at a client on average; largest {one}: its share in %; both of training samples",
        f"label skew: {label_skew(counts):.3f}, mean Jensen-Shannon divergence of the clients' "
        f"{'labels to all labels' if task.of_classes else f'{several} to those of all'} "
        "(0: all alike, 1: nothing in common)",
    ]
    header = ["client", "train", "validation", "test", several, f"largest {one}"]
    if len(rows) > MOST_ROWS:
        half = MOST_ROWS // 2
        notes.insert(0, f"...: clients {half} to {len(rows) - half - 1} are left out here")
        rows[half:-half] = [["..."] * len(rows[0])]
    return Cells(_title(federation), header, rows, notes)


@dataclass(frozen=True)
class PartitionFacts:
    """Who has what, in numbers."""

    data: str
    rule: str
    clients: int
    names: Sequence[str]
    task: str
    classes: Sequence[str]  # of other tasks the bins of labels
    train: Sequence[int]  # samples of each client, as the next two
    validation: Sequence[int]
    test: Sequence[int]
    global_test: int
    counts: Sequence[Sequence[int]]  # training samples, class x client
    label_skew: float


def partition_facts(federation: Federation) -> PartitionFacts:
    """Return the facts that `partwise partition --json` prints."""
    counts = federation.class_counts().numpy()
    return PartitionFacts(
        data=federation.source.name,
        rule=federation.rule,
        clients=federation.clients,
        names=list(federation.names),
        task=federation.source.task.kind,
        classes=list(federation.source.labels),
        train=[len(own) for own in federation.train],
        validation=[len(own) for own in federation.validation],
        test=[len(own) for own in federation.test],
        global_test=len(federation.global_test),
        counts=counts.T.tolist(),
        label_skew=label_skew(counts),
    )


def label_skew(counts: NDArray[np.int64]) -> float:
    """Return the mean Jensen-Shannon divergence of the clients' label distributions to that of all, in bits: 0 .. 1.

    `counts` are (clients, classes); clients without samples have no part in it.
    """
    counts = counts[counts.sum(axis=1) > 0]
    if not len(counts):
        return 0.0
    own, whole = counts / counts.sum(axis=1, keepdims=True), counts.sum(axis=0) / counts.sum()
    divergence = entropy((own + whole) / 2) - (entropy(own) + entropy(whole)) / 2
    return float(divergence.clip(min=0).mean())


def entropy(distribution: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the entropy of distributions along the last axis, in bits."""
    return -(distribution * np.log2(np.where(distribution > 0, distribution, 1))).sum(axis=-1)


def plot_partition(federation: Federation, path: str | Path) -> None:
    """Write a picture of who has what."""
    draw_view(view(federation), path)


def view(federation: Federation) -> SampleCounts:
    """Return who has what."""
    counts = federation.class_counts().tolist()
    source = federation.source
    return SampleCounts(federation.names, source.labels, counts, _title(federation), source.task.bin_word)


def _title(federation: Federation) -> str:
    """Return data, clients and rule in a line."""
    return f"{federation.source.name}, {federation.clients} clients, {federation.rule}"
