"""A node's description of its data before the first round, without rare values."""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch

from partwise.data.saved import json_digest
from partwise.data.schema import fit_to_schema
from partwise.data.source import Federation, Source
from partwise.data.standardise import client_moments, label_moments, merged, texts
from partwise.data.transforms import TEXT
from partwise.errors import ConfigError, DataError, PartwiseError, one_line, printable
from partwise.federation.protocol.handshake import OF_COLUMNS, schema_of
from partwise.federation.protocol.policy import Allowed
from partwise.federation.protocol.reported_data import ReportedData
from partwise.federation.protocol.silo import Silo
from partwise.records.messages import Agreed, Joined, Moments
from partwise.runs.config import Config
from partwise.tasks import Classes, Numbers, Places
from partwise.tasks.places import NONE
from partwise.trees import one_tensor

log = logging.getLogger(__name__)


@contextmanager
def kept_here(silo: Silo, *, but: type[PartwiseError] | None = None) -> Iterator[None]:
    """Log errors in a silo's data on this node alone, for they may quote a cell; `but` errors pass.

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


def describe_data(federation: Federation, record: ReportedData | None, allow: Allowed) -> Joined:
    """Return what a node tells about its data.

    It names all columns, and the features and classes that its record names; without a record, all: simulated clients
    have the run's data. Texts and classes that are public are named however rare they are.
    """
    source = federation.source
    features, names, classes = list(source.feature_names), list(class_names_of(source)), source.task.outputs
    x = one_tensor(source.x, "a silo")
    if record is not None:
        features = named_features(source, record, allow.names)
    if record is not None and source.task.kind not in OF_COLUMNS:
        names, classes = named_classes(source, record, allow.names)
    if not classes or (source.feature_names and not features):
        raise DataError(f"every {'column' if classes else 'class'} has too few training samples to be told of")
    sets = zip(federation.train, federation.test, federation.validation, strict=True)
    return Joined(
        names=list(federation.names),
        sizes=[[len(own) for own in each] for each in sets],
        shape=[len(features), *x.shape[2:]] if features else list(x.shape[1:]),
        task=source.task.kind,
        places=list(source.y.shape[1:]) if source.task.kind == Places.kind else [],
        classes=classes,
        class_names=names,
        columns=list(dict.fromkeys(source.feature_columns or source.feature_names)),
        features=features,
        whole=x.dtype == torch.uint8,
        standardise=source.standardise,
        centre=list(source.centre),
        scale=list(source.scale),
        white=source.white,
        data=source.name,
        model=source.model,
        min_clients=allow.min_clients,
        tokens=0 if source.text is None else source.text.size,
        text=""
        if source.text is None
        else json_digest({"tokens": source.text.tokens, "vocabulary": source.text.vocabulary}),
    )


def class_names_of(source: Source) -> tuple[str, ...]:
    """Return the names of the classes, or of the columns of labels; () where classes are numbers."""
    if source.own_task is None:
        return source.class_names
    names = source.own_task.names
    return () if names == Classes.numbered(len(names)).names else names


def check_text(source: Source, who: str) -> None:
    """Refuse texts whose vocabulary would be counted over silos, and rows beside texts."""
    if source.text is not None and source.text.limits is not None:
        raise ConfigError(
            f"{who}: nodes count no words or characters of texts for others; in [data] set tokens to ascii, or to the "
            "tokenizer.json that all silos have"
        )
    if source.text is not None and source.text.row is not None:
        raise ConfigError(f"{who}: over nodes a text stands alone; drop the other columns: [data] drop")


def named_features(source: Source, record: ReportedData, public: Collection[str]) -> list[str]:
    """Return the features that are named. A column without one is left to the others: they know what it holds."""
    names = source.feature_names
    if not source.standardise:
        return list(names)
    secret = {name for name in names if not record.features[name].named}
    shown = {f"{column}{TEXT}{text}" for column in record.texts for text in public}
    return [name for name in names if name not in secret or name in shown]


def named_classes(source: Source, record: ReportedData, public: Collection[str]) -> tuple[list[str], int]:
    """Return the names of the classes that are named, and their number; without names, it follows from the last."""
    names = source.labels
    named = [name in public or record.classes[name].named for name in names]
    if class_names_of(source):
        known = [name for name, tell in zip(names, named, strict=True) if tell]
        return known, len(known)
    return [], 1 + max((label for label, tell in enumerate(named) if tell), default=0)


def reported_moments(federation: Federation, agreed: Agreed, silo: Silo, config: Config) -> Moments:
    """Return a node's moments of the agreed features and labels; simulated clients have no secrets."""
    if silo.hosts is None:
        record = ReportedData(silo, federation, config)
        record.write()
        return Moments(record.moments(agreed), record.label_moments(agreed.class_names))
    source, privacy = fit_to_schema(federation.source, schema_of(agreed)), config.privacy
    few, rare = privacy.min_train_samples, privacy.min_class_count
    features = labels = torch.zeros(3, 0, dtype=torch.float64)
    if agreed.standardise:
        features = merged(
            client_moments(one_tensor(source.x, "a silo")[own], source, few, rare) for own in federation.train
        )
    if agreed.task == Numbers.kind:
        labels = merged(label_moments(source.y[own], few) for own in federation.train)
    return Moments(features, labels)


def check_classes(federation: Federation, agreed: Agreed, silo: Silo) -> None:
    """Refuse a run whose agreed classes lack one of this silo's; the server does not learn which."""
    source, names = federation.source, federation.source.labels
    if agreed.task in OF_COLUMNS:
        return
    known = agreed.class_names if class_names_of(source) else names[: agreed.classes]
    present = source.y[source.y != NONE].unique().tolist()
    rare = [names[label] for label in present if names[label] not in known]
    if rare:
        log.warning(
            "fewer than min_class_count = %d training samples have %s %s, and no silo may name it: correct a "
            "misspelling, remove the samples, or list the class in [allow] names",
            silo.allow.min_class_count,
            "the class" if len(rare) == 1 else "each of the classes",
            printable(", ".join(map(repr, rare))),
        )
        raise ConfigError(f"the data of {silo.name} have classes that may not be told; the node's own log says which")


def log_unnamed_texts(source: Source, agreed: Agreed, silo: Silo) -> None:
    """Log the texts of this silo that have no feature: they are rare here, and no other silo names them."""
    for column, features in texts(source.feature_names, source.feature_columns).items():
        for feature in features:
            name, rows = source.feature_names[feature], int(one_tensor(source.x, "a silo")[:, feature].sum())
            if name not in agreed.features and rows:
                log.warning(
                    "column %r: %d row%s with %r ha%s no feature: no silo has min_class_count = %d such training "
                    "samples; correct a misspelling, or list the text in [allow] names if it is public",
                    column,
                    rows,
                    "s" * (rows > 1),
                    name.removeprefix(f"{column}{TEXT}"),
                    "ve" if rows > 1 else "s",
                    silo.allow.min_class_count,
                )
