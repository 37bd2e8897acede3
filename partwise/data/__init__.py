"""Data sets, and how they are divided among clients."""

from partwise.data.checks import check
from partwise.data.own import from_clients
from partwise.data.partitions import partition
from partwise.data.readers.arrays import from_arrays, from_dataset
from partwise.data.readers.catalogue import CATALOGUE
from partwise.data.rules import KINDS, parse_rule
from partwise.data.source import Column, Federation, Source
from partwise.data.sources import load

__all__ = [
    "CATALOGUE",
    "KINDS",
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
