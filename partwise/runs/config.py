"""A run's configuration: made from names, settings and presets, and written as TOML."""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from partwise.code_files import file_digest, file_of, network_file_of
from partwise.data.readers.catalogue import data_names
from partwise.data.readers.places import absolute
from partwise.errors import ConfigError, Problems, unknown
from partwise.method import Method
from partwise.methods import find, names, published_method
from partwise.options import convert
from partwise.runs.settings import TABLES, Data, Failures, Model, Privacy, Robust, Run, Settings
from partwise.training import Training

LIES_AT = "# lies at "  # begins the line below a relative path: where it led when it was written
HANDED_IN = "handed in from Python:"  # stands for an object that no file can name


@dataclass
class Config:
    """Everything that a run depends on."""

    name: str
    method: Method
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    robust: Robust = field(default_factory=Robust)
    privacy: Privacy = field(default_factory=Privacy)
    failures: Failures = field(default_factory=Failures)
    run: Run = field(default_factory=Run)
    notes: tuple[str, ...] = ()  # the source of settings that the user did not give

    def __post_init__(self) -> None:
        if self.data.clients is not None:
            self.check_clients(self.data.clients)
        some = self.method.participation < 1 or self.method.clients_per_round not in (None, self.data.clients)
        if self.run.moment == "trained" and (some or self.failures.played):
            raise ConfigError(
                "moment = trained measures a round's participants only: let all clients take part (participation = 1, "
                "no simulated failures), or choose moment = received"
            )

    def check_clients(self, clients: int) -> None:
        """Refuse settings that need more clients than there are."""
        numbers = {"clients_per_round": self.method.clients_per_round, "eval_clients": self.run.eval_clients}
        larger = {name: number for name, number in numbers.items() if number is not None and number > clients}
        if larger:
            raise ConfigError(*(f"{name} = {n} is more than the {clients} clients" for name, n in larger.items()))

    def as_tables(self) -> dict[str, Settings]:
        """Return every value by table; None where a field is unset."""
        shared = {spec.name for spec in dataclasses.fields(Training)}
        training = {spec.name: getattr(self.method, spec.name) for spec in dataclasses.fields(self.method)}
        return {
            **{name: values(getattr(self, name)) for name in TABLES},
            "train": {name: value for name, value in training.items() if name in shared},
            "method": {name: value for name, value in training.items() if name not in shared},
        }

    def with_defaults(self) -> "Config":
        """Return the configuration of the same method with every setting at its default."""
        return Config(self.name, type(self.method)())

    def to_toml(self) -> str:
        """Return the whole configuration as a TOML file that `--config` reads; unset fields are comments.

        So is what a relative path stood for when it was written, and which code a method or network was that is not
        built in.
        """
        blocks = []
        tables: dict[str, Settings] = {"method": {}}  # which comes first
        for table, content in (tables | self.as_tables()).items():
            lines = [f"[{table}]"]
            content = {"name": self.name, **content} if table == "method" else content
            for key, value in content.items():
                lines.append(f"# {key} is unset" if value is None else f"{key} = {literal(value)}")
                path = path_in(key, value)
                if path and not os.path.isabs(path) and os.path.exists(os.path.expanduser(path)):
                    lines.append(LIES_AT + literal(str(absolute(path))))
                code = code_of(self.name) if key == "name" else network_code_of(value) if key == "model" else None
                if code:
                    lines.append(f"# SHA-256 {code}")
            blocks.append("\n".join(lines) + "\n")
        return "\n".join(blocks)


def label(method: str) -> str:
    """Return the name of a method in tables and folders: of a method file the name without folder and ending."""
    return Path(method).stem if method.endswith(".py") else method.removeprefix(HANDED_IN).strip().lower()


def code_of(method: str) -> str | None:
    """Return the SHA-256 of a method file, or of the package that publishes a method, and that package's version."""
    if file := file_of(method):
        return file_digest(file)
    known = published_method(method)
    return f"{known.digest()} {known.package} {known.version}" if known else None


def network_code_of(model: str) -> str | None:
    """Return the SHA-256 of the file that a network is in; None for other networks."""
    return file_digest(network_file_of(model))


def path_in(key: str, value: Any) -> str | None:
    """Return the path that a setting names; None if it names none."""
    if key == "name":
        return value if file_of(value) else None
    if key == "model":
        return value.rpartition(":")[0] if network_file_of(value) else None
    if key == "partition":
        return value.removeprefix("file:") if value.startswith("file:") else None
    if key == "data":
        named = value in data_names() or value.startswith(("hf:", HANDED_IN))
        return None if named else value
    return value if key in ("data_root", "weights", "failure_trace") else None


def values(settings: Any) -> Settings:
    """Return the fields of a table of settings, by name."""
    return {spec.name: getattr(settings, spec.name) for spec in dataclasses.fields(settings)}


