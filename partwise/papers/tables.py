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
                   every evaluated round (papers/features.py), is kept beside the run: `features.NAME.cka_mean`.
pictures     what is drawn besides (papers/pictures.py): "rounds", the accuracy `judged` over rounds; "clients", its
             sorted curves; "bars"; "classes", who has which; of the representations "t-sne" (a row's `panels`, by
             their titles), "metrics" over rounds, and "similarity" at the end.

Settings of the file and of a column go to the methods that have them, and a use for them; those of a method in a
column win, and those of a row win over all.
"""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import Field, dataclass, field, replace
from pathlib import Path
from typing import Any

from partwise.errors import ConfigError, unknown
from partwise.methods import find
from partwise.options import with_effect
from partwise.records.files import PLANES
from partwise.records.setup import RunSettings
from partwise.runs.config import known_fields
from partwise.runs.settings import Settings

PAPERS = Path(__file__).parent
NOT_PRINTED = "-"  # where the paper prints no number
SCALES = {
    "full": "the paper's setting",
    "small": "a tenth of the paper's rounds (5 at least)",
    "smoke": "2 rounds of at most 3 rows, 4 clients, a small network and 200 made images: a trial of the code, whose "
    "numbers say nothing about the paper",
}

NumberPlace = tuple[str, str]  # of a published number: its column and its value
TomlTable = dict[str, Any]  # an array's table in a file


@dataclass(frozen=True)
class PublishedNumber:
    """A number as the paper prints it; its decimals are kept."""

    text: str

    @property
    def value(self) -> float:
        """Return the number, without its deviation."""
        return float(self.text.partition("±")[0])

    @property
    def decimals(self) -> int:
        """Return how many decimals are printed."""
        return len(self.text.partition("±")[0].strip().partition(".")[2])


@dataclass(frozen=True)
class TableColumn:
    """Values that one run gives: their names, and where it keeps them."""

    name: str
    show: dict[str, str]
    settings: Settings = field(default_factory=dict)
    also: dict[str, str] = field(default_factory=dict)
    methods: dict[str, Settings] = field(default_factory=dict)
    ours: bool = False

    @property
    def paths(self) -> dict[str, str]:
        """Return where a run keeps each value, by the value's name."""
        return {**self.show, **self.also}


@dataclass(frozen=True)
class TableRow:
    """A method with its settings, and its published numbers."""

    label: str
    method: str
    settings: Settings = field(default_factory=dict)
    judged: str = "received"
    published: dict[NumberPlace, PublishedNumber] = field(default_factory=dict)  # by column and value
    copied: bool = False
    note: str = ""
    panels: dict[str, str] = field(default_factory=dict)  # representations by the title of their picture

    def settings_in(self, column: TableColumn) -> Settings:
        """Return the settings that this row alone has in a column."""
        return {**column.methods.get(self.method, {}), **self.settings}

    @property
    def known(self) -> dict[str, Field]:
        """Return the fields of every setting that its runs have."""
        return known_fields(find(self.method).variant(self.settings))


@dataclass(frozen=True)
class Paper:
    """One table or figure of a paper."""

    name: str
    title: str
    columns: list[TableColumn]
    rows: list[TableRow]
    settings: Settings = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2)
    notes: tuple[str, ...] = ()
    factors: dict[str, float] = field(default_factory=dict)
    representations: dict[str, str] = field(default_factory=dict)
    pictures: tuple[str, ...] = ()
    ours: bool = False  # the paper has no such table: its columns are readings of what one of the paper's leaves open

    def factor(self, value: str) -> float:
        """Return the factor of a value (100: in percent)."""
        return self.factors.get(value, 100)

    def common(self, column: TableColumn) -> RunSettings:
        """Return the settings that all rows share in a column."""
        return RunSettings.from_json({**self.settings, **column.settings})

    def settings_of(self, row: TableRow, column: TableColumn) -> Settings:
        """Return all settings of a cell's runs, but for the seed."""
        known, own = row.known, row.settings_in(column)
        common = {key: value for key, value in {**self.settings, **column.settings}.items() if key in known}
        useful = with_effect(known, {**common, **own})
        return {key: value for key, value in common.items() if key in useful} | own


def papers() -> list[str]:
    """Return the names of all tables and figures: `fedtc/table2`."""
    return sorted(path.relative_to(PAPERS).with_suffix("").as_posix() for path in PAPERS.glob("*/*.toml"))


def read_paper(name: str) -> Paper:
    """Read a table's file. Its decimal numbers stay texts: they are shown as they are printed, zeros and all."""
    if name not in papers():
        raise ConfigError(unknown("table", name, papers()))
    return make_paper(name, **tomllib.loads((PAPERS / f"{name}.toml").read_text(encoding="utf-8"), parse_float=str))


def make_paper(
    name: str, columns: Sequence[TomlTable], rows: Sequence[TomlTable], factors: TomlTable | None = None, **content: Any
) -> Paper:
    """Return a table from its file's content; `show`, `also` and `ours` at the top hold for every column."""
    shared: TomlTable = {key: content.pop(key) for key in ("show", "also") if key in content}
    shared |= {"ours": content.get("ours", False)}
    made = [TableColumn(**{**shared, **entry}) for entry in columns]
    places = [(column.name, value) for column in made if not column.ours for value in column.show]
    own: TomlTable = {key: tuple(value) if isinstance(value, list) else value for key, value in content.items()}
    return Paper(
        name,
        columns=made,
        rows=[make_row(places, **entry) for entry in rows],
        factors={value: float(text) for value, text in (factors or {}).items()},
        **own,
    )


def make_row(places: Sequence[NumberPlace], published: Sequence[object] | None = None, **entry: Any) -> TableRow:
    """Return a row with its published numbers, which stand in the order of `places`."""
    texts = [NOT_PRINTED] * len(places) if published is None else map(str, published)
    numbers = {at: PublishedNumber(text) for at, text in zip(places, texts, strict=True) if text != NOT_PRINTED}
    return TableRow(**entry, published=numbers)


def narrow_table(paper: Paper, rows: str | None, columns: str | None) -> Paper:
    """Return a table with some rows (by label or method) and columns, separated by commas; None keeps all."""
    kept = (
        select_entries(paper.rows, rows, "row", "label", "method"),
        select_entries(paper.columns, columns, "column", "name"),
    )
    return replace(paper, rows=kept[0], columns=kept[1])


def select_entries(entries: Sequence[Any], wanted: str | None, kind: str, *keys: str) -> list[Any]:
    """Return the entries of these names, in any case of letters; the first key under which a name is found counts."""
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
    """Return a label as the name of a folder."""
    return re.sub(r"[^a-z0-9.+]+", "-", label.lower()).strip("-")


def tsne_file(representation: str) -> str:
    """Return the name of the file of a representation's points, beside a run's own files."""
    return f"{PLANES}{representation}.csv"
