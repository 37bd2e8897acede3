"""Command-line options made from settings, with help, refusals and completion."""

import dataclasses
import glob
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from partwise.code_files import split_network
from partwise.data import RULE_KINDS
from partwise.data.readers.catalogue import data_names
from partwise.data.readers.places import absolute
from partwise.errors import ConfigError, Problems, unknown
from partwise.method import Method
from partwise.methods import find, installed_names, names
from partwise.network.models import NETWORKS
from partwise.options import field_type
from partwise.papers.presets import preset_settings
from partwise.published import published
from partwise.reporting.methods import option_help
from partwise.runs.config import Config, known_fields, label, make_configs
from partwise.runs.settings import DEVICES, SECTIONS, Data, Run, Settings
from partwise.runs.toml import Written, read_settings

Names = Iterable[str] | Callable[[], Iterable[str]]  # a function where names are only known when they are asked for

# Names that the texts of these settings may be, beside files and numbers behind a colon.
SUGGESTED: dict[str, Names] = {"data": data_names, "host": installed_names, "device": DEVICES}
SUGGESTED |= {"model": ("auto", "cnn", *NETWORKS), "partition": ("auto", *RULE_KINDS)}

NOTHING_WRITTEN = Written(None, {}, {})

# `main` looks for it among the arguments: an error may come before they are read.
debug_option = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")


class Command(click.Command):
    """A command that refuses all unknown options at once, each with the nearest one that it has."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Refuse unknown options, all in one error."""
        if not context.resilient_parsing:
            Problems(self.unknown_options(context, self.words(context, args)[1])).tell()
        return super().parse_args(context, args)

    def words(self, context: click.Context, args: Sequence[str]) -> tuple[Settings, list[str]]:
        """Return the values of options, and the other words: arguments, and unknown options."""
        parser = self.make_parser(context)
        parser.ignore_unknown_options = True
        given, rest, _ = parser.parse_args(list(args))
        arguments = [given.get(each.name) for each in self.params if isinstance(each, click.Argument)]
        together = [each if isinstance(each, tuple) else (each,) for each in arguments]
        # click has a sign for an argument that is not given.
        return given, [word for words in (*together, rest) for word in words if isinstance(word, str)]

    def unknown_options(self, context: click.Context, words: Iterable[str]) -> list[str]:
        """Return an error for every word that looks like an option but is not one."""
        known = [option for each in self.get_params(context) for option in (*each.opts, *each.secondary_opts)]
        wrong = [word.partition("=")[0] for word in words if word.startswith("-")]
        return [unknown("option", word, [option for option in known if option.startswith("-")]) for word in wrong]


class SettingsCommand(Command, ABC):
    """A command that has settings as options, beside a few of its own."""

    @abstractmethod
    def settings(self, context: click.Context) -> dict[str, dataclasses.Field]:
        """Return every setting that the command takes, by name."""

    @abstractmethod
    def sections(self, context: click.Context) -> dict[str, list[dataclasses.Field]]:
        """Return the settings that the help shows, by title."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, with an option for every setting."""
        return [*super().get_params(ctx), *map(self.setting_option, self.settings(ctx).values())]

    def setting_option(self, spec: dataclasses.Field) -> click.Option:
        """Return a setting as an option."""
        return field_option(spec)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help, with the settings in sections of their own."""
        own = [option for option in super().get_params(ctx) if isinstance(option, click.Option)]
        sections = {"Options": own}
        sections |= {title: list(map(self.setting_option, fields)) for title, fields in self.sections(ctx).items()}
        for title, options in sections.items():
            records = [record for option in options if (record := option.get_help_record(ctx))]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class DataCommand(SettingsCommand):
    """A command about a division of data: the settings of the data, and the seed."""

    def settings(self, context: click.Context) -> dict[str, dataclasses.Field]:
        """Return the settings that are options, by name."""
        return {spec.name: spec for fields in self.sections(context).values() for spec in fields}

    def sections(self, context: click.Context) -> dict[str, list[dataclasses.Field]]:
        """Return the settings that are options, by section of the help."""
        seed = [spec for spec in dataclasses.fields(Run) if spec.name == "seed"]
        return {"Data": list(dataclasses.fields(Data)), "Run": seed}


@dataclass
class CommandLine:
    """A command line before its options are read, and the problems found so far."""

    named: list[str] = field(default_factory=list)
    taken: list[type[Method]] = field(default_factory=lambda: [Method])  # whose settings are options, named or not
    methods: list[tuple[str, type[Method]]] = field(default_factory=list)  # those that were found
    written: Written = NOTHING_WRITTEN  # in the file of --config
    preset: str | None = None
    line: list[str] = field(default_factory=list)  # the arguments as they were typed
    networks: set[str] = field(default_factory=set)  # settings of `model` that were checked
    problems: Problems = field(default_factory=Problems)

    def warn(self, config: str, files: Iterable[str], refused: bool | None) -> None:
        """Warn before a user's file is executed that a configuration names and the user did not type: it is code."""
        for name in files:
            file, network = split_network(name) or (name, "")
            kind, typed = ("network", "with --model") if network else ("method", "as METHOD")
            line = f"'{config}' names the {kind} file '{absolute(file)}', which is code"
            if refused:
                raise ConfigError(f"{line}: read it first, then execute it with --trust, or name it {typed}")
            click.echo(f"{line}; executing it now (--trust hides this line)", err=True)

    def configs(self, options: Settings, seeds: Sequence[Any] | None = None) -> list[Config]:
        """Return a configuration for every method and seed; one error lists all problems."""
        _, settings, places = self.written.overridden(options)
        methods = self.methods
        if not self.named and not self.problems:
            self.problems.add(f"no method is named; known: {', '.join(installed_names())}")
        if len(methods) < max(1, len(self.named)):  # what others do not know may be a setting of one that was not found
            methods = methods or [("", Method)]
            known = settings_of(method for _, method in methods)
            settings = {name: value for name, value in settings.items() if name in known}
        with self.problems.collect():
            preset = None if self.preset is None else partial(preset_settings, self.preset)
            made = make_configs(methods, settings, seeds or [settings.get("seed", Run.seed)], places, preset)
        self.problems.tell()
        self.check_networks({config.model.model for config in made})
        return made

    def check_networks(self, names: set[str]) -> None:
        """Refuse networks that their files do not define, before the first run; execute each file once."""
        for name in names - self.networks:
            if split_network(name):
                from partwise.network.own import network_in_file  # needs torch; the options of a command do not

                network_in_file(name)
        self.networks |= names


