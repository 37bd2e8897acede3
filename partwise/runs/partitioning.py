"""The data of a run, partitioned among its clients as the settings say."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from partwise.data import Federation, Source, check, load, parse_rule, partition
from partwise.data.own import as_data
from partwise.data.readers.catalogue import published_data
from partwise.data.reading import Reading
from partwise.data.saved import saved_rule
from partwise.data.source import with_positive
from partwise.data.sources import call_published
from partwise.errors import ConfigError
from partwise.runs.config import HANDED_IN, Config
from partwise.runs.settings import Data, Settings

SPLIT_COLUMNS = ("split_by", "test_after")  # columns of a table by which each client's samples are split
SPLIT_SETTINGS = ("test_share", "train_samples", "validation", "split_seed", *SPLIT_COLUMNS)


def partitioned(config: Config, data: Any = None) -> Federation:
    """Return the data set that the settings name, or what was handed in, partitioned as the settings say."""
    settings, wanted = config.data, reading(config.data)
    by_name = settings.split_seed is not None
    seed = config.run.seed if settings.split_seed is None else settings.split_seed
    own: Settings = {  # how each client's samples are split
        "test_share": settings.test_share,
        "train_samples": settings.train_samples,
        "validation": settings.validation,
        "by_name": by_name,
    }
    if isinstance(data, Federation) and data.holds != "all":
        return named_positive(data, settings)  # what nodes have split, each its own
    if data is None and settings.data.startswith(HANDED_IN):
        raise ConfigError("the data of this run were handed in from Python; name others with --data")
    if data is None and (known := published_data(settings.data)):
        data = call_published(known)
    found = load(settings.data, **vars(wanted)) if data is None else as_data(data, wanted, seed=seed, **own)
    if settings.bins is not None:
        if isinstance(found, Federation):
            found = replace(found, source=with_bins(found.source, settings.bins))
        else:
            found = with_bins(found, settings.bins)
    if isinstance(found, Federation):
        check(found.source, settings.allow_nonfinite_data, settings.missing)
        check_partitioned(found, settings, ignored=SPLIT_SETTINGS if isinstance(data, Federation) else ())
        return named_positive(found, settings)
    if data is not None:
        check(found, settings.allow_nonfinite_data, settings.missing)
    given = [name for name in SPLIT_COLUMNS if getattr(settings, name)]
    if given and isinstance(data, Source):
        raise ConfigError(
            f"{given[0]} names a column, but the data are a Source already: pass it to partwise.load instead"
        )
    if given and settings.partition.startswith("file:"):
        raise ConfigError(
            f"partition '{settings.partition}' already splits each client's samples; leave out {given[0]}"
        )
    return partition(
        found if settings.positive is None else with_positive(found, settings.positive),
        settings.partition,
        settings.clients,
        seed,
        split=settings.split,
        cap=settings.cap,
        min_samples=settings.min_samples,
        balance=settings.balance,
        **own,
    )


def named_positive(federation: Federation, settings: Data) -> Federation:
    """Return data that came partitioned, with the class that the settings call positive for their second."""
    if settings.positive is None:
        return federation
    source = with_positive(federation.source, settings.positive)
    return federation if source is federation.source else replace(federation, source=source)


def with_bins(source: Source, edges: tuple[float, ...]) -> Source:
    """Return samples whose labels count in bins with these edges."""
    task = source.task.with_edges(edges)
    return replace(source, own_task=task, classes=task.bins)


def check_partitioned(federation: Federation, settings: Data, ignored: Iterable[str]) -> None:
    """Refuse settings of a partition where the data came partitioned."""
    if settings.clients not in (None, federation.clients):
        raise ConfigError(
            f"clients = {settings.clients}, but the data belong to {federation.clients} clients; leave it out"
        )
    usual = Data()
    names = ("partition", "split", "min_samples", "cap", "balance", *ignored)
    given = [name for name in names if getattr(settings, name) != getattr(usual, name)]
    if given:
        raise ConfigError(f"the data are already divided among clients; leave out {', '.join(given)}")


def partitioned_again(settings: Data, source: Source) -> str:
    """Return a note where the settings partition data that came partitioned; '' otherwise."""
    own = parse_rule(source.partition)
    rule = own if settings.partition == "auto" else parse_rule(settings.partition)
    if own.kind != "column" or rule.kind == "file" or rule == own:
        return ""
    return (
        f"the data came divided by {own.column}; partition = {settings.partition} divides them again, leave it out to "
        "keep their division"
    )


def reading(settings: Data) -> Reading:
    """Return how to read files by these settings."""
    rule = settings.partition
    if rule.startswith("file:"):
        rule = saved_rule(rule.removeprefix("file:"))
    rule = "column:domain" if rule == "domain" else rule
    return Reading(
        root=settings.data_root,
        download=settings.download,
        image_size=settings.image_size,
        label=settings.label,
        task=settings.task,
        drop=tuple(name.strip() for name in settings.drop.split(",")) if settings.drop else (),
        column=rule.removeprefix("column:") if rule.startswith("column:") else None,
        missing=settings.missing,
        categories=settings.categories,
        allow_nonfinite=settings.allow_nonfinite_data,
        split_by=settings.split_by,
        test_after=settings.test_after,
        text=settings.text,
        text_length=settings.text_length,
        tokens=settings.tokens,
        vocabulary=settings.vocabulary,
        min_token_count=settings.min_token_count,
    )
