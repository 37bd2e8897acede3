"""The common form of several owners' samples, and an owner's own samples converted to it.

Silos agree on a schema before the first round; clients that join a finished run use that of the run.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from partwise.data.room import check_room
from partwise.data.source import Federation, Source
from partwise.data.transforms import TableTransform, TextTransform, row_tensor, with_rows
from partwise.data.vocabulary import in_tokens_of
from partwise.errors import ConfigError
from partwise.tasks import Labels, Numbers, Task
from partwise.tasks.places import NONE


@dataclass(frozen=True)
class Schema:
    """The common form of the clients of a run: their names, features and classes, and how features are scaled."""

    names: tuple[str, ...]  # of all clients, in the order of their numbers
    classes: int  # or bins, where labels are no classes
    class_names: tuple[str, ...]
    table: TableTransform | None  # None: the data are no tables with features
    text: TextTransform | None  # None: no column is a text
    centre: tuple[float, ...]
    scale: tuple[float, ...]
    model: str  # the network that belongs to the data
    own_task: Task | None = None  # what a label is, and how it is standardised; None: as it comes


def fit_to_schema(source: Source, schema: Schema) -> Source:
    """Return samples with the features and labels of a schema, in its order; other features are left out."""
    source = source if schema.text is None else in_tokens_of(source, schema.text)
    x = source.x
    if schema.table is not None and source.feature_names != schema.table.features:
        rows, features = row_tensor(x), schema.table.features
        check_room("the agreed columns", len(rows) * len(features) * rows.element_size())
        place = {name: number for number, name in enumerate(source.feature_names)}
        columns = [rows[:, place[name]] if name in place else torch.zeros_like(rows[:, 0]) for name in features]
        x = with_rows(x, torch.stack(columns, 1))
    return replace(
        source,
        x=x,
        y=fit_labels(source, schema),
        classes=schema.classes,
        class_names=schema.class_names,
        table=schema.table,
        centre=schema.centre,
        scale=schema.scale,
        model=schema.model,
        own_task=schema.own_task or source.own_task,
    )


def fit_labels(source: Source, schema: Schema) -> Tensor:
    """Return labels by a schema's names in its order, and standardised as it says where they are numbers."""
    task, y = schema.own_task, source.y
    own, names = (source.class_names, schema.class_names) if task is None else (source.task.names, task.names)
    if isinstance(task, Numbers | Labels):
        y = y[:, [own.index(name) for name in names]]
        return task.standardised(y) if isinstance(task, Numbers) else y
    if not names or own == names[: len(own)]:
        return y
    place = {name: number for number, name in enumerate(names)}
    numbers = torch.tensor([*(place.get(name, NONE) for name in own), NONE])  # a place without a class keeps none
    return numbers[y]


def part_of(federation: Federation, schema: Schema, owner: str, fill: bool = False) -> Federation:
    """Return an owner's clients among all of a schema: the others have no samples here.

    With `fill`, NaN is replaced with the mean of its feature.
    """
    source = fit_to_schema(federation.source, schema)
    if fill and source.standardise:
        x = row_tensor(source.x)
        mean = torch.tensor(schema.centre, dtype=x.dtype).view(-1, *[1] * (x.ndim - 2))
        source = replace(source, x=with_rows(source.x, torch.where(x.isnan(), mean, x)))
    own = {name: number for number, name in enumerate(federation.names)}
    missing = [name for name in own if name not in schema.names]
    if missing:
        raise ConfigError(f"the server does not know the client '{missing[0]}' of {owner}")
    nobody = torch.arange(0)

    def spread(sets: list[Tensor]) -> list[Tensor]:
        return [sets[own[name]] if name in own else nobody for name in schema.names]

    train, test, validation = map(spread, (federation.train, federation.test, federation.validation))
    return Federation(
        source,
        train,
        test,
        torch.cat(test).sort().values,
        validation,
        federation.rule,
        schema.names,
        holds="some",
    )
