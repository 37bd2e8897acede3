"""The agreement before the first round: participants, labels, features, and their standardisation.

Silos tell names and numbers of samples, and moments of their training samples where features, or labels that are
numbers, are standardised; nothing finer leaves them. A silo whose columns or classes do not fit is told which.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from partwise.data.checks import other_columns
from partwise.data.schema import Schema
from partwise.data.source import Federation, Source
from partwise.data.standardise import centre_and_scale, check_columns_known, merged
from partwise.data.transforms import TEXT, TableTransform
from partwise.errors import ConfigError, DataError, short
from partwise.records.messages import Agreed, Described, Moments
from partwise.streams import torch_stream
from partwise.tasks import TASKS, Classes, Labels, Numbers, Places, Task

MOST_SAMPLES, MOST_CLASSES = 10**8, 10**4  # of a client: a larger number is made up
MOST_FEATURES, MOST_TEXTS = 10**4, 10**3  # columns of a table, of all silos together; texts of one of them
MOST_TOKENS = 10**6  # different ones of texts
MOST_NUMBERS = 2**22  # of a sample: 2048 x 2048 in grey
LARGEST_CELL = 3.5e38  # of a cell, which is a float32
STAND_IN_SAMPLES = 16  # samples of a server that has none


def agree(joined: Mapping[str, Described]) -> Agreed:
    """Return what follows from what all nodes said; one that does not fit the others is refused by its name."""
    for node, own in joined.items():
        check_described(node, own)
    usual = {key: Counter(repr(getattr(own, key)) for own in joined.values()).most_common(1)[0][0] for key in ALIKE}
    for node, own in joined.items():
        for key, title in ALIKE.items():
            value = getattr(own, key)
            if repr(value) != usual[key] and not (key == "shape" and own.features):
                raise DataError(f"{node}: {title} {value}, but those of most are {usual[key]}")
    columns = agreed_columns(joined)
    features = agreed_features(joined, columns)
    names = [name for own in joined.values() for name in own.names]
    twice = [name for name, number in Counter(names).items() if number > 1]
    if twice:
        raise ConfigError(f"two nodes host the client '{twice[0]}'; each needs a name of its own")
    order = sorted(names, key=(lambda name: int(name)) if all(map(str.isdecimal, names)) else str)
    host = {name: node for node, own in joined.items() for name in own.names}
    sizes = {name: size for own in joined.values() for name, size in zip(own.names, own.sizes, strict=True)}
    first = next(iter(joined.values()))
    class_names = agreed_label_columns(joined) if first.task in OF_COLUMNS else agreed_classes(joined)
    return Agreed(
        names=order,
        hosts=[host[name] for name in order],
        sizes=[sizes[name] for name in order],
        shape=[len(features), *first.shape[1:]] if features else list(first.shape),
        task=first.task,
        places=list(first.places),
        classes=len(class_names) or max(own.classes for own in joined.values()),
        class_names=class_names,
        columns=columns,
        features=features,
        whole=first.whole,
        standardise=first.standardise,
        centre=list(first.centre),
        scale=list(first.scale),
        white=first.white,
        data=first.data if len({own.data for own in joined.values()}) == 1 else "the silos' own data",
        model=first.model,
        tokens=first.tokens,
        text=first.text,
    )


def check_described(node: str, own: Described) -> None:
    """Refuse a description that no data have: everybody's networks are made after it."""
    for key in ("names", "class_names", "columns", "features"):
        if len(set(getattr(own, key))) < len(getattr(own, key)):
            raise DataError(f"{node}: tells some {key} twice")
    triples = all(len(sizes) == 3 for sizes in own.sizes)
    if not triples or len(own.sizes) != len(own.names) or not all_within(0, MOST_SAMPLES, *chain(*own.sizes)):
        raise DataError(f"{node}: tells no numbers of samples")
    if not own.names or not own.shape or (own.features and len(own.features) != own.shape[0]):
        raise DataError(f"{node}: has clients {own.names}, samples {own.shape} and {len(own.features)} features")
    if not all(columns_of(own.features, own.columns)):
        raise DataError(f"{node}: tells features of no column")
    if not all_within(1, MOST_SAMPLES, *own.shape) or math.prod(own.shape) > MOST_NUMBERS:
        raise DataError(f"{node}: samples of the shape {own.shape}; a sample has at most {MOST_NUMBERS:,} numbers")
    if not all_within(1, MOST_CLASSES, own.classes) or (own.class_names and len(own.class_names) != own.classes):
        raise DataError(f"{node}: has {own.classes} classes, and {len(own.class_names)} names of them")
    if own.task not in TASKS or (own.task in OF_COLUMNS and not own.class_names):
        raise DataError(f"{node}: labels of the task '{short(own.task)}' without names of their columns")
    if bool(own.places) != (own.task == Places.kind) or not all_within(
        1, MOST_NUMBERS, *own.places, math.prod(own.places)
    ):
        raise DataError(f"{node}: labels of the shape {own.places}; a label of places has at most {MOST_NUMBERS:,}")
    if not 0 <= own.tokens <= MOST_TOKENS or (own.tokens and (own.features or len(own.shape) > 1)):
        raise DataError(f"{node}: has texts of {own.tokens} different tokens, {own.shape} in each")
    if not all(map(math.isfinite, (*own.centre, *own.scale, own.white))):
        raise DataError(f"{node}: standardises or scales by numbers that are not finite")