@dataclass
class EarlyOptions:
    """The options that are read before the others: methods, and so the other options, depend on them."""

    config: Any  # click has a sign of its own for an option without its value
    preset: Any
    host: Any
    model: Any
    trust: bool | None
    dry_run: bool | None


class MethodCommand(SettingsCommand):
    """A command whose options are the settings of the methods that it is given."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Find the methods, take their settings as options, and refuse unknown ones."""
        # A first pass, with the options of every method, finds the methods that stand before other options. Where there
        # are other options, a second one takes those of all built-in methods, and of the user's before them: an option
        # may be a switch of one method and take a value in another. Methods are imported, and torch with some, only
        # where there is an option that not every method has.
        context.obj = asked = CommandLine(line=list(args))
        given, words = self.words(context, args)
        asked.named = meant(words)
        own: dict[str, type[Method]] = {}
        if any(word.startswith("-") for word in words):
            for name in set(asked.named) - set(names()):
                with suppress(ConfigError):  # it is told below
                    own[name] = self.find(name)
            asked.taken += [*map(find, names()), *own.values()]
            given, words = self.words(context, args)
            asked.named = meant(words)
        early = EarlyOptions(*(given.get(spec.name) for spec in dataclasses.fields(EarlyOptions)))
        if isinstance(early.config, str):
            with asked.problems.collect():
                asked.written = read_settings(Path(early.config), asked.problems)
        if isinstance(early.preset, str):
            asked.preset = early.preset
            if asked.written is not NOTHING_WRITTEN:
                asked.problems.add(
                    "--config and --preset cannot be combined: the config file of a run already has all settings"
                )
        if not asked.named and asked.written.method:
            asked.named = [asked.written.method]
        host = early.host or asked.written.settings.get("host")  # a schedule has its host's options
        helping = bool(set(args) & set(context.help_option_names))
        network = asked.written.settings.get("model") if early.model is None else None
        code = (*asked.named, host, network)
        not_typed = [name for name in dict.fromkeys(asked.written.files) if name in code and name not in args]
        if not_typed and not early.trust:
            if helping or context.resilient_parsing:
                asked.named, host = [name for name in asked.named if name not in not_typed], early.host
            else:
                asked.warn(str(early.config), not_typed, refused=early.dry_run)
        for name in asked.named:
            with asked.problems.collect():
                asked.methods.append((name, (own.get(name) or self.find(name)).variant({"host": host})))
        Problems(two_kinds(asked.methods, args)).tell()
        asked.problems.add(*self.unknown_options(context, self.words(context, args)[1]))
        if helping:
            asked.problems.tell()
        context.ignore_unknown_options = True  # they are told with everything else that is wrong
        return click.Command.parse_args(self, context, args)

    def find(self, name: str) -> type[Method]:
        """Find a method; refuse one whose settings have names of the command's own options."""
        method = find(name)
        for taken in {parameter.name for parameter in self.params} & set(known_fields(method)):
            raise ConfigError(f"a method cannot have a setting called '{taken}', an option of every run; rename it")
        return method

    def settings(self, context: click.Context) -> dict[str, dataclasses.Field]:
        """Return the settings; one that only a method that is not named has is refused later, by name."""
        asked = context.obj or CommandLine()
        return settings_of([*asked.taken, *(method for _, method in asked.methods)])

    def sections(self, context: click.Context) -> dict[str, list[dataclasses.Field]]:
        """Return the settings by table, then each named method's further ones."""
        methods = dict(context.obj.methods)
        # A method may bring defaults of its own for what every method has; several may bring different ones.
        common, known = settings_of([Method]), settings_of(methods.values() if len(methods) == 1 else [Method])
        sections = {
            title.capitalize(): [known[spec.name] for spec in dataclasses.fields(table)]
            for title, table in SECTIONS.items()
        }
        for name, method in methods.items():
            sections[f"Only {label(name)}"] = [s for key, s in settings_of([method]).items() if key not in common]
        return sections


