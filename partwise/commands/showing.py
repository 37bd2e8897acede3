"""The lists of `partwise methods`, `partwise data` and `partwise reproduce`, shown without torch."""

import json
from dataclasses import asdict
from importlib import import_module

import click

from partwise.data import CATALOGUE
from partwise.errors import ConfigError, printable
from partwise.methods import find, installed_names
from partwise.papers import overview
from partwise.reporting import data, methods


def show_methods(name: str | None, as_json: bool) -> None:
    """List the methods, or describe one."""
    if as_json:
        print_json([methods.describe(each, find(each)) for each in ([name] if name else installed_names())])
    else:
        click.echo(methods.page(name, find(name)) if name else methods.overview())


def show_data(name: str | None, download: bool, data_root: str | None, as_json: bool) -> None:
    """List the data sets, or describe one; fetch it before that where this is asked for."""
    if download:
        if name is None:
            raise ConfigError("--download fetches one data set: partwise data NAME --download")
        from partwise.data.readers.download import download as fetch

        fetch(name, data_root)
    listed = name is None or name in CATALOGUE
    about = data if listed else import_module("partwise.reporting.own")  # which reads files, and needs torch
    if as_json:
        facts = [about.describe(each, data_root) for each in ([name] if name else CATALOGUE)]
        print_json(facts if name else [*facts, *data.other_data()])
    else:
        text = about.page(name, data_root) if name else data.overview(data_root)
        click.echo("\n".join(map(printable, text.split("\n"))))


def show_papers() -> None:
    """List the tables and figures of the papers."""
    click.echo(overview.overview())


def print_json(value: object) -> None:
    """Print facts as JSON."""
    click.echo(json.dumps(value, indent=2, default=asdict))
