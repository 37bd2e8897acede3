"""The command line: `partwise run`, `partwise compare` and `partwise methods`."""

import dataclasses
import json
import sys
import traceback
import typing
from collections.abc import Callable, Iterable, Sequence
from io import TextIOWrapper
from itertools import takewhile
from pathlib import Path
from typing import Any

import click

from partwise import __version__
from partwise.errors import ConfigError, Diverged, PartwiseError, unknown
from partwise.method import Method
from partwise.methods import find, names
from partwise.options import kind
from partwise.reporting import methods as pages
from partwise.reporting import tables
from partwise.runs.compare import make_configs, parse_seeds, standings
from partwise.runs.config import TABLES, Config, Run, known_fields, label, read_toml
from partwise.runs.folder import Leaderboard, RunFolder, summarise
from partwise.runs.prepare import prepare
from partwise.runs.progress import display
from partwise.runs.result import Result

EXAMPLES = """\b
Examples:
  partwise run fedper --data digits --clients 20 --partition dir:0.1 --rounds 100 --out runs/fedper
  partwise run --config runs/fedper/config.toml --lr 0.05 --out runs/faster
  partwise run my_method.py --rounds 50
  partwise compare local fedavg fedper fedbabu --seeds 0,1,2 --out runs/four
  partwise methods fedbabu"""

NOTHING_WRITTEN = "nothing was written; --out DIR keeps the results"


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line and return its exit code; whatever goes wrong is one line on the standard error."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a docstring may hold a letter that the locale lacks
    try:
        return program.main(arguments, "partwise", standalone_mode=False) or 0
    except Exception as error:
        if "--debug" in arguments:
            traceback.print_exc()
        line, code = refusal(error)
        click.echo(f"error: {' '.join(line.split())}", err=True)
        return code


def refusal(error: Exception) -> tuple[str, int]:
    """What is said about an error, and the exit code."""
    if isinstance(error, click.Abort):  # what click makes of Ctrl-C
        return "interrupted", 130
    if isinstance(error, click.ClickException):
        return error.format_message(), 2
    if isinstance(error, PartwiseError):
        return str(error), error.exit_code
    return f"{type(error).__name__}: {error} (--debug shows where)", 1


# ------------------------------------------------------------------ options, made from the fields of the settings


class MethodCommand(click.Command):
    """A command whose options are the settings of the methods that it is given, beside a few of its own."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        # A first pass, with the options of the methods that partwise brings, finds which methods are meant. Only then
        # the options of a user's method file are known. Behind an unknown option a word may be its value.
        parser = self.make_parser(context)
        parser.ignore_unknown_options = True
        given, _, _ = parser.parse_args(list(args))
        words = given["methods"] if isinstance(given["methods"], tuple) else ()  # click has a sign for nothing given
        named = list(takewhile(lambda word: not word.startswith("-"), words))
        named += [word for word in words[len(named) :] if word.endswith(".py")]
        if not named and given.get("config"):
            named = [name for name in [read_toml(Path(given["config"]))[0]] if name]
        context.obj = {name: find(name) for name in named}
        try:
            return super().parse_args(context, args)
        except click.NoSuchOption as error:
            options = [*self.own_options(context), *map(field_option, settings_of(context.obj.values()).values())]
            raise ConfigError(unknown("option", error.option_name, [option.opts[0] for option in options])) from None

    def own_options(self, context: click.Context) -> list[click.Option]:
        return [option for option in super().get_params(context) if isinstance(option, click.Option)]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's own, and those of every method: an option of another method is refused later, by its name."""
        own = super().get_params(ctx)
        fields = settings_of([*map(find, names()), *(ctx.obj or {}).values()])
        for name in {parameter.name for parameter in own} & set(fields):
            raise ConfigError(f"a method cannot have a setting called '{name}': that is an option of every run")
        return [*own, *map(field_option, fields.values())]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Options by table; then those that the named methods have beside them, a section each."""
        sections = {"Options": self.own_options(ctx)}
        # A method may bring defaults of its own for what every method has; several may bring different ones.
        common, known = settings_of([Method]), settings_of(ctx.obj.values() if len(ctx.obj) == 1 else [Method])
        for title, table in TABLES.items():
            sections[title.capitalize()] = [field_option(known[spec.name]) for spec in dataclasses.fields(table)]
        for name, method in ctx.obj.items():
            own = [spec for key, spec in settings_of([method]).items() if key not in common]
            sections[f"Only {label(name)}"] = [field_option(spec) for spec in own]
        for title, options in sections.items():
            records = [record for option in options if (record := option.get_help_record(ctx))]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def settings_of(methods: Iterable[type[Method]]) -> dict[str, dataclasses.Field]:
    """The settings of a run of these methods, by name."""
    return {name: spec for method in methods for name, spec in known_fields(method).items()}


def field_option(spec: dataclasses.Field) -> click.Option:
    """A field as an option. Values stay text here: `options.convert` reads them, with the same refusals everywhere."""
    name, plain = spec.name.replace("_", "-"), kind(spec)[0]
    if plain is bool:
        return click.Option([f"--{name}/--no-{name}", spec.name], default=None, help=pages.sentence(spec))
    words = {int: "NUMBER", float: "NUMBER", tuple: "NUMBERS", typing.Literal: "NAME"}
    metavar = words.get(typing.get_origin(plain) or plain, "TEXT")
    return click.Option([f"--{name}", spec.name], metavar=metavar, help=pages.sentence(spec))


# `main` looks for it among the arguments: an error may come before they are read.
debug_option = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")


def run_options(function: Callable) -> Callable:
    """What `run` and `compare` have beside the settings."""
    for decorate in (
        debug_option,
        click.option("--quiet", is_flag=True, help="Show results alone, no progress."),
        click.option("--resume", is_flag=True, help="Keep a finished run that lies in DIR, and show it."),
        click.option("--overwrite", is_flag=True, help="Replace what an earlier run left in DIR."),
        click.option("--out", metavar="DIR", help="Folder for the results; without it they are only shown."),
        click.option("--config", metavar="FILE", help="TOML file with settings; options win over it."),
        click.pass_context,
    ):
        function = decorate(function)
    return function


def gather(
    context: click.Context, methods: Sequence[str], config: str | None, options: dict[str, Any]
) -> tuple[list[tuple[str, type[Method]]], dict[str, Any]]:
    """The methods that are meant, and the settings of file and command line together."""
    settings = read_toml(Path(config))[1] if config else {}
    chosen = [(name, context.obj.get(name) or find(name)) for name in methods or context.obj]
    if not chosen:
        raise ConfigError(f"no method is named; known: {', '.join(names())}")
    return chosen, settings | {name: value for name, value in options.items() if value is not None}


def carry_out(config: Config, folder: RunFolder | None, title: str, quiet: bool, told: set[str]) -> dict[str, Any]:
    """The summary of a run, or of the one that lies finished in the folder. Notes that were `told` are not repeated."""
    if folder is not None and folder.kept:
        return folder.summary()
    simulation = prepare(config)
    for note in simulation.notes:
        if not quiet and note not in told:
            click.echo(note, err=True)
    told.update(simulation.notes)
    with display(title, simulation.total, quiet) as progress:
        result = Result(simulation.run(progress)) if folder is None else folder.record(simulation, progress)
    return summarise(result)


# ----------------------------------------------------------------------------------------------------- commands


@click.group(invoke_without_command=True, epilog=EXAMPLES, context_settings={"max_content_width": 120})
@click.version_option(__version__, message="partwise %(version)s")
@click.pass_context
def program(context: click.Context) -> None:
    """Personalised federated learning, part by part."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@program.command("run", cls=MethodCommand)
