"""The lists of `partwise methods`, `partwise data` and `partwise reproduce`, shown without torch."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from partwise.data import CATALOGUE
from partwise.errors import ConfigError, printable
from partwise.methods import find, installed_names
from partwise.papers import overview
from partwise.reporting import data, methods

if TYPE_CHECKING:
    from collections.abc import Callable

    from partwise.data.readers.places import Root


def show_methods(name: str | None, as_json: bool) -> None:
    """List the methods, or describe one."""
    if as_json:
        print_json([methods.method_facts(each, find(each)) for each in ([name] if name else installed_names())])
    else:
        click.echo(methods.method_page(name, find(name)) if name else methods.methods_overview())


def show_data(name: str | None, download: bool, data_root: str | None, as_json: bool) -> None:
    """List the data sets, or describe one; fetch it before that where this is asked for."""
    if download:
        if name is None:
            raise ConfigError("--download fetches one data set: partwise data NAME --download")
        from partwise.data.readers.download import download as fetch

        fetch(name, data_root)
    listed = name is None or name in CATALOGUE
    facts_of: Callable[[str, Root], object] = data.data_facts
    page_of = data.data_page
    if not listed:
        from partwise.reporting import own  # reads files, and needs torch

        facts_of, page_of = own.own_data_facts, own.own_data_page
    if as_json:
        facts = [facts_of(each, data_root) for each in ([name] if name else CATALOGUE)]
        print_json(facts if name else [*facts, *data.other_data()])
    else:
        text = page_of(name, data_root) if name else data.data_overview(data_root)
        click.echo("\n".join(map(printable, text.split("\n"))))


def show_papers() -> None:
    """List the tables and figures of the papers."""
    click.echo(overview.tables_overview())


def print_json(value: object) -> None:
    """Print facts as JSON."""
    click.echo(json.dumps(value, indent=2, default=asdict))
