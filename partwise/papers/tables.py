"""The tables and figures of the papers: files of settings and published numbers, carried out cell by cell.

A file in `partwise/papers` holds `title`, `notes`, `seeds`, the `[settings]` of every run, and:

[[columns]]  a run for each row and seed: `name`; `settings`; `methods`: settings of some methods alone, by their names;
             `show`: the name of each printed value, and where a run keeps it; `also`: the same for values of ours that
             the paper does not print. `ours`: the paper has no such column. All three may stand at the top, for all
             columns. `factors`: what a value is multiplied by (100: in percent).
[[rows]]     `label`; `method`; `settings`; `judged`: the moment of the local model, where a value says `judged`;
             `published`: a number for each value of `show`, column by column (but for `ours`), "-" where the paper has
             none; `copied`: the paper took them from other papers; `note`.
[representations]  names for parts of the network: how alike and how well separated the features behind them are, in
                   every evaluated round (runs/features.py), is kept beside the run: `features.NAME.cka_mean`.
pictures     what is drawn besides (reporting/pictures.py): "rounds", the accuracy `judged` over rounds; "clients", its
             sorted curves; "bars"; "classes", who has which; of the representations "t-sne" (a row's `panels`, by
             their titles), "metrics" over rounds, and "similarity" at the end.

Settings of the file and of a column go to the methods that have them, and a use for them; those of a method in a
column win, and those of a row win over all.
"""

import csv
import json
import math
import re
import statistics
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field, dataclass, field, replace
from pathlib import Path
from typing import Any

from partwise.errors import ConfigError, unknown
from partwise.methods import find
from partwise.options import with_effect
from partwise.records.files import CLIENTS, CONFIG, LEDGER, METRICS, SUMMARY
from partwise.runs.config import known_fields

PAPERS = Path(__file__).parent
NOT_PRINTED = "-"  # where the paper prints no number
COUNTED = 500  # training samples of a client in the scheduling paper's cost: 50,000 among 100
FLOAT = 4  # bytes
FEATURES = "features.json"  # beside a run's own files
SCALES = {
    "full": "the paper's setting",
    "small": "a tenth of the paper's rounds (5 at least)",
    "smoke": "2 rounds of at most 3 rows, 4 clients, a small network and 200 made images: a trial of the code, whose "
    "numbers say nothing about the paper",
}


@dataclass(frozen=True)
class PublishedNumber:
    """A number as the paper prints it; its decimals are kept."""

    text: str

    @property
    def value(self) -> float:
        return float(self.text.partition("±")[0])

    @property
    def decimals(self) -> int:
        return len(self.text.partition("±")[0].strip().partition(".")[2])


@dataclass(frozen=True)
class TableColumn:
    """Values that one run gives: their names, and where it keeps them."""

    name: str
    settings: dict[str, Any]
    show: dict[str, str]
    also: dict[str, str] = field(default_factory=dict)
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)
    ours: bool = False

    @property
    def paths(self) -> dict[str, str]:
        return {**self.show, **self.also}


@dataclass(frozen=True)
class TableRow:
    label: str
    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    judged: str = "received"
    published: dict[tuple[str, str], PublishedNumber] = field(default_factory=dict)  # by column and value
    copied: bool = False
    note: str = ""
    panels: dict[str, str] = field(default_factory=dict)  # representations by the title of their picture

    def settings_in(self, column: TableColumn) -> dict[str, Any]:
        """Those that are for this row, whatever the others have."""
        return {**column.methods.get(self.method, {}), **self.settings}

    @property
    def known(self) -> dict[str, Field]:
        """Every setting of its runs."""
        return known_fields(find(self.method).variant(self.settings))


@dataclass(frozen=True)
class Paper:
    """One table or figure of a paper."""

    name: str
    title: str
    columns: list[TableColumn]
    rows: list[TableRow]
    settings: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2)
    notes: tuple[str, ...] = ()
    factors: dict[str, float] = field(default_factory=dict)
    representations: dict[str, str] = field(default_factory=dict)
    pictures: tuple[str, ...] = ()
    ours: bool = False  # the paper has no such table: its columns are readings of what one of the paper's leaves open

    def factor(self, value: str) -> float:
        return self.factors.get(value, 100)

    def settings_of(self, row: TableRow, column: TableColumn) -> dict[str, Any]:
        """All settings of a cell's runs, but for the seed."""
        known, own = row.known, row.settings_in(column)
        common = {key: value for key, value in {**self.settings, **column.settings}.items() if key in known}
        useful = with_effect(known, {**common, **own})
        return {key: value for key, value in common.items() if key in useful} | own


def papers() -> list[str]:
    """Every table and figure: `fedtc/table2`."""
    return sorted(path.relative_to(PAPERS).with_suffix("").as_posix() for path in PAPERS.glob("*/*.toml"))


