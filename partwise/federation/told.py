"""What a node tells about its data before the first round, and what must not leave it: rare values, and mistakes."""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from partwise.data.source import Federation, Source
from partwise.data.standardise import texts
from partwise.errors import ConfigError, DataError, PartwiseError, one_line
from partwise.federation.agreement import TEXT, Agreed
from partwise.federation.silo import Silo

log = logging.getLogger(__name__)


@contextmanager
def kept_here(silo: Silo, *, but: type[PartwiseError] | None = None) -> Iterator[None]:
    """Keep what is wrong with a silo's data in this node's own log, for it may quote a cell; `but` errors pass.

    Simulated clients have the run's data, which the server reads too.
    """
    try:
        yield
    except Exception as error:  # a file may raise anything in the library that reads it
        if silo.hosts is not None or type(error) is but:
            raise
        known = isinstance(error, PartwiseError)
        log.warning("the data of %s cannot be used: %s", silo.name, one_line(error), exc_info=not known)
        raise DataError(f"the data of {silo.name} cannot be used; the node's own log says why") from None


def describe(federation: Federation, few: int = 1, rare: int = 1, public: Collection[str] = ()) -> dict[str, Any]:
    """Return what a node tells about its data.

    It names all columns, and features and classes behind which there are enough training samples: `few` filled cells of
    a column, `rare` samples with a text or a class. `public` texts and classes are named however rare they are.
    """
    source = federation.source
    own = torch.cat(list(federation.train))
    features = told_features(source.x[own], source, few, rare, public)
    names, classes = told_classes(source, torch.bincount(source.y[own], minlength=source.classes), rare, public)
    if not classes or (source.feature_names and not features):
        raise DataError(f"every {'column' if classes else 'class'} has too few training samples to be told of")
    sets = zip(federation.train, federation.test, federation.validation, strict=True)
    return {
        "names": list(federation.names),
        "sizes": [[len(own) for own in each] for each in sets],
        "shape": [len(features), *source.x.shape[2:]] if features else list(source.x.shape[1:]),
        "classes": classes,
        "class_names": names,
        "columns": list(dict.fromkeys(source.feature_columns or source.feature_names)),
        "features": features,
        "whole": source.x.dtype == torch.uint8,
        "standardise": source.standardise,
        "centre": list(source.centre),
        "scale": list(source.scale),
        "white": source.white,
        "data": source.name,
        "model": source.model,
    }


def told_features(x: Tensor, source: Source, few: int, rare: int, public: Collection[str]) -> list[str]:
    """Return the features that are told of: columns of numbers that are filled often enough, and texts that many have.

    A column without a number is left to the others, who know whether it holds numbers or texts.
    """
    names = source.feature_names
    told = [bool(own.isfinite().sum() >= few) for own in x.unbind(1)] if names else []
    for column, features in texts(names, source.feature_columns).items():
        marks = x[:, features] == 1
        filled = max(1, int(marks.any(1).sum())) >= few
        for feature, have in zip(features, marks.sum(0).tolist(), strict=True):
            text = names[feature].removeprefix(f"{column}{TEXT}")
            told[feature] = text in public or (filled and max(1, have) >= rare)
    return [name for name, tell in zip(names, told, strict=True) if tell]


def told_classes(source: Source, counts: Tensor, rare: int, public: Collection[str]) -> tuple[list[str], int]:
    """Return the names of the classes that are told of, and their number; without names, it follows from the last."""
    names = source.class_names or tuple(map(str, range(source.classes)))
    common = [name in public or max(1, count) >= rare for name, count in zip(names, counts.tolist(), strict=True)]
    if source.class_names:
        told = [name for name, tell in zip(names, common, strict=True) if tell]
        return told, len(told)
    return [], 1 + max((label for label, tell in enumerate(common) if tell), default=0)


def check_classes(federation: Federation, agreed: Agreed, silo: Silo) -> None:
    """Refuse a run whose agreed classes lack one of this silo's: nobody may tell of it, and the server not of which."""
    source = federation.source
    names = source.class_names or tuple(map(str, range(source.classes)))
    known = agreed.class_names if source.class_names else names[: agreed.classes]
    rare = [names[label] for label in source.y.unique().tolist() if names[label] not in known]
    if rare:
        log.warning(
            "no silo may tell of these classes: %s. List them in [allow] names if they are no secret, or remove their "
            "samples: fewer than min_class_count = %d training samples here have each",
            ", ".join(rare),
            silo.allow.min_class_count,
        )
        raise ConfigError(f"the data of {silo.name} have classes that may not be told; the node's own log says which")
