"""Data sets, and how they are partitioned among clients."""

from typing import TYPE_CHECKING

from partwise.lazy import lazy

if TYPE_CHECKING:  # as in the package itself: names and partition rules are read without torch
    from partwise.data.checks import check
    from partwise.data.own import from_clients
    from partwise.data.partitions import partition
    from partwise.data.readers.arrays import from_arrays, from_dataset
    from partwise.data.readers.catalogue import CATALOGUE
    from partwise.data.rules import RULE_KINDS, parse_rule
    from partwise.data.source import Column, Federation, Source
    from partwise.data.sources import load
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "checks": "check",
            "own": "from_clients",
            "partitions": "partition",
            "readers.arrays": "from_arrays from_dataset",
            "readers.catalogue": "CATALOGUE",
            "rules": "RULE_KINDS parse_rule",
            "source": "Column Federation Source",
            "sources": "load",
        },
    )

__all__ = [
    "CATALOGUE",
    "RULE_KINDS",
    "Column",
    "Federation",
    "Source",
    "check",
    "from_arrays",
    "from_clients",
    "from_dataset",
    "load",
    "parse_rule",
    "partition",
]