@click.argument("methods", metavar="METHOD", nargs=-1)
@run_options
def run_command(
    context: click.Context,
    methods: tuple[str, ...],
    config: str | None,
    out: str | None,
    overwrite: bool,
    resume: bool,
    quiet: bool,
    **options: Any,
) -> None:
    """Run one method.

    METHOD is a name from `partwise methods` or a Python file of your own. It has options of its own, which
    `partwise run METHOD --help` shows too; --config FILE may name it instead.
    """
    chosen, settings = gather(context, methods, config, options)
    if len(chosen) > 1:
        raise ConfigError(f"run takes one method, not {len(chosen)}; compare takes several")
    [made] = make_configs(chosen, settings, seeds=[settings.get("seed", Run.seed)])
    folder = RunFolder(out, made, overwrite, resume) if out else None
    summary = carry_out(made, folder, label(made.name), quiet, told=set())
    tables.show(tables.one_run(summary))
    click.echo(f"results: {out}" if out else NOTHING_WRITTEN)


@program.command("compare", cls=MethodCommand)
@click.option("--seeds", metavar="NUMBERS", help="Seeds, separated by commas; a run for each. Unset: --seed alone.")
@click.argument("methods", metavar="METHOD...", nargs=-1)
@run_options
def compare_command(
    context: click.Context,
    methods: tuple[str, ...],
    config: str | None,
    out: str | None,
    overwrite: bool,
    resume: bool,
    quiet: bool,
    seeds: str | None,
    **options: Any,
) -> None:
    """Run several methods and rank them.

    Every METHOD, a name from `partwise methods` or a Python file of your own, runs with every seed. An option that
    only some of them have goes to those.
    """
    if seeds is not None and options["seed"] is not None:
        raise ConfigError("--seed and --seeds exclude each other")
    chosen, settings = gather(context, methods, config, options)
    every = [settings.get("seed", Run.seed)] if seeds is None else parse_seeds(seeds)
    board = Leaderboard(out, overwrite or resume) if out else None
    jobs = []
    for made in make_configs(chosen, settings, every):
        place = Path(out, label(made.name), f"seed-{made.run.seed}") if out else None
        jobs.append((made, RunFolder(place, made, overwrite, resume) if place else None))
    summaries: list[dict[str, Any]] = []
    diverged: list[str] = []
    told: set[str] = set()
    try:
        for number, (made, folder) in enumerate(jobs, start=1):
            title = f"{label(made.name)} seed {made.run.seed} ({number}/{len(jobs)})"
            try:
                summaries.append(carry_out(made, folder, title, quiet, told))
            except Diverged as error:
                diverged.append(f"{title} {error}")
    finally:  # whatever ends a comparison early, the runs that were finished are shown
        if summaries:
            ranking = standings(summaries)
            cells = tables.leaderboard(ranking, summaries[0])
            tables.show(cells)
            if board:
                board.write(cells, ranking)
    click.echo(f"results: {out}" if out else NOTHING_WRITTEN)
    if diverged:
        raise Diverged("; ".join(diverged))


@program.command("methods")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="For programs: name, summary and options of every method.")
@debug_option
def methods_command(name: str | None, as_json: bool) -> None:
    """List the methods, or describe one."""
    found = {each: find(each) for each in ([name] if name else names())}
    if as_json:
        click.echo(json.dumps([pages.describe(each, method) for each, method in found.items()], indent=2))
    elif name:
        click.echo(pages.page(name, found[name]))
    else:
        click.echo(pages.overview(found))
