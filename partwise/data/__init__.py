"""Data sets, and how they are divided among clients."""

from partwise.data.checks import check
from partwise.data.partitions import SPLITS, partition
from partwise.data.rules import KINDS, Rule, parse_rule
from partwise.data.source import Federation, Source
from partwise.data.sources import SOURCES, load

__all__ = ["KINDS", "SOURCES", "SPLITS", "Federation", "Rule", "Source", "check", "load", "parse_rule", "partition"]
