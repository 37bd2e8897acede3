"""A table of a paper, carried out at some scale: every cell's runs in folders of their own, finished ones kept."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from partwise.data import Source
from partwise.errors import DataError, DiskFull, Interrupted, PartwiseError, needed, one_line
from partwise.papers.features import representation_metrics, tsne
from partwise.papers.representations import write_tsne
from partwise.papers.scales import at_scale, made_images, path_at_scale, shortened
from partwise.papers.tables import Paper, TableColumn, TableRow, slug, tsne_file
from partwise.papers.values import FEATURES, value_of
from partwise.records.formats import as_json
from partwise.records.setup import RunSettings
from partwise.reporting.progress import displays
from partwise.reporting.reading import NOTED
from partwise.runs.config import Config, make_config
from partwise.runs.folder import RunFolder, folder_inside
from partwise.runs.observers import Observer, Seen
from partwise.runs.pace import Interrupts
from partwise.runs.settings import Settings
from partwise.runs.simulation import Progress, Simulation
from partwise.studies.seeds import PlannedRun, run_seeds, unseen
from partwise.writing import write

SMOKE_ROWS = 3  # of a smoke run


@dataclass
class TableCell:
    """One row in one column: each value by its name, for every seed that gave one; or why there is none."""

    values: dict[str, list[float]] = field(default_factory=dict)
    missing: str = ""  # in a word, for the table
    reason: str = ""  # in a line, for its notes
    mistake: bool = False  # settings were refused; data that are not here are no mistake


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
        return folder_inside(self.out, *Path(self.paper.name).parts, *names)

    @property
    def settings(self) -> Settings:
        """Return the paper's settings; models are not kept."""
        return {**self.paper.settings_of(self.row, self.column), "save_models": False}

    @property
    def config(self) -> Config:
        """Return its configuration."""
        return make_config(self.row.method, {**at_scale(self.row, self.settings, self.scale), "seed": self.seed})

    @property
    def paper_settings(self) -> RunSettings:
        """Return the settings of the paper's own run that count here."""
        return RunSettings.from_json(self.settings)

    @property
    def data(self) -> Source | None:
        """Return the images that it is handed in place of the paper's data."""
        return made_images(self.paper_settings.data) if self.scale == "smoke" else None

    def value(self, path: str) -> float | None:
        """Return the number of the finished run that a run of the paper's length would keep at `path`."""
        whole = self.paper_settings.rounds
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
        if folder.complete and (not self.paper.representations or self.features.exists()):
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
            rounds = [each for each in simulation.history.rounds if NOTED in each.noted]
            measured = {
                name: [{"round": each.round, **each.noted[NOTED][name]} for each in rounds] for name in represented
            }
            write(self.features, as_json(measured))
        done.append(self)


class Represented(Observer):
    """Add the metrics of representations to evaluated rounds, so that a continued run has them, too."""

    def __init__(self, parts: Mapping[str, str]):
        self.parts = parts  # by the names of the representations

    def round(self, seen: Seen) -> None:
        """Measure the representations of the models that clients received."""
        if "received" in seen.record.moments:
            metrics = {name: representation_metrics(seen.simulation, own).as_json() for name, own in self.parts.items()}
            seen.add(NOTED, metrics)


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