def read_paper(name: str) -> Paper:
    """The file of a table. Its decimal numbers stay texts: they are shown as they are printed, zeros and all."""
    if name not in papers():
        raise ConfigError(unknown("table", name, papers()))
    content = tomllib.loads((PAPERS / f"{name}.toml").read_text(encoding="utf-8"), parse_float=str)
    common: dict[str, Any] = {"settings": {}, "ours": content.get("ours", False)}
    common |= {key: content.pop(key) for key in ("show", "also") if key in content}
    columns = [TableColumn(**{**common, **entry}) for entry in content.pop("columns")]
    places = [(column.name, value) for column in columns if not column.ours for value in column.show]
    rows = []
    for entry in content.pop("rows"):
        texts = map(str, entry.pop("published", [NOT_PRINTED] * len(places)))
        numbers = {
            place: PublishedNumber(text) for place, text in zip(places, texts, strict=True) if text != NOT_PRINTED
        }
        rows.append(TableRow(**entry, published=numbers))
    factors = {key: float(value) for key, value in content.pop("factors", {}).items()}
    listed: dict[str, Any] = {key: tuple(content.pop(key)) for key in ("seeds", "notes", "pictures") if key in content}
    return Paper(name, columns=columns, rows=rows, factors=factors, **listed, **content)


def narrow_table(paper: Paper, rows: str | None, columns: str | None) -> Paper:
    """The rows (by label or method) and columns that were asked for, separated by commas; None: all."""
    kept = (
        select_entries(paper.rows, rows, "row", "label", "method"),
        select_entries(paper.columns, columns, "column", "name"),
    )
    return replace(paper, rows=kept[0], columns=kept[1])


def select_entries(entries: Sequence[Any], wanted: str | None, kind: str, *keys: str) -> list[Any]:
    """The entries that are called so, in whatever case of letters; the first key under which a name is found counts."""
    if wanted is None:
        return list(entries)
    called = {key: [getattr(entry, key).lower() for entry in entries] for key in keys}
    kept: set[int] = set()
    for each in (name.strip().lower() for name in wanted.split(",")):
        names = next((names for names in called.values() if each in names), [])
        kept |= {number for number, name in enumerate(names) if name == each}
        if not names:
            raise ConfigError(
                unknown(kind, each, dict.fromkeys(getattr(entry, key) for key in keys for entry in entries))
            )
    return [entries[number] for number in sorted(kept)]


def slug(label: str) -> str:
    """A name as that of a folder."""
    return re.sub(r"[^a-z0-9.+]+", "-", label.lower()).strip("-")


def tsne_file(representation: str) -> str:
    """Beside a run's own files, too."""
    return f"t-sne-{representation}.csv"


# ------------------------------------------------------------------------------------------- what a run gives


def value_of(folder: Path, path: str) -> float | None:
    """A number that a finished run left in its folder; None where it has none.

    `received.best.acc_pooled`: of summary.json's `accuracy`. `method_adapted.at-100.acc_pooled`: of the 100th line of
    metrics.jsonl. `clients.3.received`, `clients.min.received`: of clients.csv, also mean, median and max.
    `cost.paper`, `cost.flops`, `cost.bytes`: what training costs in the scheduling paper's count and in truth.
    `features.after.cka_mean`: of features.json, see above, in the last round that was evaluated.
    """
    first, *rest = path.split(".")
    if first == "clients":
        return client_value(folder, *rest)
    if first == "cost":
        return {"paper": paper_cost_of, "flops": flops_of, "bytes": bytes_of}[rest[0]](folder)
    found: Any
    if rest[0].startswith("at-"):
        at = int(rest.pop(0).removeprefix("at-"))
        found = next((row for row in metrics(folder) if row["round"] == at), {})
    elif first == "features":
        found = {first: {name: measured[-1] for name, measured in features(folder).items()}}
    else:
        found = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))["accuracy"]
    for key in (first, *rest):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / METRICS).read_text(encoding="utf-8").splitlines()]


def features(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Metrics of each representation in every round that was evaluated."""
    return json.loads((folder / FEATURES).read_text(encoding="utf-8"))


def client_values(folder: Path, column: str) -> list[float | None]:
    """A column of clients.csv."""
    with open(folder / CLIENTS, encoding="utf-8", newline="") as file:
        return [float(row[column]) if row[column] else None for row in csv.DictReader(file)]


def client_value(folder: Path, which: str, column: str) -> float | None:
    values = client_values(folder, column)
    if which.isdecimal():
        values, which = values[int(which) : int(which) + 1], "mean"
    numbers = [value for value in values if value is not None]
    over: dict[str, Callable[[list[float]], float]]
    over = {"mean": statistics.fmean, "median": statistics.median, "min": min, "max": max}
    return over[which](numbers) if numbers else None


def paper_cost(trainable: Iterable[float], clients: int, samples: int, batch: int, epochs: int = 1) -> float:
    """The scheduling paper's cost (Sec. 5.2): all clients' mini-batches times the parameters that a round trains."""
    return clients * math.ceil(samples / batch) * epochs * sum(trainable)


def paper_cost_of(folder: Path) -> float:
    """In FedAvg, FedBABU and the schedules a participant uploads just what it trains."""
    settings = tomllib.loads((folder / CONFIG).read_text(encoding="utf-8"))
    trainable = [row["bytes_up"] / FLOAT / max(1, len(row["participants"])) for row in metrics(folder)]
    train = settings["train"]
    return paper_cost(trainable, settings["data"]["clients"], COUNTED, train["batch"], train["epochs"])


def flops_of(folder: Path) -> float:
    return json.loads((folder / LEDGER).read_text(encoding="utf-8"))["training_flops"]


def bytes_of(folder: Path) -> float:
    return sum(row["bytes_down"] + row["bytes_up"] for row in metrics(folder))