def literal(value: Any) -> str:
    """Return a value as TOML; JSON writes texts, numbers, booleans and lists the same way, except one letter."""
    written = json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
    return written.replace("\x7f", "\\u007f")


def known_fields(method: type[Method]) -> dict[str, dataclasses.Field]:
    """Return every setting of a run of this method, by name."""
    result = {spec.name: spec for table in TABLES.values() for spec in dataclasses.fields(table)}
    for spec in dataclasses.fields(method):
        if spec.name in result:
            raise ConfigError(f"{method.__name__}.{spec.name}: every run has a setting of this name; rename yours")
        result[spec.name] = spec
    return result


# (name, method, settings) -> the preset's values for what the settings leave open, and notes on them
Preset = Callable[[str, type[Method], Settings], tuple[Settings, list[str]]]


def make_config(
    name: str | type[Method] | Method,
    settings: Settings,
    places: Mapping[str, str] | None = None,
    preset: Preset | None = None,
) -> Config:
    """Return the configuration of a run from flat settings; one error lists all their problems.

    `places` says where each setting was written, for errors; `preset` is that of `make_configs`.
    """
    if preset is not None:
        if isinstance(name, Method):
            raise ConfigError(
                "preset takes a method's name or class; a method object already has all its settings: pass its class"
            )
        called = name if isinstance(name, str) else name.__module__.removeprefix("partwise.methods.")
        below, notes = preset(called, find(name) if isinstance(name, str) else name, settings)
        return replace(make_config(name, below | settings, places), notes=tuple(notes))
    if isinstance(name, Method):
        own = {key: value for key, value in values(name).items() if key not in settings}
        return make_config(type(name), {**own, **settings}, places)
    problems = Problems()
    method: type[Method] = Method
    with problems.collect():
        method = (find(name) if isinstance(name, str) else name).variant(settings)
    known = known_fields(method)
    if problems:  # settings that the base class lacks may belong to the method that was not found
        settings = {key: value for key, value in settings.items() if key in known}
    called = name if isinstance(name, str) else f"{HANDED_IN} {method.__name__}"
    fitting = {}
    for key, value in settings.items():
        with problems.collect((places or {}).get(key)):
            fitting[key] = convert(known_setting(known, key, [label(called)]), value)

    def pick(table: type) -> Any:
        return table(**{spec.name: fitting[spec.name] for spec in dataclasses.fields(table) if spec.name in fitting})

    with problems.collect():
        config = Config(called, pick(method), **{name: pick(table) for name, table in TABLES.items()})
    problems.tell()
    return config


def make_configs(
    methods: Sequence[tuple[str, type[Method]]],
    settings: Settings,
    seeds: Sequence[Any],
    places: Mapping[str, str] | None = None,
    preset: Preset | None = None,
) -> list[Config]:
    """Return a configuration for every method and seed. Each setting goes to the methods that have it, at least one.

    `preset` gives values for settings that are not in `settings`.
    """
    problems = Problems()
    with problems.collect():
        check_distinct_names([label(name) for name, _ in methods])
    chosen, below = [], {}
    for name, method in methods:
        with problems.collect((places or {}).get("host")):
            below[name] = preset(name, method, settings) if preset else ({}, [])
            chosen.append((name, method.variant(below[name][0] | settings)))
    problems.tell()  # the settings depend on the methods
    methods = chosen
    known = {name: known_fields(method) for name, method in methods}
    every = {key: spec for fields in known.values() for key, spec in fields.items()}
    for key in settings:
        with problems.collect((places or {}).get(key)):
            known_setting(every, key, [label(name) for name, _ in methods if name])
    configs = []
    for name, method in methods:
        table, notes = below[name]
        own = {key: value for key, value in (table | settings).items() if key in known[name]}
        for seed in seeds:
            with problems.collect():
                made = make_config(method, {**own, "seed": seed}, places)
                configs.append(replace(made, name=name, notes=tuple(notes)))
    problems.tell()
    return configs


def check_distinct_names(names: Sequence[str]) -> None:
    """Refuse methods of the same name: they would share rows and folders."""
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise ConfigError(*(f"two methods are called '{name}'; each needs a different name" for name in twice))


def known_setting(known: dict[str, dataclasses.Field], key: str, methods: Sequence[str]) -> dataclasses.Field:
    """Return the setting of this name; refuse one that these methods lack, with those that have it or the nearest."""
    if key in known:
        return known[key]
    having = [name for name in names() if key in known_fields(find(name))]
    if having and methods:
        have = f"{as_sentence(having)} {'has' if len(having) == 1 else 'have'}"
        lacking = f"{as_sentence(methods)} {'has' if len(methods) == 1 else 'have'} no option {key}"
        raise ConfigError(f"{lacking}; {have}")
    raise ConfigError(unknown("setting", key, known))


def as_sentence(words: Sequence[str]) -> str:
    """Return words as a sentence lists them: `ditto, fedprox and pfedme`."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
