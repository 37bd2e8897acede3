"""What all must agree on before the first round: who takes part, classes, features, and how they are standardised.

Silos tell names and numbers of samples, and moments of their training samples where features are standardised; nothing
finer leaves them. A silo whose columns or classes do not fit is told which.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from partwise.data.checks import other_columns
from partwise.data.schema import Schema
from partwise.data.source import Federation, Source
from partwise.data.standardise import check_known, merged
from partwise.data.transforms import TEXT, TableTransform
from partwise.errors import ConfigError, DataError
from partwise.streams import torch_stream

MOST_SAMPLES, MOST_CLASSES = 10**8, 10**4  # of a client: a larger number is made up
MOST_FEATURES, MOST_TEXTS = 10**4, 10**3  # columns of a table, of all silos together; texts of one of them
MOST_NUMBERS = 2**22  # of a sample: 2048 x 2048 in grey
LARGEST = 3.5e38  # of a cell, which is a float32
STAND_INS = 16  # samples of a server that has none


@dataclass(frozen=True)
class Agreed:
    """What everybody knows."""

    names: list[str]  # of all clients, in the order of their numbers
    hosts: list[str]  # the node of each
    sizes: list[list[int]]  # of each: training, test and validation samples
    shape: list[int]  # of a sample
    classes: int
    class_names: list[str]
    columns: list[str]
    features: list[str]
    whole: bool  # samples are whole numbers, as the bytes of images
    standardise: bool
    centre: list[float]
    scale: list[float]
    white: float
    data: str  # what the data are called
    model: str  # the network that belongs to them


def agree(told: Mapping[str, Mapping[str, Any]]) -> Agreed:
    """What follows from what all nodes told; one that does not fit the others is refused by its name."""
    for node, each in told.items():
        check_told(node, each)
    usual = {key: Counter(repr(each[key]) for each in told.values()).most_common(1)[0][0] for key in ALIKE}
    for node, each in told.items():
        for key, title in ALIKE.items():
            if repr(each[key]) != usual[key] and not (key == "shape" and each["features"]):
                raise DataError(f"{node}: {title} {each[key]}, but those of most are {usual[key]}")
    columns = agreed_columns(told)
    features = agreed_features(told, columns)
    names = [name for each in told.values() for name in each["names"]]
    twice = [name for name, number in Counter(names).items() if number > 1]
    if twice:
        raise ConfigError(f"two nodes host the client '{twice[0]}'; each needs a name of its own")
    order = sorted(names, key=(lambda name: int(name)) if all(map(str.isdecimal, names)) else str)
    host = {name: node for node, each in told.items() for name in each["names"]}
    sizes = {name: size for each in told.values() for name, size in zip(each["names"], each["sizes"], strict=True)}
    first = next(iter(told.values()))
    class_names = agreed_classes(told)
    return Agreed(
        order,
        [host[name] for name in order],
        [sizes[name] for name in order],
        [len(features), *first["shape"][1:]] if features else list(first["shape"]),
        len(class_names) or max(each["classes"] for each in told.values()),
        class_names,
        columns,
        features,
        first["whole"],
        first["standardise"],
        list(first["centre"]),
        list(first["scale"]),
        first["white"],
        first["data"] if len({each["data"] for each in told.values()}) == 1 else "the silos' own data",
        first["model"],
    )


def check_told(node: str, each: Mapping[str, Any]) -> None:
    """Refuse what is no description of data: everybody's networks are made after it."""
    size, text, number = Whole(MOST_SAMPLES), is_text, is_number
    lists: dict[str, Callable[[Any], bool]] = dict.fromkeys(("names", "class_names", "columns", "features"), text)
    lists |= {"shape": Whole(MOST_SAMPLES, 1), "centre": number, "scale": number}
    for key, fits in lists.items():
        if not isinstance(each.get(key), list) or not all(map(fits, each[key])):
            raise DataError(f"{node}: tells no {key} of its data")
    for key in ("names", "class_names", "columns", "features"):
        if len(set(each[key])) < len(each[key]):
            raise DataError(f"{node}: tells some {key} twice")
    sizes, features, classes = each.get("sizes", ()), each["features"], each.get("classes")
    triples = isinstance(sizes, list) and all(isinstance(own, list) and len(own) == 3 for own in sizes)
    if not triples or len(sizes) != len(each["names"]) or not all(size(n) for own in sizes for n in own):
        raise DataError(f"{node}: tells no numbers of samples")
    if not each["names"] or not each["shape"] or (features and len(features) != each["shape"][0]):
        raise DataError(f"{node}: has clients {each['names']}, samples {each['shape']} and {len(features)} features")
    if not all(columns_of(each["features"], each["columns"])):
        raise DataError(f"{node}: tells features of no column")
    if math.prod(each["shape"]) > MOST_NUMBERS:
        raise DataError(f"{node}: samples of the shape {each['shape']}; a sample has at most {MOST_NUMBERS:,} numbers")
    if not Whole(MOST_CLASSES, 1)(classes) or (each["class_names"] and len(each["class_names"]) != classes):
        raise DataError(f"{node}: has {classes} classes, and {len(each['class_names'])} names of them")
    single = {"whole": is_flag, "standardise": is_flag, "white": number, "data": text, "model": text}
    for key, fits in single.items():
        if not fits(each.get(key)):
            raise DataError(f"{node}: {key} = {each.get(key)!r}")


