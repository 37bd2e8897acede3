"""A partition to look at: a table, numbers for programs, and a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partwise.data import Federation
from partwise.reporting.drawing import LINE, TEXT, canvas, every, round_numbers, save, shown, tick_names
from partwise.reporting.tables import NOTHING, Cells, percent

SHOWN = 40  # rows of a table: of more clients the middle ones are left out

BLUE = "#0072B2"
PLACE, LONGEST = 0.42, 14.0  # inches: of a bubble's place at most, and of a side of the axes


def table(federation: Federation) -> Cells:
    """A row for every client; the notes tell how unlike the clients are."""
    counts = federation.class_counts().numpy()
    sizes, classes = counts.sum(axis=1), (counts > 0).sum(axis=1)
    rows = []
    for client, name in enumerate(federation.names):
        sets = (federation.train[client], federation.validation[client], federation.test[client])
        largest = percent(counts[client].max() / sizes[client]) if sizes[client] else NOTHING
        label = name if name == str(client) else f"{client} {name}"
        rows.append([label, *(f"{len(own):,}" for own in sets), str(classes[client]), largest])
    notes = [
        f"training samples: {sizes.sum():,} in all; smallest client {sizes.min():,}, largest {sizes.max():,}, "
        f"median {np.median(sizes):,g}",
        f"classes: of {counts.shape[1]} in the data set, {classes.mean():.1f} at a client on average; "
        "largest class: its share in %; both of training samples",
        f"label skew: {label_skew(counts):.3f}, mean Jensen-Shannon divergence of the clients' labels to all labels "
        "(0: all alike, 1: nothing in common)",
    ]
    if len(rows) > SHOWN:
        half = SHOWN // 2
        notes.insert(0, f"...: clients {half} to {len(rows) - half - 1} are left out here")
        rows[half:-half] = [["..."] * len(rows[0])]
    return Cells(_title(federation), ["client", "train", "validation", "test", "classes", "largest class"], rows, notes)


def describe(federation: Federation) -> dict[str, Any]:
    """For programs: what `partwise partition --json` prints. `counts` are training samples, class x client."""
    counts = federation.class_counts().numpy()
    return {
        "data": federation.source.name,
        "rule": federation.rule,
        "clients": federation.clients,
        "names": list(federation.names),
        "classes": _class_names(federation),
        "train": [len(own) for own in federation.train],
        "validation": [len(own) for own in federation.validation],
        "test": [len(own) for own in federation.test],
        "global_test": len(federation.global_test),
        "counts": counts.T.tolist(),
        "label_skew": label_skew(counts),
    }


def label_skew(counts: NDArray[np.int64]) -> float:
    """The mean Jensen-Shannon divergence of the clients' label distributions to that of all, in bits: 0 .. 1.

    `counts` are (clients, classes); clients without samples have no part in it.
    """
    counts = counts[counts.sum(axis=1) > 0]
    if not len(counts):
        return 0.0
    own, whole = counts / counts.sum(axis=1, keepdims=True), counts.sum(axis=0) / counts.sum()
    divergence = entropy((own + whole) / 2) - (entropy(own) + entropy(whole)) / 2
    return float(divergence.clip(min=0).mean())


def entropy(distribution: NDArray[np.float64]) -> NDArray[np.float64]:
    return -(distribution * np.log2(np.where(distribution > 0, distribution, 1))).sum(axis=-1)


def plot(federation: Federation, path: str | Path) -> None:
    """A picture of who has what."""
    counts = federation.class_counts().numpy()
    bubbles(counts, federation.names, _class_names(federation), path, _title(federation))


def bubbles(
    counts: NDArray[np.int64], clients: Sequence[str], labels: Sequence[str], path: str | Path, title: str
) -> None:
    """Bubbles, class x client, whose areas are the numbers of training samples; `counts` are (clients, classes)."""
    places = [min(PLACE, LONGEST / number) for number in counts.shape]
    width, height = (place * number for place, number in zip(places, counts.shape, strict=True))
    figure, axes = canvas(path, width, height, title, pad=6)

    diameter = max(6.0, 0.95 * 72 * min(places))  # points, of the largest bubble
    area = diameter**2 / max(1, counts.max())
    # Where there are so many places that bubbles may touch, they shine through.
    style: dict[str, Any] = {
        "color": BLUE,
        "linewidths": 0,
        "alpha": 1.0 if diameter < 72 * min(places) else 0.7,
        "clip_on": False,
    }
    client, label = counts.nonzero()
    axes.scatter(client, label, area * counts[client, label], zorder=2, rasterized=len(client) > 10_000, **style)

    classes = [shown(name) for name in labels]
    tick_names(axes, range(len(clients)), clients, places[0])
    step = every(LINE / places[1])
    axes.set_yticks(range(0, len(classes), step), classes[::step], **TEXT)
    axes.set(xlim=(-0.5, len(clients) - 0.5), ylim=(len(classes) - 0.5, -0.5))
    axes.set_xlabel("client", **{**TEXT, "fontsize": 9})
    axes.set_ylabel("class", **{**TEXT, "fontsize": 9})

    # The key, laid out in points: matplotlib's legends are made for small marks.
    sizes = _round_sizes(int(counts.max()))
    wide, tall = diameter + 40, 26 + len(sizes) * (diameter + 4)
    key = figure.add_axes((1 + 0.25 / width, 1 - tall / 72 / height, wide / 72 / width, tall / 72 / height))
    key.set(xlim=(0, wide), ylim=(tall, 0))
    key.set_axis_off()
    key.text(0, 0, "training\nsamples", va="top", **TEXT)
    for number, size in enumerate(sizes):
        down = 26 + (number + 0.5) * (diameter + 4)
        key.scatter(diameter / 2, down, area * size, **style)
        key.text(diameter + 6, down, f"{size:,}", va="center_baseline", **TEXT)

    save(figure, path)


def _title(federation: Federation) -> str:
    return f"{federation.source.name}, {federation.clients} clients, {federation.rule}"


def _class_names(federation: Federation) -> list[str]:
    return list(federation.source.class_names) or list(map(str, range(federation.source.classes)))


def _round_sizes(largest: int) -> list[int]:
    """Sizes to compare bubbles with: the round numbers at or below the largest, its quarter and its sixteenth."""
    parts = [max(1, largest // part) for part in (1, 4, 16)]
    return sorted({max(size for size in round_numbers() if size <= part) for part in parts}, reverse=True)
