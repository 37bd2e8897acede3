"""`partwise audit`."""

from typing import Any

import click

from partwise.commands.options import CommandLine
from partwise.errors import ConfigError
from partwise.reporting import audit, tables
from partwise.runs.config import label, values
from partwise.studies.audit import audited, plain_and_filtered, rebuilt_samples, shortest


def audit_method(asked: CommandLine, picture: str | None, **options: Any) -> None:
    """Show what leaves a client of a method and what is learned from it, without filters and with them."""
    if len(asked.named) > 1:
        asked.problems.add(f"audit takes one method, not {len(asked.named)}")
    [config] = asked.configs(options)
    name = label(config.name)
    plain, filtered = plain_and_filtered(config if options.get("rounds") is not None else shortest(config))
    heard = audited(plain)
    if not heard.leaving:
        click.echo(f"{name}: nothing leaves a client")
        return
    other = audited(filtered)
    unfiltered = values(plain.privacy)
    used = [f"{key} = {value}" for key, value in values(filtered.privacy).items() if value != unfiltered[key]]
    title = f"{name}, {plain.method.rounds} round{'s' * (plain.method.rounds > 1)}; filtered: {', '.join(used)}"
    tables.print_table(audit.leaving_table(title, heard, other))
    if heard.rebuilt:
        click.echo()
        tables.print_table(audit.histograms(heard, other))
    if picture:
        x, found = rebuilt_samples(plain)
        if x.dim() != 4:
            raise ConfigError("--picture needs a data set of images; leave it out, or choose another --data")
        rows = {"own": x, "rebuilt": found, "filtered": rebuilt_samples(filtered)[1]}
        audit.picture(rows, picture, f"{name}: one mini-batch, rebuilt from its upload")
        click.echo(f"picture: {picture}")
