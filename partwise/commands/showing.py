"""`partwise methods`, `data`, `partition` and `completion`: what is there, and what would be."""

import json
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

from partwise.commands.options import (
    NOTHING_WRITTEN,
    Command,
    DataCommand,
    complete,
    complete_file,
    complete_method,
    debug_option,
)
from partwise.data import CATALOGUE
from partwise.data.readers.download import download as fetch
from partwise.data.saved import save as save_partition
from partwise.errors import ConfigError, Problems, unknown
from partwise.method import Method
from partwise.methods import find, names
from partwise.reporting import data, methods, own, partitions, tables
from partwise.runs.config import make_config
from partwise.runs.divide import divide
from partwise.runs.toml import read

METHODS_EXAMPLES = """\b
Examples:
  partwise methods
  partwise methods fedbabu
  partwise methods fedrep --json"""

DATA_EXAMPLES = """\b
Examples:
  partwise data
  partwise data cifar10
  partwise data fashion-mnist --download --data-root data"""

PARTITION_EXAMPLES = """\b
Examples:
  partwise partition --data digits --partition dir:0.1 --clients 20
  partwise partition --data mnist5k --partition pat:2 --seed 1 --plot partition.png
  partwise partition --data digits --partition iid --save partition.json"""

COMPLETION_EXAMPLES = """\b
Examples:
  eval "$(partwise completion bash)"            # here and now; in ~/.bashrc: always
  partwise completion zsh >> ~/.zshrc
  partwise completion fish > ~/.config/fish/completions/partwise.fish"""

SHELLS = ("bash", "zsh", "fish")

json_option = click.option("--json", "as_json", is_flag=True, help="For programs.")


@click.command("methods", cls=Command, epilog=METHODS_EXAMPLES)
@click.argument("name", metavar="[METHOD]", required=False, shell_complete=complete_method)
@json_option
@debug_option
def methods_command(name: str | None, as_json: bool) -> None:
    """List the methods, or describe one: a name or a Python file of your own."""
    found = {each: find(each) for each in ([name] if name else names())}
    if as_json:
        print_json([methods.describe(each, method) for each, method in found.items()])
    elif name:
        click.echo(methods.page(name, found[name]))
    else:
        click.echo(methods.overview(found))


@click.command("data", cls=Command, epilog=DATA_EXAMPLES)
@click.argument("name", metavar="[NAME|PATH]", required=False, shell_complete=complete(CATALOGUE, files=True))
@click.option("--download", is_flag=True, help="Fetch the data set NAME where it is missing and its makers offer it.")
@click.option("--data-root", metavar="DIR", help="First folder to look in.", shell_complete=complete_file)
@json_option
@debug_option
def data_command(name: str | None, download: bool, data_root: str | None, as_json: bool) -> None:
    """List the data sets, or describe one: a name, or a file or folder of your own.

    Of a name it says where it was looked for and how to get it; of your own files what they hold: samples, classes,
    empty cells, and which columns could be labels or clients.
    """
    if download:
        if name is None:
            raise ConfigError("--download fetches one data set: partwise data NAME --download")
        fetch(name, data_root)
    about = data if name is None or name in CATALOGUE else own
    if as_json:
        print_json([about.describe(each, data_root) for each in ([name] if name else CATALOGUE)])
    else:
        click.echo(about.page(name, data_root) if name else data.overview(data_root))


@click.command("partition", cls=DataCommand, epilog=PARTITION_EXAMPLES)
@click.option("--config", metavar="FILE", help="TOML file of a run; options win over it.", shell_complete=complete_file)
@click.option("--plot", metavar="FILE", help="Draw it: .png, .svg or .pdf.", shell_complete=complete_file)
@click.option(
    "--save", metavar="FILE", help="Write it down; --partition file:FILE reads it.", shell_complete=complete_file
)
@json_option
@debug_option
def partition_command(config: str | None, plot: str | None, save: str | None, as_json: bool, **options: Any) -> None:
    """Divide a data set among clients, and show who gets what."""
    problems, written = Problems(), NOTHING_WRITTEN
    if config:
        with problems.collect():
            written = read(Path(config), problems)
    method, settings, places = written.overridden(options)
    with problems.collect():
        made = make_config(method or Method, settings, places)
    problems.tell()
    federation = divide(made)
    for path, write in ((plot, partitions.plot), (save, save_partition)):
        if path:
            write(federation, path)
    if as_json:
        print_json(partitions.describe(federation))
    else:
        tables.show(partitions.table(federation))


@click.command("completion", cls=Command, epilog=COMPLETION_EXAMPLES)
@click.argument("shell", metavar="|".join(SHELLS), shell_complete=complete(SHELLS))
@debug_option
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print the script that completes commands, methods, options and their values in a shell."""
    found = get_completion_class(shell) if shell in SHELLS else None
    if found is None:
        raise ConfigError(unknown("shell", shell, SHELLS))
    click.echo(found(context.find_root().command, {}, "partwise", "_PARTWISE_COMPLETE").source())


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))
