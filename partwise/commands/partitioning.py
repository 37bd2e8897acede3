"""`partwise partition`."""

from pathlib import Path
from typing import Any

from partwise.commands.options import NOTHING_WRITTEN
from partwise.commands.showing import print_json
from partwise.data.saved import save as save_partition
from partwise.errors import Problems
from partwise.method import Method
from partwise.reporting import partitions, tables
from partwise.runs.config import known_fields, make_config
from partwise.runs.partitioning import partitioned
from partwise.runs.toml import read_settings


def partition_data(config: str | None, plot: str | None, save: str | None, as_json: bool, **options: Any) -> None:
    """Partition a data set among clients, and show, draw or write down who gets what."""
    problems, written = Problems(), NOTHING_WRITTEN
    if config:
        with problems.collect():
            written = read_settings(Path(config), problems)
    method, settings, places = written.overridden(options)
    if written.files:  # they are not needed to partition data, and nobody has asked for them to be executed
        method, settings = None, {name: value for name, value in settings.items() if name in known_fields(Method)}
    with problems.collect():
        made = make_config(method or Method, settings, places)
    problems.tell()
    federation = partitioned(made)
    for path, write in ((plot, partitions.plot_partition), (save, save_partition)):
        if path:
            write(federation, path)
    if as_json:
        print_json(partitions.partition_facts(federation))
    else:
        tables.print_table(partitions.partition_table(federation))