def all_within(least: int, most: int, *numbers: int) -> bool:
    """Return whether all numbers are within limits."""
    return all(least <= number <= most for number in numbers)


OF_COLUMNS = (Labels.kind, Numbers.kind)  # tasks whose labels are columns with names
ALIKE = {
    "task": "labels that are",
    "places": "labels of the shape",
    "shape": "samples of the shape",
    "whole": "samples that are bytes:",
    "standardise": "features that are standardised:",
    "white": "images whose brightest value is",
    "tokens": "texts whose number of different tokens is",
    "text": "texts in tokens with the SHA-256",
}


def agreed_classes(joined: Mapping[str, Described]) -> list[str]:
    """Return the classes of all together, in order; nodes may lack some of them."""
    named = {node: set(own.class_names) for node, own in joined.items()}
    if not any(named.values()):
        return []
    for node, own in named.items():
        others = set().union(*(each for other, each in named.items() if other != node))
        if not own:
            raise DataError(f"{node}: its classes have no names, those of others have: {', '.join(sorted(others))}")
        if len(named) > 1 and not own & others:
            raise DataError(
                f"{node}: has the classes {', '.join(sorted(own))}, and no other silo has any of them; they have "
                f"{', '.join(sorted(others))}"
            )
    first = next(iter(joined.values())).class_names
    return first if all(set(first) == own for own in named.values()) else sorted(set().union(*named.values()))


def agreed_label_columns(joined: Mapping[str, Described]) -> list[str]:
    """Return the columns of labels of all, which must be the same everywhere, in the order of the first silo."""
    most = Counter(frozenset(own.class_names) for own in joined.values()).most_common(1)[0][0]
    for node, own in joined.items():
        if set(own.class_names) != most:
            raise DataError(
                f"{node}: its label columns are {', '.join(sorted(own.class_names))}, but those of most are "
                f"{', '.join(sorted(most))}"
            )
    return list(next(iter(joined.values())).class_names)


def check_width(features: Collection[str], columns: Collection[str], who: str = "") -> None:
    """Refuse features that no table has: all silos' networks are as wide as all of them together."""
    if max(len(features), len(columns)) > MOST_FEATURES:
        more = max(len(features), len(columns))
        raise DataError(f"{who}{more:,} features; a table has at most {MOST_FEATURES:,}")
    texts = Counter(columns_of(features, columns))
    if texts and texts.most_common(1)[0][1] > MOST_TEXTS:
        [(column, number)] = texts.most_common(1)
        raise DataError(f"{who}column '{column}' has {number:,} texts; a column has at most {MOST_TEXTS:,}")


def columns_of(features: Collection[str], columns: Collection[str]) -> list[str]:
    """Return the column of each feature, such as `sex` for `sex=f`; empty if the feature has no column."""
    known, lengths = set(columns), sorted({len(column) for column in columns}, reverse=True)
    found = []
    for name in features:
        fits = (length for length in lengths if name[length : length + 1] in ("", TEXT) and name[:length] in known)
        found.append(name[: next(fits, 0)])
    return found


def agreed_columns(joined: Mapping[str, Described]) -> list[str]:
    """Return the columns of all, which must be the same everywhere, in the order of the first silo."""
    own = {node: frozenset(each.columns) for node, each in joined.items()}
    most = Counter(own.values()).most_common(1)[0][0]
    for node, columns in own.items():
        if wrong := other_columns(columns, most):
            raise DataError(f"{node}: {wrong}; all silos need the columns that most have")
        check_width(joined[node].features, columns, f"{node}: ")
    return list(next(iter(joined.values())).columns)


def agreed_features(joined: Mapping[str, Described], columns: list[str]) -> list[str]:
    """Return the features of all together; a silo may lack texts of a column, but of each some silo must tell."""
    every = dict.fromkeys(name for own in joined.values() for name in own.features)
    check_width(every, columns, "all silos together: ")
    known = dict(zip(every, columns_of(every, columns), strict=True))
    if unknown := sorted(set(columns) - set(known.values())):
        raise DataError(f"no silo tells anything of column '{unknown[0]}'; all silos must drop it: [data] drop")
    mixed = [column for name, column in known.items() if name != column and column in known]
    if mixed:
        raise DataError(f"column '{mixed[0]}' holds numbers in some silos, and texts in others")
    first = next(iter(joined.values())).features
    if all(own.features == first for own in joined.values()):
        return list(first)
    place = {column: number for number, column in enumerate(columns)}
    return sorted(every, key=lambda name: (place[known[name]], name))


