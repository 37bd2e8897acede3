"""A table of a paper, carried out at some scale: every cell's runs in folders of their own, finished ones kept."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from partwise.data import CATALOGUE, Column, Source
from partwise.data.source import image_source
from partwise.errors import DataError, Diverged, PartwiseError, one_line
from partwise.representations import number, write_tsne
from partwise.runs import papers
from partwise.runs.config import HANDED_IN, Config, make_config
from partwise.runs.features import representation_metrics, tsne
from partwise.runs.folder import RunFolder, as_json
from partwise.runs.papers import FEATURES, Paper, Row, slug, tsne_file, value_of
from partwise.runs.prepare import prepare
from partwise.runs.progress import display
from partwise.streams import stream
from partwise.writing import write

SCALES = {
    "full": "the paper's setting",
    "small": "a tenth of the paper's rounds (5 at least)",
    "smoke": "2 rounds of at most 3 rows, 4 clients, a small network and 200 made images: a trial of the code, whose "
    "numbers say nothing about the paper",
}
ROWS, IMAGES, CLASSES, SIDE = 3, 200, 8, 8  # of a smoke run; 8 classes, so that 4 clients of 2 classes hold them all
SMOKE = {"clients": 4, "model": "cnn-digits", "min_samples": 4, "epochs": 1, "batch": 100}
FEW = {"finetune_epochs": 1, "head_epochs": 1, "coordinators_a": 2, "coordinators_b": 2}
DROPPED = ("image_size", "weights")  # they are for the real images and network


@dataclass
class Cell:
    """One row in one column: each value by its name, for every seed that gave one; or why there is none."""

    values: dict[str, list[float]] = field(default_factory=dict)
    missing: str = ""  # in a word, for the table
    reason: str = ""  # in a line, for its notes
    mistake: bool = False  # settings were refused; data or a method that are not here are no mistake


# ----------------------------------------------------------------------------------------------------- scales


def shortened(rounds: int, scale: str) -> int:
    """How many rounds a run has in place of the paper's."""
    return {"full": rounds, "small": min(rounds, max(5, rounds // 10)), "smoke": 2}[scale]


def at_scale(row: Row, settings: dict[str, Any], scale: str) -> dict[str, Any]:
    """A run's settings with its rounds, and all that counts in rounds, shortened; a smoke run is small in all ways."""
    if scale == "full":
        return settings
    whole = settings["rounds"]
    rounds = shortened(whole, scale)
    result = {**settings, "rounds": rounds}
    if "eval_at" in settings:
        result["eval_at"] = sorted({scaled(at, whole, rounds) for at in settings["eval_at"]})
    if "eval_every" in settings:
        result["eval_every"] = max(1, settings["eval_every"] * rounds // whole)
    if "unfreeze" in settings:  # every layer trains in the end
        result["unfreeze"] = [min(scaled(at, whole, rounds), rounds - 1) for at in settings["unfreeze"]]
    if scale == "small":
        return result
    result |= SMOKE | {key: most for key, most in FEW.items() if key in row.known}
    result |= {"data": f"{HANDED_IN} made images", "batch_norm": settings["model"].startswith("resnet")}
    kind, _, number = settings["partition"].partition(":")
    if kind == "pat":
        result["partition"] = f"pat:{min(int(number), CLASSES)}"
    return {key: value for key, value in result.items() if key not in DROPPED}


def scaled(at: int, whole: int, rounds: int) -> int:
    """A round of the paper's, `at` of `whole`, in a run of `rounds`; rounded up."""
    return -(-at * rounds // whole)


def path_at_scale(path: str, whole: int, rounds: int) -> str:
    """Where a shortened run keeps a value: `at-100` of 300 rounds is `at-10` of 30."""
    return re.sub(r"at-(\d+)", lambda found: f"at-{scaled(int(found[1]), whole, rounds)}", path)


def made_images(data: str) -> Source:
    """Noisy patterns with as many channels as a data set's images, each from one of four domains (of another tint)."""
    channels, draw = CATALOGUE[data].shape[0] or 3, stream(0, "smoke")
    label, domain = np.arange(IMAGES) % CLASSES, np.arange(IMAGES) // CLASSES % 4
    patterns, tints = draw.standard_normal((CLASSES, channels, SIDE, SIDE)), draw.standard_normal((4, channels, 1, 1))
    x = 127.5 + 30 * patterns[label] + 20 * tints[domain] + 30 * draw.standard_normal((IMAGES, channels, SIDE, SIDE))
    column = Column(("first", "second", "third", "fourth"), torch.from_numpy(domain))
    images = torch.from_numpy(x.round().clip(0, 255).astype(np.uint8))
    labels = torch.from_numpy(label)
    return image_source("made images", images, labels, CLASSES, IMAGES * 4 // 5, columns={"domain": column})


# ------------------------------------------------------------------------------------------------------- runs


def reproduce(
    paper: Paper, scale: str, seeds: Sequence[int], out: Path, overwrite: bool = False, quiet: bool = False
) -> dict[tuple[str, str], Cell]:
    """Every cell of a table, by the names of its row and column. One that fails says why, and the others go on."""
    here = [row for row in paper.rows if not row.absent]
    if scale == "smoke" and len(here) > ROWS:
        here = [*here[: ROWS - 1], here[-1]]  # the paper's own method usually comes last
    cells = {}
    total, number = len(here) * len(paper.columns) * len(seeds), 0
    for row in paper.rows:
        for column in paper.columns:
            cell = cells[row.label, column.name] = Cell({name: [] for name in column.paths})
            if row not in here:
                cell.missing = "no method" if row.absent else "not run"
                continue
            for seed in seeds:
                number += 1
                title = f"{row.label}, {column.name}, seed {seed} ({number}/{total})"
                place = place_of(paper, row, column, scale, seed, out)
                try:
                    carry_out(paper, row, column, scale, seed, place, overwrite, title, quiet)
                except PartwiseError as error:
                    kinds = {DataError: "no data", Diverged: "diverged"}
                    cell.missing, cell.reason = kinds.get(type(error), "refused"), one_line(error)
                    cell.mistake = cell.missing == "refused"
                    break
                whole = paper.settings_of(row, column)["rounds"]
                for name, path in column.paths.items():
                    path = path_at_scale(path.replace("judged", row.judged), whole, shortened(whole, scale))
                    found = value_of(place, path)
                    if found is not None:
                        cell.values[name].append(found)
    return cells


def place_of(paper: Paper, row: Row, column: papers.Column, scale: str, seed: int, out: Path) -> Path:
    """The folder of a run."""
    return out / paper.name / scale / slug(row.label) / slug(column.name) / f"seed-{seed}"


def settled(paper: Paper, row: Row, column: papers.Column, scale: str, seed: int) -> tuple[Config, Source | None]:
    """The configuration of a run, and the data that it is handed."""
    settings = paper.settings_of(row, column)
    config = make_config(row.method, {**at_scale(row, settings, scale), "seed": seed})
    return config, made_images(settings["data"]) if scale == "smoke" else None


def carry_out(
    paper: Paper,
    row: Row,
    column: papers.Column,
    scale: str,
    seed: int,
    place: Path,
    overwrite: bool,
    title: str,
    quiet: bool,
) -> None:
    """One run, unless it lies finished in its place."""
    config, data = settled(paper, row, column, scale, seed)
    overwrite = overwrite or (bool(paper.representations) and not (place / FEATURES).exists())
    folder = RunFolder(place, config, overwrite, resume=not overwrite)
    if folder.kept:
        return
    simulation = prepare(config, data)
    with display(title, simulation.total, quiet) as progress:
        result = folder.record(simulation, progress)
    if "t-sne" in paper.pictures:
        for name, parts in paper.representations.items():
            write_tsne(tsne(result, parts), place / tsne_file(name))
    if paper.representations:
        measured = {name: representation_metrics(result, parts) for name, parts in paper.representations.items()}
        for own in measured.values():
            own["cka"] = [[number(value) for value in line] for line in own["cka"]]
        write(place / FEATURES, as_json(measured))


def runnable(paper: Paper) -> int:
    """How many cells have their method and their data here."""
    data = [{**paper.settings, **column.settings}["data"] for column in paper.columns]
    return sum(map(is_here, data)) * sum(not row.absent for row in paper.rows)


def is_here(data: str) -> bool:
    return CATALOGUE[data].find(None)[0] is not None