class SweepCommand(MethodCommand):
    """A command whose settings take several values, but for `host`: on that the options themselves depend."""

    def setting_option(self, spec: dataclasses.Field) -> click.Option:
        """Return a setting as an option, which may be repeated."""
        return field_option(spec, repeated=spec.name != "host")


def meant(words: Sequence[str]) -> list[str]:
    """Return the words that name methods: those before the first unknown option, whose value may be the next word."""
    first = list(takewhile(lambda word: not word.startswith("-"), words))
    return first + [word for word in words[len(first) :] if word.endswith(".py") or word in published("method")]


def two_kinds(methods: Sequence[tuple[str, type[Method]]], args: Sequence[str]) -> list[str]:
    """Refuse options on a command line that are a switch of one method and take a value in another."""
    given = {word.partition("=")[0] for word in args}
    switches: dict[str, str] = {}
    valued: dict[str, str] = {}
    for called, method in methods:
        for name, spec in settings_of([method]).items():
            (switches if field_type(spec)[0] is bool else valued).setdefault(name.replace("_", "-"), called)
    return [
        f"--{name} is a switch of {label(switches[name])} and takes a value in {label(valued[name])}; run them one by "
        "one, or rename the option of your method"
        for name in switches
        if name in valued and given & {f"--{name}", f"--no-{name}"}
    ]


def settings_of(methods: Iterable[type[Method]]) -> dict[str, dataclasses.Field]:
    """Return the settings of a run of these methods, by name."""
    return {name: spec for method in methods for name, spec in known_fields(method).items()}


def field_option(spec: dataclasses.Field, repeated: bool = False) -> click.Option:
    """Return a field as an option. Values stay text here; `options.convert` reads them, with equal errors everywhere.

    `repeated`: it may be given several times.
    """
    name, plain = spec.name.replace("_", "-"), field_type(spec)[0]
    if plain is bool:
        return click.Option(
            [f"--{name}/--no-{name}", spec.name], default=None, help=option_help(spec), multiple=repeated
        )
    words = {int: "NUMBER", float: "NUMBER", tuple: "NUMBERS", typing.Literal: "NAME"}
    metavar = words.get(typing.get_origin(plain) or plain, "TEXT")
    options: dict[str, Any] = {"metavar": metavar, "help": option_help(spec), "multiple": repeated}
    if typing.get_origin(plain) is typing.Literal:
        options["shell_complete"] = complete_names(typing.get_args(plain))
    elif plain is str:
        options["shell_complete"] = complete_names(SUGGESTED.get(spec.name, ()), files=True)
    return click.Option([f"--{name}", spec.name], **options)


# ------------------------------------------------------------------------------------------------ completion

Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete_names(known: Names = (), files: bool = False) -> Completion:
    """Complete names that begin with what is there; where none does, let the shell complete files."""

    def matching(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        names = known() if callable(known) else known
        found = [CompletionItem(name) for name in names if name.startswith(begun)]
        return found or [CompletionItem(begun, type="file")] * files

    return matching


def complete_method(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Complete the names of installed methods, and Python files."""
    known = [*installed_names(), *sorted(glob.glob(f"{glob.escape(begun)}*.py"))]
    return complete_names(known, files=True)(context, parameter, begun)


complete_file = complete_names(files=True)