def schema_of(agreed: Agreed, bins: tuple[float, ...] | None = None) -> Schema:
    """Return what all clients' samples have in common; refuse one that is wider than any table.

    `bins` are the edges of the run's bins, where labels are numbers.
    """
    check_width(agreed.features, agreed.columns)
    task = task_of(agreed, bins)
    columns = columns_of(agreed.features, agreed.columns)
    return Schema(
        tuple(agreed.names),
        agreed.classes if task is None else task.bins,
        () if task else tuple(agreed.class_names),
        TableTransform(tuple(agreed.features), tuple(columns)) if agreed.features else None,
        None,
        tuple(agreed.centre),
        tuple(agreed.scale),
        agreed.model,
        task,
    )


def task_of(agreed: Agreed, bins: tuple[float, ...] | None) -> Task | None:
    """Return what a label is; None: one of the classes."""
    if agreed.task == Classes.kind:
        return None
    if agreed.task not in TASKS or agreed.classes > MOST_CLASSES:
        raise DataError(f"no labels are {agreed.classes:,} of the task '{short(agreed.task)}'")
    task = TASKS[agreed.task].of_names(tuple(agreed.class_names) or tuple(map(str, range(agreed.classes))))
    if bins is not None:
        task = task.with_edges(bins)
    if isinstance(task, Numbers) and agreed.label_scale:
        centre, scale = (torch.tensor(own, dtype=torch.float64) for own in (agreed.label_centre, agreed.label_scale))
        task = task.standardised_by(centre, scale)
    return task


# ---- on the server


def with_standardisation(agreed: Agreed, told: Mapping[str, Moments]) -> Agreed:
    """Return the agreement with centre and scale of what is standardised, from the moments that all nodes told."""
    if agreed.standardise:
        total = merged_moments({node: own.moments for node, own in told.items()}, agreed.hosts, agreed.shape[0])
        columns, remedy = columns_of(agreed.features, agreed.columns), "all silos must drop it: [data] drop"
        check_columns_known(total, agreed.features, columns, "no silo tells anything of column", remedy)
        centre, scale = centre_and_scale(total)
        agreed = replace(agreed, centre=centre.tolist(), scale=scale.tolist())
    if agreed.task == Numbers.kind:
        total = merged_moments({node: own.labels for node, own in told.items()}, agreed.hosts, agreed.classes)
        names, remedy = agreed.class_names, "silos need more training samples with that label"
        check_columns_known(total, names, names, "no silo tells anything of label", remedy)
        centre, scale = centre_and_scale(total)
        agreed = replace(agreed, label_centre=centre.tolist(), label_scale=scale.tolist())
    return agreed


def merged_moments(told: Mapping[str, Tensor], hosts: Collection[str], width: int) -> Tensor:
    """Return the moments of all nodes together, (3, width), in the order of their first clients."""
    for node, own in told.items():
        right = own.shape == (3, width) and own.dtype == torch.float64
        if not right or not own.isfinite().all() or not can_be(*own):
            raise DataError(f"{node}: its moments are not a count, a mean and squares for each feature and number")
    return merged(told[node] for node in dict.fromkeys(hosts))


def can_be(count: Tensor, mean: Tensor, squares: Tensor) -> bool:
    """Return whether there can be samples with these moments, so that those of all together are finite."""
    counts = (count == 0) | ((count >= 1) & (count <= MOST_SAMPLES * MOST_NUMBERS))
    near = (squares >= 0) & (squares <= count * (2 * LARGEST_CELL) ** 2)
    return bool((counts & near & ((mean == 0) | ((count > 0) & (mean.abs() <= LARGEST_CELL)))).all())


def stand_in(agreed: Agreed, seed: int, bins: tuple[float, ...] | None = None) -> Federation:
    """Return what the server knows of all clients: how many samples they have. The samples themselves are made up.

    `bins` are as in `schema_of`.
    """
    schema, random = schema_of(agreed, bins), torch_stream(seed, "stand-ins")
    if agreed.whole:
        x = torch.randint(0, int(agreed.white) + 1, (STAND_IN_SAMPLES, *agreed.shape), generator=random).to(torch.uint8)
    elif agreed.tokens:
        x = torch.randint(0, agreed.tokens, (STAND_IN_SAMPLES, *agreed.shape), generator=random)
    else:
        x = torch.randn(STAND_IN_SAMPLES, *agreed.shape, generator=random)
    task = schema.own_task or Classes.numbered(agreed.classes)
    source = Source(
        agreed.data,
        x,
        task.stand_ins(STAND_IN_SAMPLES, agreed.places),
        schema.classes,
        STAND_IN_SAMPLES,
        schema.centre,
        schema.scale,
        schema.model,
        class_names=schema.class_names,
        table=schema.table,
        white=agreed.white,
        own_task=schema.own_task,
        tokens=agreed.tokens or None,
    )
    half, quarter = STAND_IN_SAMPLES // 2, STAND_IN_SAMPLES // 4
    firsts = torch.tensor([0, half, half + quarter])  # one sample as often as is said, which takes no memory
    train, test, validation = ([firsts[n].expand(sizes[n]) for sizes in agreed.sizes] for n in range(3))
    tested = torch.arange(half, half + quarter)
    nodes = len(set(agreed.hosts))
    return Federation(source, train, test, tested, validation, f"{nodes} nodes", tuple(agreed.names), holds="none")
