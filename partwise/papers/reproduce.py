"""A table of a paper, carried out at some scale: every cell's runs in folders of their own, finished ones kept."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from partwise.data import CATALOGUE, Source, source
from partwise.errors import DataError, DiskFull, Interrupted, PartwiseError, needed, one_line
from partwise.options import with_effect
from partwise.papers.features import representation_metrics, tsne
from partwise.papers.representations import write_tsne
from partwise.papers.tables import Paper, Settings, TableColumn, TableRow, slug, tsne_file
from partwise.papers.values import FEATURES, value_of
from partwise.records.formats import as_json
from partwise.reporting.progress import displays
from partwise.runs.config import HANDED_IN, Config, make_config
from partwise.runs.folder import RunFolder, inside
from partwise.runs.observers import Observer, Seen
from partwise.runs.pace import Interrupts
from partwise.runs.simulation import Progress, Simulation
from partwise.streams import stream
from partwise.studies.seeds import PlannedRun, run_seeds, unseen
from partwise.writing import write

SMOKE_ROWS, SMOKE_IMAGES = 3, 200  # of a smoke run
SMOKE_CLASSES, SMOKE_SIDE = 8, 8  # so that 4 clients of 2 classes hold all classes; pixels
SMOKE = {"clients": 4, "model": "cnn-digits", "min_samples": 4, "epochs": 1, "batch": 100}
QUICK_AT_MOST = {"finetune_epochs": 1, "head_epochs": 1, "personal_rounds": 1, "coordinators_a": 2, "coordinators_b": 2}
SMOKE_UNUSED = ("image_size", "weights")  # they are for the real images and network


@dataclass
class TableCell:
    """One row in one column: each value by its name, for every seed that gave one; or why there is none."""

    values: dict[str, list[float]] = field(default_factory=dict)
    missing: str = ""  # in a word, for the table
    reason: str = ""  # in a line, for its notes
    mistake: bool = False  # settings were refused; data that are not here are no mistake


# ----------------------------------------------------------------------------------------------------- scales


def shortened(rounds: int, scale: str) -> int:
    """Return how many rounds a run has in place of the paper's."""
    return {"full": rounds, "small": min(rounds, max(5, rounds // 10)), "smoke": 2}[scale]


def at_scale(row: TableRow, settings: Settings, scale: str) -> Settings:
    """Return a run's settings with its rounds, and all that counts in rounds, shortened; a smoke run is all small."""
    if scale == "full":
        return settings
    whole = make_config(row.method, settings)
    rounds = shortened(whole.method.rounds, scale)
    shorter = {
        name: shorten(settings[name], whole.method.rounds, rounds)
        for name, shorten in SHORTENED.items()
        if name in settings
    }
    result = {**settings, "rounds": rounds, **shorter}
    if scale == "small":
        return result
    few = {key: most for key, most in QUICK_AT_MOST.items() if key in row.known}
    useful = with_effect(row.known, {**few, **result})
    result |= SMOKE | {key: most for key, most in few.items() if key in useful}
    result |= {"data": f"{HANDED_IN} made images", "batch_norm": whole.model.model.startswith("resnet")}
    kind, _, number = whole.data.partition.partition(":")
    if kind == "pat":
        result |= {"partition": f"pat:{min(int(number), SMOKE_CLASSES)}"}
    return {key: value for key, value in result.items() if key not in SMOKE_UNUSED}


def scaled_round(at: int, whole: int, rounds: int) -> int:
    """Return a round of the paper's, `at` of `whole`, in a run of `rounds`; rounded up."""
    return -(-at * rounds // whole)


def scaled_rounds(at: Sequence[int], whole: int, rounds: int) -> list[int]:
    """Return several of the paper's rounds in a shortened run."""
    return sorted({scaled_round(each, whole, rounds) for each in at})


def scaled_starts(at: Sequence[int], whole: int, rounds: int) -> list[int]:
    """Return the rounds in which layers begin to train in a shortened run: all of them train in the end."""
    return [min(scaled_round(each, whole, rounds), rounds - 1) for each in at]


def scaled_interval(every: int, whole: int, rounds: int) -> int:
    """Return a number of rounds between two evaluations, in a shortened run."""
    return max(1, every * rounds // whole)


SHORTENED: dict[str, Callable[[Any, int, int], object]] = {
    "eval_at": scaled_rounds,
    "eval_every": scaled_interval,
    "unfreeze": scaled_starts,
    "rounds_1": scaled_round,
    "rounds_2": scaled_round,
}


def path_at_scale(path: str, whole: int, rounds: int) -> str:
    """Return where a shortened run keeps a value: `at-100` of 300 rounds is `at-10` of 30."""
    return re.sub(r"at-(\d+)", lambda found: f"at-{scaled_round(int(found[1]), whole, rounds)}", path)


@cache
def made_images(data: str) -> Source:
    """Make noisy patterns with as many channels as a data set's images, each of one of four domains, a tint each."""
    channels, draw, side = CATALOGUE[data].shape[0] or 3, stream(0, "smoke"), SMOKE_SIDE
    number = np.arange(SMOKE_IMAGES)
    label, domain = number % SMOKE_CLASSES, number // SMOKE_CLASSES % 4
    patterns, tints = (
        draw.standard_normal((SMOKE_CLASSES, channels, side, side)),
        draw.standard_normal((4, channels, 1, 1)),
    )
    noise = draw.standard_normal((SMOKE_IMAGES, channels, side, side))
    x = 127.5 + 30 * patterns[label] + 20 * tints[domain] + 30 * noise
    column = source.Column(("first", "second", "third", "fourth"), torch.from_numpy(domain))
    images, labels = torch.from_numpy(x.round().clip(0, 255).astype(np.uint8)), torch.from_numpy(label)
    train = SMOKE_IMAGES * 4 // 5
    return source.image_source("made images", images, labels, SMOKE_CLASSES, train, columns={"domain": column})


# ------------------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True)
class TableRun:
    """One run of a table: a row in a column, with a seed, at a scale."""

    paper: Paper
    row: TableRow
    column: TableColumn
    scale: str
    seed: int
    out: Path
    number: str = ""  # among all runs of the table

    @property
    def title(self) -> str:
        """Return the title of its progress."""
        return f"{self.row.label}, {self.column.name}, seed {self.seed} ({self.number})"

    @property
    def place(self) -> Path:
        """Return its folder."""
        names = self.scale, slug(self.row.label), slug(self.column.name), f"seed-{self.seed}"
        return inside(self.out, *Path(self.paper.name).parts, *names)

    @property
    def settings(self) -> Settings:
        """Return the paper's settings; models are not kept."""
        return {**self.paper.settings_of(self.row, self.column), "save_models": False}

    @property
    def config(self) -> Config:
        """Return its configuration."""
        return make_config(self.row.method, {**at_scale(self.row, self.settings, self.scale), "seed": self.seed})

    @cached_property
    def full(self) -> Config:
        """Return the configuration of the paper's own run."""
        return make_config(self.row.method, self.settings)

    @property
    def data(self) -> Source | None:
        """Return the images that it is handed in place of the paper's data."""
        return made_images(self.full.data.data) if self.scale == "smoke" else None

    def value(self, path: str) -> float | None:
        """Return the number of the finished run that a run of the paper's length would keep at `path`."""
        whole = self.full.method.rounds
        path = path_at_scale(path.replace("judged", self.row.judged), whole, shortened(whole, self.scale))
        return value_of(self.place, path)

    @property
    def features(self) -> Path:
        """Return the file of the metrics of its representations."""
        return self.place / FEATURES

    def job(self, overwrite: bool, done: list["TableRun"]) -> PlannedRun | None:
        """Return the run that is to be carried out, None where its folder has it; note it in `done` when it ended."""
        config = self.config
        folder = RunFolder(self.place, config, overwrite, resume=not overwrite)
        if folder.kept and (not self.paper.representations or self.features.exists()):
            done.append(self)
            return None
        if "t-sne" in self.paper.pictures:
            needed("sklearn.manifold", "data")  # not after hours of training
        return PlannedRun(self.title, config, partial(self.record, folder, done), self.data, folder=folder)

    def record(self, folder: RunFolder, done: list["TableRun"], simulation: Simulation, progress: Progress) -> None:
        """Carry it out, and write the files that the table's pictures and paths need."""
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
    """Add the metrics of representations to evaluated rounds, so that a continued run has them, too."""

    NOTED = "representations"

    def __init__(self, parts: Mapping[str, str]):
        self.parts = parts  # by the names of the representations

    def round(self, seen: Seen) -> None:
        """Measure the representations of the models that clients received."""
        if "received" in seen.record.moments:
            metrics = {name: representation_metrics(seen.simulation, own).as_json() for name, own in self.parts.items()}
            seen.add(self.NOTED, metrics)


def reproduce(
    paper: Paper, scale: str, seeds: Sequence[int], out: Path, overwrite: bool = False, quiet: bool = False
) -> dict[tuple[str, str], TableCell]:
    """Return the cells of a table by the names of row and column. One that fails says why, and the others go on."""
    taken = paper.rows
    if scale == "smoke" and len(taken) > SMOKE_ROWS:
        taken = [*taken[: SMOKE_ROWS - 1], taken[-1]]  # the paper's own method usually comes last
    cells = {}
    total, number, interrupts = len(taken) * len(paper.columns) * len(seeds), 0, Interrupts()
    for row in paper.rows:
        for column in paper.columns:
            cell = cells[row.label, column.name] = TableCell({name: [] for name in column.paths})
            if row not in taken:
                cell.missing = "not run"
                continue
            runs = [
                TableRun(paper, row, column, scale, seed, out, f"{number + at}/{total}")
                for at, seed in enumerate(seeds, start=1)
            ]
            number += len(runs)
            fill(cell, runs, overwrite, quiet, interrupts)
    return cells


def fill(cell: TableCell, runs: Sequence[TableRun], overwrite: bool, quiet: bool, interrupts: Interrupts) -> None:
    """Carry out the runs of a cell that are not finished, and note the values of all."""
    done: list[TableRun] = []
    try:
        jobs = []
        for run in runs:
            with damaged(cell, run):
                job = run.job(overwrite, done)
                jobs += [] if job is None else [job]
        for error in run_seeds(jobs, unseen if quiet else displays, interrupts=interrupts).values():
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
    for run in sorted(done, key=runs.index):
        with damaged(cell, run):
            for name, value in {name: run.value(path) for name, path in run.column.paths.items()}.items():
                cell.values[name] += [] if value is None else [value]


@contextmanager
def damaged(cell: TableCell, run: TableRun) -> Iterator[None]:
    """Note that a file of a run cannot be read, and go on with the other runs."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        cell.missing = "damaged"
        cell.reason = f"'{run.place}' is damaged ({one_line(error)}); --overwrite runs it again"
