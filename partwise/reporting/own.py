"""What a user's own files hold, as text and for programs: what could be predicted, and who the clients could be."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from partwise.data.readers import client_tables, tables
from partwise.data.readers.frames import NUMBER_KINDS, TEXT_KINDS, DataTable
from partwise.data.readers.places import Root
from partwise.data.readers.task_labels import NUMBERED, guessed
from partwise.data.reading import Reading
from partwise.data.sources import is_table, load, own_path
from partwise.published import published
from partwise.reporting.data import section
from partwise.tasks.places import NONE
from partwise.trees import Shape, shape_text

FEWEST_ROWS_PER_CLIENT = 2  # rows of a client, on average: a column with hardly any value twice names rows, not clients


@dataclass(frozen=True)
class SampleFacts:
    """Images and arrays, whose labels are known."""

    name: str
    samples: int
    test_samples: int
    shape: Shape
    task: str  # what a label is
    classes: Sequence[str]  # or the names of the labels or numbers
    unknown: int  # labels
    clients: Sequence[str]
    example: str


@dataclass(frozen=True)
class ColumnFacts:
    """A column of a table."""

    name: str
    kind: str  # numbers, texts, ...
    different: int
    empty: int
    could_be: Sequence[str]  # label, clients
    task: str  # as a label, with --task auto; empty where it could be none


@dataclass(frozen=True)
class TableFacts:
    """A table, and the possible roles of each column."""

    name: str
    samples: int
    columns: Sequence[ColumnFacts]
    empty: int  # cells
    example: str


def own_data_facts(name: str, root: Root = None) -> SampleFacts | TableFacts:
    """Return the facts that `partwise data FILE --json` prints."""
    if name.startswith("hf:") or name in published("data set"):
        return sample_facts(name, root)
    path = own_path(name, root)
    if path.is_dir() and client_tables.table_files(path):
        return table_facts(name, client_tables.joined_folder(path, Reading()), divided_by=tables.CLIENT_COLUMN)
    if is_table(path):
        return table_facts(name, tables.opened_table(path, Reading()))
    return sample_facts(name, root)


def sample_facts(name: str, root: Root) -> SampleFacts:
    """Return the facts of images or arrays."""
    source = load(name, root)
    clients = next((column.names for column in source.columns.values()), ())
    return SampleFacts(
        name=name,
        samples=len(source.y),
        test_samples=len(source.y) - source.train,
        shape=source.shape,
        task=source.task.kind,
        classes=list(source.task.names if source.own_task else source.class_names),
        unknown=int((source.y.isnan() if source.y.is_floating_point() else source.y == NONE).sum()),
        clients=list(clients),
        example=f"partwise run fedper --data {name}",
    )


def table_facts(name: str, table: DataTable, divided_by: str | None = None) -> TableFacts:
    """Return the facts of a table."""
    described = [column_facts(table, each, divided_by) for each in table.frame.columns]
    labels = [each.name for each in sorted(described, key=lambda each: each.task == "classes") if each.task]
    label = "label" if "label" in labels else labels[-1] if labels else "COLUMN"
    texts = [each for each in described if "clients" in each.could_be and each.kind == "texts"]
    clients = max((each for each in texts if each.name != label), key=lambda each: each.different, default=None)
    rule = f" --partition column:{clients.name}" if clients and divided_by is None else ""
    return TableFacts(
        name=name,
        samples=len(table.frame),
        columns=described,
        empty=sum(each.empty for each in described),
        example=f"partwise run fedper --data {name} --label {label}{rule}",
    )


def column_facts(table: DataTable, name: str, divided_by: str | None) -> ColumnFacts:
    """Return the facts of a column: numbers or texts, how many, and their possible roles."""
    values = table.frame[name]
    kind, different, empty = table.kind(name), table.different(name), int(values.isna().sum())
    kind = "numbers" if kind in NUMBER_KINDS else "texts" if kind in TEXT_KINDS else kind
    whole = kind == "texts" or (kind == "numbers" and not (values.dropna().to_numpy(np.float64) % 1).any())
    task = task_of_column(table, name) if different >= 2 and name != divided_by else ""
    could_be = ["label"] if task else ["one of several labels"] if empty and is_binary(table, name) else []
    if whole and not empty and 2 <= different <= len(values) / FEWEST_ROWS_PER_CLIENT and divided_by in (None, name):
        could_be.append("clients")
    return ColumnFacts(name, kind, different, empty, could_be, task)


def task_of_column(table: DataTable, name: str) -> str:
    """Return the task of a column as the label, with --task auto; empty where it could be none."""
    if table.kind(name) not in NUMBER_KINDS + TEXT_KINDS:
        return ""
    task, _ = guessed(table, [name], {name: table.kind(name) in NUMBER_KINDS})
    refused = task == "classes" and (table.different(name) > NUMBERED or table.frame[name].isna().any())
    return "" if refused else task


def is_binary(table: DataTable, name: str) -> bool:
    """Return whether the filled cells of a column are 0 and 1."""
    return table.kind(name) in NUMBER_KINDS and set(table.frame[name].dropna().unique()) == {0, 1}


def possible_roles(column: ColumnFacts) -> str:
    """Return what a column could be, and what a label of it is."""
    unknown = [f"{column.empty:,} unknown"] if column.empty else []
    about = {"label": [column.task, *unknown], "one of several labels": unknown}
    roles = [f"{role} ({', '.join(about[role])})" if role in about else role for role in column.could_be]
    return f"could be {' or '.join(roles)}" if roles else ""


def own_data_page(name: str, root: Root = None) -> str:
    """Return everything about a user's own data."""
    facts = own_data_facts(name, root)
    what = [("samples", f"{facts.samples:,}")]
    if isinstance(facts, TableFacts):
        what += [("columns", f"{len(facts.columns):,}"), ("empty cells", f"{facts.empty:,}")]
        rows = [
            (
                each.name,
                each.kind,
                f"{each.different:,} different",
                f"{each.empty:,} empty",
                possible_roles(each),
            )
            for each in facts.columns
        ]
        sections = [section("What it is", what), section("Columns", rows)]
    else:
        what += [("for testing", f"{facts.test_samples:,}")] if facts.test_samples else []
        what.append(("shape", shape_text(facts.shape)))
        several = "classes" if facts.task == "places" else facts.task
        what += [("task", facts.task)] if facts.task != "classes" else []
        what += [("unknown labels", f"{facts.unknown:,}")] if facts.unknown else []
        for key, names in ((several, facts.classes), ("clients", facts.clients)):
            what += [(key, f"{len(names):,}: {', '.join(names[:10])}")] if names else []
        sections = [section("What it is", what)]
    return "\n\n".join("\n".join(lines) for lines in [*sections, ["Example:", f"  {facts.example}"]])
