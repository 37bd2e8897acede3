"""What the labels of a table's columns or of an array are: classes, or the labels of another task."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partwise.data.readers.frames import NUMBER_KINDS, DataTable
from partwise.data.readers.labels import CLASS_LIMIT, as_classes
from partwise.data.reading import TaskName
from partwise.errors import DataError
from partwise.tasks import Classes, Labels, Numbers, Places, Task

NUMBERED = 100  # more different numbers in a table's column are no classes, but a quantity


class LabelFields(TypedDict, total=False):
    """Fields of a source."""

    y: Tensor
    classes: int
    class_names: tuple[str, ...]
    own_task: Task | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class LabelColumn:
    """The labels of all samples, and what they are."""

    y: Tensor
    task: Task
    why: str = ""  # the task was chosen by the labels

    def fields(self) -> LabelFields:
        """Return the fields of a source that follow from the labels."""
        notes = (self.why,) if self.why else ()
        shared = LabelFields(y=self.y, classes=self.task.bins, notes=notes)
        if isinstance(self.task, Classes):
            return {**shared, "class_names": self.task.names}
        return {**shared, "own_task": self.task}


def of_table(table: DataTable, columns: Sequence[str], wanted: TaskName) -> LabelColumn:
    """Return the labels in some columns of a table; refuse columns that do not fit each other or the task."""
    numeric = {column: table.kind(column) in NUMBER_KINDS for column in columns}
    where = " and ".join(map(repr, columns))
    if len({*columns}) < len(columns):
        raise DataError(f"{table.where}: label columns {where}; name each once")
    if wanted == "places":
        raise DataError(f"{table.where}: a table has no places; --task classes, labels or numbers fits its columns")
    if wanted == "auto":
        wanted, why = guessed(table, columns, numeric)
    else:
        why = ""
    if wanted == "classes":
        if len(columns) > 1:
            raise DataError(f"{table.where}: {len(columns)} label columns are no class; use --task labels or numbers")
        y, names = as_classes(table.filled(columns[0]), table.column(columns[0]), table.place)
        return LabelColumn(y, Classes(names), why=why)
    for column in columns:
        if not numeric[column]:
            raise DataError(f"{table.column(column)}: {table.kind(column)}; --task {wanted} takes numbers alone")
    y = torch.from_numpy(np.stack([table.numbers(column) for column in columns], 1))
    task = Labels.of(y, tuple(columns)) if wanted == "labels" else Numbers.of(y, tuple(columns))
    problem = task.check(y)
    if problem:
        raise DataError(f"{table.where}: {where}: {problem}")
    return LabelColumn(y, task, why=why)


def guessed(table: DataTable, columns: Sequence[str], numeric: dict[str, bool]) -> tuple[TaskName, str]:
    """Return the task that the columns look like, and a note that says so; none where nothing had to be chosen."""
    if len(columns) > 1:
        if not all(numeric.values()):
            odd = next(column for column in columns if not numeric[column])
            raise DataError(
                f"{table.column(odd)}: {table.kind(odd)}; several label columns must all hold numbers (--task numbers) "
                "or 0 and 1 (--task labels)"
            )
        known = np.concatenate([table.numbers(column) for column in columns])
        kind: TaskName = "labels" if np.isin(known[~np.isnan(known)], (0, 1)).all() else "numbers"
        return kind, f"task: {kind}, because the label columns hold {'0 and 1' if kind == 'labels' else 'numbers'}"
    [column] = columns
    different = table.different(column)
    if not numeric[column]:
        return "classes", ""
    if holds_fractions(table.numbers(column)):
        return "numbers", f"task: numbers, because '{column}' holds fractions"
    if different > NUMBERED:
        return "numbers", f"task: numbers, because '{column}' has {different:,} different numbers"
    if different <= 2:
        return "classes", ""
    return "classes", f"task: classes, the {different} whole numbers of '{column}'; --task numbers for a quantity"


def holds_fractions(values: NDArray[Any]) -> bool:
    """Return whether some of the known numbers are not whole."""
    known = values[~np.isnan(values)]
    return bool((known != np.floor(known)).any())


def of_array(values: NDArray[Any], wanted: TaskName, where: str, names: Sequence[str] | None) -> LabelColumn | None:
    """Return the labels of an array that are no classes; None where they are."""
    why = ""
    if wanted == "auto":
        if values.ndim > 1:
            whole = values.dtype.kind in "iu"
            binary = not whole and np.isin(values[~np.isnan(values)], (0, 1)).all()
            wanted = "places" if whole else "labels" if binary and values.ndim == 2 else "numbers"
            why = f"task: {wanted}, because y is {values.dtype} of shape {values.shape}"
        elif values.dtype.kind == "f" and holds_fractions(values):
            wanted, why = "numbers", "task: numbers, because y holds fractions"
        else:
            return None
    shape = f"{values.dtype} of shape {values.shape}"
    if 0 in values.shape[1:]:
        raise DataError(f"{where}: y holds no label, it is {shape}")
    if wanted == "classes":
        if values.ndim > 1:
            raise DataError(f"{where}: --task classes takes one class a sample, and y is {shape}; use another task")
        return None
    if values.dtype.kind not in "biuf":
        raise DataError(f"{where}: --task {wanted} takes numbers, and y holds texts; use --task classes")
    if wanted == "places":
        if values.ndim < 2 or values.dtype.kind == "f":
            raise DataError(f"{where}: --task places takes whole numbers (samples, places...), and y is {shape}")
        y = torch.from_numpy(values.astype(np.int64))
        classes = int(y.max()) + 1 if names is None else len(names)
        if classes > CLASS_LIMIT:
            raise DataError(f"{where}: a place has label {classes - 1:,}; at most {CLASS_LIMIT:,} classes are allowed")
        return checked_labels(y, Places(tuple(names or map(str, range(classes)))), where, why)
    columns = values[:, None] if values.ndim == 1 else values
    if columns.ndim != 2:
        raise DataError(f"{where}: --task {wanted} takes y of shape (samples, {wanted}), got {values.shape}")
    y = torch.from_numpy(columns.astype(np.float64))
    called = tuple(names or ("y",) if y.shape[1] == 1 else names or (f"y{n}" for n in range(y.shape[1])))
    task = Labels.of(y, called) if wanted == "labels" else Numbers.of(y, called)
    return checked_labels(y, task, where, why)


def checked_labels(y: Tensor, task: Task, where: str, why: str) -> LabelColumn:
    """Return labels that fit their task; refuse others."""
    problem = task.check(y)
    if problem:
        raise DataError(f"{where}: {problem}")
    return LabelColumn(y, task, why=why)