@dataclass(frozen=True)
class Whole:
    """Whether something is a whole number within limits."""

    most: int
    least: int = 0

    def __call__(self, value: Any) -> bool:
        return type(value) is int and self.least <= value <= self.most


def is_text(value: Any) -> bool:
    return type(value) is str


def is_flag(value: Any) -> bool:
    return type(value) is bool


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


ALIKE = {
    "shape": "samples of the shape",
    "whole": "samples that are bytes:",
    "standardise": "features that are standardised:",
    "white": "images whose brightest value is",
}


def agreed_classes(told: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The classes of all together, in order; nodes may lack some of them."""
    named = {node: set(each["class_names"]) for node, each in told.items()}
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
    first = next(iter(told.values()))["class_names"]
    return first if all(set(first) == own for own in named.values()) else sorted(set().union(*named.values()))


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


def agreed_columns(told: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the columns of all, which must be the same everywhere, in the order of the first silo."""
    own = {node: frozenset(each["columns"]) for node, each in told.items()}
    most = Counter(own.values()).most_common(1)[0][0]
    for node, columns in own.items():
        if wrong := other_columns(columns, most):
            raise DataError(f"{node}: {wrong}; all silos need the columns that most have")
        check_width(told[node]["features"], columns, f"{node}: ")
    return list(next(iter(told.values()))["columns"])


def agreed_features(told: Mapping[str, Mapping[str, Any]], columns: list[str]) -> list[str]:
    """Return the features of all together; a silo may lack texts of a column, but of each some silo must tell."""
    every = dict.fromkeys(name for each in told.values() for name in each["features"])
    check_width(every, columns, "all silos together: ")
    known = dict(zip(every, columns_of(every, columns), strict=True))
    if unknown := sorted(set(columns) - set(known.values())):
        raise DataError(f"no silo tells anything of column '{unknown[0]}'; all silos must drop it: [data] drop")
    mixed = [column for name, column in known.items() if name != column and column in known]
    if mixed:
        raise DataError(f"column '{mixed[0]}' holds numbers in some silos, and texts in others")
    first = next(iter(told.values()))["features"]
    if all(list(each["features"]) == list(first) for each in told.values()):
        return list(first)
    place = {column: number for number, column in enumerate(columns)}
    return sorted(every, key=lambda name: (place[known[name]], name))


def schema_of(agreed: Agreed) -> Schema:
    """Return what all clients' samples have in common; refuse one that is wider than any table."""
    check_width(agreed.features, agreed.columns)
    columns = columns_of(agreed.features, agreed.columns)
    return Schema(
        tuple(agreed.names),
        agreed.classes,
        tuple(agreed.class_names),
        TableTransform(tuple(agreed.features), tuple(columns)) if agreed.features else None,
        tuple(agreed.centre),
        tuple(agreed.scale),
        agreed.model,
    )


# ---- on the server


def merged_moments(told: Mapping[str, Any], agreed: Agreed) -> Tensor:
    """(3, features) Return the moments of all nodes together, in the order of their first clients."""
    for node, own in told.items():
        right = isinstance(own, Tensor) and own.shape == (3, agreed.shape[0]) and own.dtype == torch.float64
        if not right or not own.isfinite().all() or not can_be(*own):
            raise DataError(f"{node}: its moments are not a count, a mean and squares for each feature")
    total = merged(told[node] for node in dict.fromkeys(agreed.hosts))
    columns, remedy = columns_of(agreed.features, agreed.columns), "all silos must drop it: [data] drop"
    check_known(total, agreed.features, columns, "no silo tells anything of column", remedy)
    return total


def can_be(count: Tensor, mean: Tensor, squares: Tensor) -> bool:
    """Whether there can be samples with these moments, so that those of all together are finite."""
    counts = (count == 0) | ((count >= 1) & (count <= MOST_SAMPLES * MOST_NUMBERS))
    near = (squares >= 0) & (squares <= count * (2 * LARGEST) ** 2)
    return bool((counts & near & ((mean == 0) | ((count > 0) & (mean.abs() <= LARGEST)))).all())


def stand_in(agreed: Agreed, seed: int) -> Federation:
    """What the server knows of all clients: how many samples they have. The samples themselves are made up."""
    random = torch_stream(seed, "stand-ins")
    if agreed.whole:
        x = torch.randint(0, int(agreed.white) + 1, (STAND_INS, *agreed.shape), generator=random).to(torch.uint8)
    else:
        x = torch.randn(STAND_INS, *agreed.shape, generator=random)
    y = torch.arange(STAND_INS) % agreed.classes
    source = Source(
        agreed.data,
        x,
        y,
        agreed.classes,
        STAND_INS,
        tuple(agreed.centre),
        tuple(agreed.scale),
        agreed.model,
        class_names=tuple(agreed.class_names),
        table=schema_of(agreed).table,
        white=agreed.white,
    )
    half, quarter = STAND_INS // 2, STAND_INS // 4
    firsts = torch.tensor([0, half, half + quarter])  # one sample as often as is said, which takes no memory
    train, test, validation = ([firsts[n].expand(sizes[n]) for sizes in agreed.sizes] for n in range(3))
    tested = torch.arange(half, half + quarter)
    nodes = len(set(agreed.hosts))
    return Federation(source, train, test, tested, validation, f"{nodes} nodes", tuple(agreed.names), holds="none")
