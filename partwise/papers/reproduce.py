"""A table of a paper, carried out at some scale: every cell's runs in folders of their own, finished ones kept."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from partwise.data import CATALOGUE, Source, source
from partwise.errors import DataError, DiskFull, Interrupted, PartwiseError, needed, one_line
from partwise.options import with_effect
from partwise.papers.features import representation_metrics, tsne
from partwise.papers.representations import write_tsne
from partwise.papers.tables import FEATURES, Column, Paper, Row, slug, tsne_file, value_of
from partwise.records.formats import as_json
from partwise.reporting.progress import displays
from partwise.runs.config import HANDED_IN, Config, make_config
from partwise.runs.folder import RunFolder, folder_inside
from partwise.runs.observers import Observer, Seen
from partwise.runs.pace import Interrupts
from partwise.runs.simulation import Progress, Simulation
from partwise.streams import stream
from partwise.studies.seeds import PlannedRun, carry_out, unseen
from partwise.writing import write

ROWS, IMAGES, CLASSES, SIDE = 3, 200, 8, 8  # of a smoke run; 8 classes, so that 4 clients of 2 classes hold them all
SMOKE = {"clients": 4, "model": "cnn-digits", "min_samples": 4, "epochs": 1, "batch": 100}
QUICK_AT_MOST = {"finetune_epochs": 1, "head_epochs": 1, "personal_rounds": 1, "coordinators_a": 2, "coordinators_b": 2}
DROPPED = ("image_size", "weights")  # they are for the real images and network


@dataclass
class Cell:
    """One row in one column: each value by its name, for every seed that gave one; or why there is none."""

    values: dict[str, list[float]] = field(default_factory=dict)
    missing: str = ""  # in a word, for the table
    reason: str = ""  # in a line, for its notes
    mistake: bool = False  # settings were refused; data that are not here are no mistake


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
    result |= {key: scaled(settings[key], whole, rounds) for key in ("rounds_1", "rounds_2") if key in settings}
    if scale == "small":
        return result
    few = {key: most for key, most in QUICK_AT_MOST.items() if key in row.known}
    useful = with_effect(row.known, {**few, **result})
    result |= SMOKE | {key: most for key, most in few.items() if key in useful}
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


@cache
def made_images(data: str) -> Source:
    """Noisy patterns with as many channels as a data set's images, each from one of four domains (of another tint)."""
    channels, draw = CATALOGUE[data].shape[0] or 3, stream(0, "smoke")
    label, domain = np.arange(IMAGES) % CLASSES, np.arange(IMAGES) // CLASSES % 4
    patterns, tints = draw.standard_normal((CLASSES, channels, SIDE, SIDE)), draw.standard_normal((4, channels, 1, 1))
    x = 127.5 + 30 * patterns[label] + 20 * tints[domain] + 30 * draw.standard_normal((IMAGES, channels, SIDE, SIDE))
    column = source.Column(("first", "second", "third", "fourth"), torch.from_numpy(domain))
    images = torch.from_numpy(x.round().clip(0, 255).astype(np.uint8))
    labels = torch.from_numpy(label)
    return source.image_source("made images", images, labels, CLASSES, IMAGES * 4 // 5, columns={"domain": column})


# ------------------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True)
class Trial:
    """One run of a table: a row in a column, with a seed, at a scale."""

    paper: Paper
    row: Row
    column: Column
    scale: str
    seed: int
    out: Path
    number: str = ""  # among all runs of the table

    @property
    def title(self) -> str:
        return f"{self.row.label}, {self.column.name}, seed {self.seed} ({self.number})"

    @property
    def place(self) -> Path:
        """Its folder."""
        names = self.scale, slug(self.row.label), slug(self.column.name), f"seed-{self.seed}"
        return folder_inside(self.out, *Path(self.paper.name).parts, *names)

    @property
    def settings(self) -> dict[str, Any]:
        """The paper's; models are not kept."""
        return {**self.paper.settings_of(self.row, self.column), "save_models": False}

    @property
    def config(self) -> Config:
        return make_config(self.row.method, {**at_scale(self.row, self.settings, self.scale), "seed": self.seed})

    @property
    def data(self) -> Source | None:
        """What it is handed in place of the paper's data."""
        return made_images(self.settings["data"]) if self.scale == "smoke" else None

    def value(self, path: str) -> float | None:
        """What the finished run keeps where a run of the paper's length would keep it at `path`."""
        whole = self.settings["rounds"]
        path = path_at_scale(path.replace("judged", self.row.judged), whole, shortened(whole, self.scale))
        return value_of(self.place, path)

    @property
    def features(self) -> Path:
        """Where the metrics of its representations are kept."""
        return self.place / FEATURES

    def job(self, overwrite: bool, done: list["Trial"]) -> PlannedRun | None:
        """What there is to do, None where it lies finished in its place; then, or once it ends, it is `done`."""
        config = self.config
        folder = RunFolder(self.place, config, overwrite, resume=not overwrite)
        if folder.complete and (not self.paper.representations or self.features.exists()):
            done.append(self)
            return None
        if "t-sne" in self.paper.pictures:
            needed("sklearn.manifold", "data")  # not after hours of training
        return PlannedRun(self.title, config, partial(self.record, folder, done), self.data, folder=folder)

    def record(self, folder: RunFolder, done: list["Trial"], simulation: Simulation, progress: Progress) -> None:
        """Run it, and keep what it leaves behind."""
        self.features.unlink(missing_ok=True)  # of an earlier run
        represented = self.paper.representations
        result = folder.record(simulation, progress, [Represented(represented)] if represented else ())
        if "t-sne" in self.paper.pictures:
            for name, parts in represented.items():
                write_tsne(tsne(result, parts), self.place / tsne_file(name))
        if represented:
            rounds = [each for each in simulation.history.rounds if Represented.NOTED in each.noted]
            measured = {
                name: [{"round": each.round, **each.noted[Represented.NOTED][name]} for each in rounds]
                for name in represented
            }
            write(self.features, as_json(measured))
        done.append(self)


class Represented(Observer):
    """Adds the metrics of representations to evaluated rounds: what goes on from a checkpoint has them."""

    NOTED = "representations"

    def __init__(self, parts: dict[str, Any]):
        self.parts = parts  # by the names of the representations

    def round(self, seen: Seen) -> None:
        if "received" in seen.record.moments:
            metrics = {name: representation_metrics(seen.simulation, own).as_json() for name, own in self.parts.items()}
            seen.add(self.NOTED, metrics)


def reproduce(
    paper: Paper, scale: str, seeds: Sequence[int], out: Path, overwrite: bool = False, quiet: bool = False
) -> dict[tuple[str, str], Cell]:
    """Every cell of a table, by the names of its row and column. One that fails says why, and the others go on."""
    run = paper.rows
    if scale == "smoke" and len(run) > ROWS:
        run = [*run[: ROWS - 1], run[-1]]  # the paper's own method usually comes last
    cells = {}
    total, number, interrupts = len(run) * len(paper.columns) * len(seeds), 0, Interrupts()
    for row in paper.rows:
        for column in paper.columns:
            cell = cells[row.label, column.name] = Cell({name: [] for name in column.paths})
            if row not in run:
                cell.missing = "not run"
                continue
            trials = [
                Trial(paper, row, column, scale, seed, out, f"{number + at}/{total}")
                for at, seed in enumerate(seeds, start=1)
            ]
            number += len(trials)
            fill(cell, trials, overwrite, quiet, interrupts)
    return cells


def fill(cell: Cell, trials: Sequence[Trial], overwrite: bool, quiet: bool, interrupts: Interrupts) -> None:
    """Carry out the runs of a cell that are not finished, and note what all of them gave."""
    done: list[Trial] = []
    try:
        jobs = []
        for trial in trials:
            with damaged(cell, trial):
                job = trial.job(overwrite, done)
                jobs += [] if job is None else [job]
        for error in carry_out(jobs, unseen if quiet else displays, interrupts=interrupts).values():
            cell.missing, cell.reason = "diverged", one_line(error)
    except Interrupted as asked:
        raise Interrupted(asked.when, asked.signal, "run the same command again to continue") from None
    except DiskFull as error:
        cell.missing, cell.reason = "failed", one_line(error)
    except PartwiseError as error:
        cell.missing = "no data" if isinstance(error, DataError) else "refused"
        cell.reason, cell.mistake = one_line(error), cell.missing == "refused"
    except OSError as error:
        cell.missing, cell.reason = "failed", one_line(error)
    for trial in sorted(done, key=trials.index):
        with damaged(cell, trial):
            for name, value in {name: trial.value(path) for name, path in trial.column.paths.items()}.items():
                cell.values[name] += [] if value is None else [value]


@contextmanager
def damaged(cell: Cell, trial: Trial) -> Iterator[None]:
    """Files that cannot be read cost their own run alone."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        cell.missing = "damaged"
        cell.reason = f"'{trial.place}' is damaged ({one_line(error)}); --overwrite runs it again"
