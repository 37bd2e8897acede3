"""What an audit found, as tables and as a picture."""

import statistics
from pathlib import Path

import numpy as np
from torch import Tensor

from partwise.privacy.histograms import FEWEST_ON_NODES
from partwise.reporting.drawing import TEXT_STYLE, canvas, save_figure
from partwise.reporting.tables import NOTHING, Cells
from partwise.studies.audit import Audit

SAMPLE_PLACE = 0.7  # inches of a sample


def leaving_table(title: str, plain: Audit, filtered: Audit) -> Cells:
    """Return a table of what leaves a client."""
    header = ["what leaves", "numbers", "of classes", "bytes", "filtered", "rare rows", "filtered"]
    rows = [
        [
            name,
            f"{entry.numbers:,}",
            entry.classes or "no",
            f"{plain.sent.get(name, 0):,}",
            f"{filtered.sent.get(name, 0):,}",
            str(entry.rare) if entry.classes.endswith("each") else NOTHING,
            str(filtered.leaving[name].rare) if entry.classes.endswith("each") else NOTHING,
        ]
        for name, entry in plain.leaving.items()
    ]
    notes = [
        "numbers: of one client; bytes: of all clients in all rounds of the audit",
        "of classes: it says something of each class; by its shape: it is as long as there are classes",
        f"rare rows: pairs of a client and a class that are told of, with fewer than {FEWEST_ON_NODES} samples "
        "(min_class_count)",
        *filter(None, [filtered.uncovered]),
    ]
    return Cells(title, header, rows, notes)


def histograms(plain: Audit, filtered: Audit) -> Cells:
    """Return a table of how well label histograms are rebuilt."""

    def wrong(audit: Audit, attack: str) -> str:
        return f"{statistics.fmean(audit.rebuilt[attack]):.3f}" if attack in audit.rebuilt else NOTHING

    rows = [[a, wrong(plain, a), wrong(filtered, a), f"{plain.blind:.3f}"] for a in plain.rebuilt]
    notes = [
        "the share of a client's samples whose label is guessed wrongly (total variation distance), mean over clients",
        "blind: a guess that all classes are equally frequent; better attacks than these are known",
    ]
    title = "A client's label histogram, rebuilt from one answer"
    return Cells(title, ["from", "plain", "filtered", "blind"], rows, notes)


def picture(rows: dict[str, Tensor], path: str | Path, title: str) -> None:
    """Draw the client's own samples, and below them their reconstructions."""
    number = len(next(iter(rows.values())))
    figure, axes = canvas(SAMPLE_PLACE * number, SAMPLE_PLACE * len(rows), title)
    height = next(iter(rows.values())).shape[2]
    sheet = np.concatenate([np.concatenate(list(map(scale_image, images)), 1) for images in rows.values()], 0)
    axes.imshow(sheet, cmap="gray", interpolation="nearest")
    axes.grid(False)
    axes.set_xticks([])
    axes.set_yticks([height * (place + 0.5) for place in range(len(rows))], list(rows), **TEXT_STYLE)
    save_figure(figure, path)


def scale_image(image: Tensor) -> np.ndarray:
    """Return (height, width) or (height, width, 3) between 0 and 1, from its smallest to its largest value."""
    low, high = image.min(), image.max()
    pixels = ((image - low) / (high - low).clamp(min=1e-12)).permute(1, 2, 0).numpy()
    return pixels if pixels.shape[2] == 3 else pixels[:, :, 0]
