"""A partition to look at: a table, numbers for programs, and a picture."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partwise.data import Federation
from partwise.errors import ConfigError, needed
from partwise.reporting.tables import NOTHING, Cells, percent
from partwise.writing import write

SHOWN = 40  # rows of a table: of more clients the middle ones are left out
ENDINGS = (".png", ".svg", ".pdf")

BLUE, DARK, LIGHT = "#0072B2", "#404040", "#e8e8e8"
PLACE, LONGEST = 0.42, 14.0  # inches: of a bubble's place at most, and of a side of the axes
LINE, LETTER = 0.138, 0.075  # inches: the height of a line of text, and the width of a letter


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
    """A picture of who has what: bubbles, class x client, whose areas are the numbers of training samples."""
    ending = Path(path).suffix.lower()
    if ending not in ENDINGS:
        raise ConfigError(f"cannot draw '{path}': the name of a picture must end in {', '.join(ENDINGS)}")
    Figure = needed("matplotlib.figure", "plots").Figure  # alone it needs no display and changes no user's setting
    counts = federation.class_counts().numpy()
    places = [min(PLACE, LONGEST / number) for number in counts.shape]
    width, height = (place * number for place, number in zip(places, counts.shape, strict=True))
    figure = Figure((width, height))
    axes = figure.add_axes((0, 0, 1, 1))  # names and the key lie outside; a tight box around all of it is saved

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

    # Names are texts, whatever signs are in them.
    text: dict[str, Any] = {"fontsize": 8, "color": DARK, "parse_math": False}
    names, classes = [_short(name) for name in federation.names], [_short(name) for name in _class_names(federation)]
    numbered = all(name == str(number) for number, name in enumerate(names))
    room = LETTER * (max(map(len, names)) + 1.5)
    turned: dict[str, Any] = {}
    if room > places[0] and not numbered:
        room, turned = LINE, {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    every = _every(room / places[0])
    axes.set_xticks(range(0, len(names), every), names[::every], **text, **turned)
    every = _every(LINE / places[1])
    axes.set_yticks(range(0, len(classes), every), classes[::every], **text)
    axes.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(classes) - 0.5, -0.5))
    axes.set_xlabel("client", fontsize=9, color=DARK)
    axes.set_ylabel("class", fontsize=9, color=DARK)
    axes.set_title(_title(federation), loc="left", **{**text, "fontsize": 10})
    axes.tick_params(length=0)
    axes.grid(color=LIGHT, linewidth=0.6)
    axes.spines[:].set_visible(False)

    # The key, laid out in points: matplotlib's legends are made for small marks.
    sizes = _round_sizes(int(counts.max()))
    wide, tall = diameter + 40, 26 + len(sizes) * (diameter + 4)
    key = figure.add_axes((1 + 0.25 / width, 1 - tall / 72 / height, wide / 72 / width, tall / 72 / height))
    key.set(xlim=(0, wide), ylim=(tall, 0))
    key.set_axis_off()
    key.text(0, 0, "training\nsamples", va="top", **text)
    for number, size in enumerate(sizes):
        down = 26 + (number + 0.5) * (diameter + 4)
        key.scatter(diameter / 2, down, area * size, **style)
        key.text(diameter + 6, down, f"{size:,}", va="center_baseline", **text)

    drawn = io.BytesIO()
    figure.savefig(drawn, format=ending[1:], dpi=200, bbox_inches="tight", pad_inches=0.2)
    write(path, drawn.getvalue())


def _title(federation: Federation) -> str:
    return f"{federation.source.name}, {federation.clients} clients, {federation.rule}"


def _class_names(federation: Federation) -> list[str]:
    return list(federation.source.class_names) or list(map(str, range(federation.source.classes)))


def _short(name: str) -> str:
    return name if len(name) <= 24 else f"{name[:23]}…"


def _every(places: float) -> int:
    """Which ticks have a label where a label needs the room of so many places: each, every second, fifth, tenth, ..."""
    return next(step for step in _round_numbers() if step >= places)


def _round_sizes(largest: int) -> list[int]:
    """Sizes to compare bubbles with: the round numbers at or below the largest, its quarter and its sixteenth."""
    parts = [max(1, largest // part) for part in (1, 4, 16)]
    return sorted({max(size for size in _round_numbers() if size <= part) for part in parts}, reverse=True)


def _round_numbers() -> list[int]:
    return [digit * 10**power for power in range(15) for digit in (1, 2, 5)]
