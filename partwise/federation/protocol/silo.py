"""A silo's own file: its data and its policy. Requests beyond it are refused."""

import dataclasses
import os
import re
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from partwise.client_settings import names_file
from partwise.code_files import file_digest, path_of_file, split_network
from partwise.data import CATALOGUE, load
from partwise.data.readers.tables import file_and_frame
from partwise.data.source import Federation, Source
from partwise.data.splits import limit_train, split_samples, split_validation
from partwise.errors import ConfigError, DataError, Problems, short, unknown
from partwise.federation.protocol.policy import ANY, Allowed, allowed_by
from partwise.methods import installed_names, names
from partwise.options import allowed as allowed_values
from partwise.options import convert, field_type
from partwise.privacy.histograms import parse_histograms
from partwise.published import published
from partwise.records.codec import Limit
from partwise.runs.config import Config, path_in
from partwise.runs.partitioning import partitioned, reading
from partwise.runs.settings import Data, Run, Settings
from partwise.tasks import Classes

LARGEST_VALUE = 3e38  # of numbers in data, which are float32
QUESTION_LABEL_BYTES, LABELS_OF_HOSTS = 1 << 20, 1 << 26  # bytes of text in a message from the server
OWN_DATA = (  # the silo says
    *("data", "data_root", "download", "label", "drop", "allow_nonfinite_data", "missing"),
    *("text", "text_length", "tokens"),
)
OWN_SPLIT = ("test_share", "train_samples", "validation", "split_seed", "split_by", "test_after")  # and divides them
SPLIT_SEED = 0  # of a silo that says none: a run's seed is the server's
OWN_RUN = ("device", "engine", "workers", "threads", "block", "compile")  # and how its machine computes
OPTIONS = {  # of the command line, as problems of data name them, and the settings of [data] that do the same
    r"--drop '([^']*)'": r'drop = "\1" in [data]',
    r"--missing mean": 'missing = "mean" in [data]',
    r"--allow-nonfinite-data": "allow_nonfinite_data = true in [data]",
    r"--label\b": "label in [data]",
    r"--task (\w+)": r'task = "\1" in [data] of the run',
}


@dataclass(frozen=True)
class Silo:
    """A node and what its owner says about it."""

    name: str
    folder: Path
    data: Settings = field(default_factory=dict)  # as on the command line
    run: Settings = field(default_factory=dict)
    allow: Allowed = field(default_factory=Allowed)
    hosts: tuple[int, int] | None = None  # simulated clients of the run's own data, the first and the last
    held: Federation | None = None  # handed in from Python
    most_bytes: int = 2**31  # of a message
    known_noise: bool = False  # noise is that of the run's seed: to compare with a simulation, never for privacy
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)  # of columns: what noise must cover

    @property
    def limit(self) -> Limit:
        """Return the limit of a message from the server; a host of simulated clients receives the names of all."""
        return Limit(QUESTION_LABEL_BYTES if self.hosts is None else LABELS_OF_HOSTS, self.most_bytes)

    # ---- what is asked for, and whether it may be

    def method(self, name: str, digest: str | None, host: str | None = None) -> str:
        """Return what the method is called here; a file of somebody's own must be one that lies here, to the byte.

        `host` is the method that it schedules: a name in any case, for a path would be code too.
        """
        for brought in ([] if host is None else [host]) + ([name] if digest is None else []):
            if brought not in installed_names():
                raise ConfigError(unknown("method", brought, names()))  # not what else is here
            if brought not in names() and brought not in self.allow.methods:
                raise ConfigError(f"{self.name} allows a method of another package only by its name: {brought}")
        if digest is None:
            if ANY not in self.allow.methods and name not in self.allow.methods:
                raise ConfigError(f"{self.name} allows no {name}; it allows {', '.join(self.allow.methods) or 'none'}")
            return name
        return self.file_here("method", digest)

    def with_network(self, settings: Settings, digest: str | None) -> Settings:
        """Return settings with the network as it is called here; its file must be one that lies here, to the byte."""
        named = split_network(str(settings.get("model", "")))
        if named is None:
            return settings
        if digest is None:
            raise ConfigError(f"{self.name} takes a network file only with its SHA-256: {short(named[0])}")
        return {**settings, "model": f"{self.file_here('network', digest)}:{named[1]}"}

    def file_here(self, kind: str, digest: str) -> str:
        """Return the path of the listed file with these bytes."""
        for file in self.allow.files:
            path = path_of_file(file)
            if path and file_digest(path) == digest:
                return str(path)
        raise ConfigError(f"{self.name} allows no {kind} file with the SHA-256 {digest[:12]}...: see its [allow] files")

    def config(self, config: Config) -> Config:
        """Return the run as it is carried out here: the machine's settings are its own, and so are the silo's data."""
        own = {key: convert(fields_by_name(Run)[key], value) for key, value in self.run.items()}
        chosen: Settings = {
            "device": "auto",
            "threads": None,
        }  # of the rest, whoever spreads a simulation may say it for all
        if self.hosts is None:
            chosen = {key: fields_by_name(Run)[key].default for key in OWN_RUN}
        made = replace(config, run=replace(config.run, **{**chosen, **own}))
        self.check_named(config)
        if self.hosts is None:
            data = {key: convert(fields_by_name(Data)[key], value) for key, value in self.data.items()}
            usual = {key: fields_by_name(Data)[key].default for key in (*OWN_DATA, *OWN_SPLIT)}
            own = {**usual, "split_seed": SPLIT_SEED, **data}
            made = replace(made, data=replace(config.data, **own, split="auto", clients=None, partition="iid"))
        minima = ("min_class_count", "min_train_samples")
        larger = {key: max(getattr(made.privacy, key), getattr(self.allow, key)) for key in minima}
        failures = replace(made.failures, failure_trace=None)  # played on the server, whose file it is
        return replace(made, privacy=replace(made.privacy, **larger), failures=failures)

    def check_settings(self, settings: Settings) -> None:
        """Refuse a setting that names a file and would be read with the settings themselves."""
        given = settings.get("per_client")
        if isinstance(given, str) and names_file(given):
            raise ConfigError(f"{self.name} reads no file that a server names: per_client = '{short(given)}'")

    def check_named(self, config: Config) -> None:
        """Refuse to read a file that the server names. A node with simulated clients reads those that it lists."""
        named = {"weights": config.model.weights}
        if self.hosts is not None:
            rule = path_in("partition", config.data.partition)
            data = None if config.data.data in CATALOGUE else config.data.data
            named |= {"data": data, "data_root": config.data.data_root, "partition": rule}
        allowed = {resolved(path) for path in self.allow.data} if self.hosts is not None else set()
        for key, path in named.items():
            if path is not None and resolved(path) not in allowed:
                only = "; its [allow] data lists none like it" if self.hosts is not None else ""
                raise ConfigError(f"{self.name} reads no file that a server names: {key} = '{path}'{only}")

    def check_sizes(self, federation: Federation) -> None:
        """Refuse runs where a client has few training samples; simulated ones count each by itself."""
        fewest, source = self.allow.min_train_samples, federation.source
        for name, own in zip(federation.names, federation.train, strict=True):
            enough = source.task.enough_known(source.y[own], fewest)
            if not enough and (federation.clients == 1 or len(own)):  # one of several may be empty
                who = self.name if federation.clients == 1 else f"client {name} of {self.name}"
                known = "" if source.task.of_classes else " with a known label"
                raise ConfigError(f"{who} has fewer than {fewest} training samples{known}, its own min_train_samples")

    def check_task(self, config: Config, source: Source) -> None:
        """Refuse a run of another task than that of the labels here; a run that names no task is one of classes."""
        named, kind = config.data.task, source.task.kind
        if kind != (Classes.kind if named == "auto" else named):
            run = "the run names no task, which means classes" if named == "auto" else f"the run's task is {named}"
            raise ConfigError(
                f'the labels of {self.name} are {kind}, but {run}; set task = "{kind}" in [data] of the run'
            )

    @property
    def noise(self) -> float:
        """Return the noise on statistics before round 1, as large as the noise that uploads must have."""
        return max(self.allow.least_noise, self.allow.least_dp_noise)

    def hides(self, config: Config) -> bool:
        """Return whether uploads have noise, which must be drawn from numbers that no other machine knows."""
        privacy = config.privacy
        noise = privacy.upload_noise or privacy.dp_noise or parse_histograms(privacy.histograms).epsilon
        return bool(noise) and not self.known_noise

    # ---- its data

    def federation(self, config: Config) -> Federation:
        """Return who is hosted here, with their samples; numbers and names are those of this node alone."""
        if self.held is not None:
            return self.held
        if self.hosts is not None:
            return hosted(partitioned(config), *self.hosts)
        try:
            source = load(config.data.data, **vars(reading(config.data)))
        except DataError as error:
            raise DataError(*map(in_file, error.problems)) from None
        return one_client(source, config.data, self.name)


def in_file(problem: str) -> str:
    """Return a problem of data with the settings of a silo's file in place of the command line's options."""
    for pattern, setting in OPTIONS.items():
        problem = re.sub(pattern, setting, problem)
    return problem


def hosted(federation: Federation, first: int, last: int) -> Federation:
    """Return some clients of a federation that is simulated."""
    if last >= federation.clients:
        raise ConfigError(f"hosts = {first}-{last}, but the run has the clients 0 to {federation.clients - 1}")
    some = slice(first, last + 1)
    train, test, validation = (own[some] for own in (federation.train, federation.test, federation.validation))
    tested = torch.cat(test).sort().values
    return replace(
        federation, train=train, test=test, validation=validation, global_test=tested, names=federation.names[some]
    )


def one_client(source: Source, settings: Data, name: str) -> Federation:
    """Return all samples as one client's, divided as the silo says, as a simulation divides those of this name."""
    seed, streams = settings.split_seed or SPLIT_SEED, (name,)
    share = source.test_share if settings.test_share is None else settings.test_share
    if source.train < len(source.y) and source.groups is None and source.late is None:  # it brings a test set
        train, test = [torch.arange(source.train)], [torch.arange(source.train, len(source.y))]
    else:
        train, test = split_samples(source, [torch.arange(len(source.y))], share, seed, streams)
    if settings.train_samples is not None:
        train = limit_train(train, settings.train_samples, seed, streams)
    train, validation = split_validation(train, settings.validation, seed, streams, source.groups)
    tested = torch.cat(list(test)).sort().values
    return Federation(source, list(train), list(test), tested, list(validation), names=streams)


# ---- the file


@dataclass
class SiloFile:
    """The content of a silo's file, not checked yet; None where it is not given."""

    name: Any = None
    folder: Any = None
    hosts: Any = None
    most_bytes: Any = Silo.most_bytes
    data: Any = field(default_factory=dict)
    run: Any = field(default_factory=dict)
    allow: Any = field(default_factory=dict)


def read_silo(path: Path) -> Silo:
    """Return a silo from its file; all that is wrong with the file is raised together."""
    problems = Problems()
    try:
        content = tomllib.loads(path.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read '{path}': {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"'{path}': {error}") from None
    known = [spec.name for spec in dataclasses.fields(SiloFile)]
    problems.add(*(f"'{path}': {unknown('setting', key, known)}" for key in content if key not in known))
    given = SiloFile(**{key: value for key, value in content.items() if key in known})
    name, most_bytes = given.name, given.most_bytes
    if not isinstance(name, str) or not name.strip():
        problems.add(f"'{path}': name is missing; it is what the server calls this silo")
    if not isinstance(given.folder, str | None):
        problems.add(f"'{path}': folder is a text, as \"/var/lib/partwise/Graz\"")
    if type(most_bytes) is not int or most_bytes < 1:
        problems.add(f"'{path}': most_bytes = {most_bytes!r} is not a whole number of at least 1")
    folder = Path(f"{name}-state" if given.folder is None else str(given.folder)).expanduser()
    folder = folder if folder.is_absolute() else path.expanduser().parent / folder
    data, run, allow = (checked(path, table, getattr(given, table), problems) for table in ("data", "run", "allow"))
    ranges, allowed, hosts = {}, {}, None
    for column, limits in data.pop("ranges", {}).items():
        with problems.collect():
            ranges[column] = stated_range(path, column, limits)
    for table, kind, own in (("data", Data, data), ("run", Run, run)):
        for key, value in own.items():
            with problems.collect(f"'{path}' [{table}]"):
                converted(fields_by_name(kind)[key], value)
    for key in ("data", "data_root", "tokens"):  # beside the file, as people write them
        beside = path.expanduser().parent / str(data.get(key, ""))
        if key in data and file_and_frame(beside)[0].exists():
            data[key] = str(beside)
    for key, value in allow.items():
        with problems.collect(f"'{path}' [allow]"):
            allowed[key] = read_allowed(path, key, value)
    with problems.collect():
        hosts = spanned(path, given.hosts)
    if given.hosts is None and "data" not in data:
        problems.add(f"'{path}': [data] must say which data it holds, as data = \"patients.csv\"")
    problems.tell()
    made = allowed_by(allowed, hosts is not None)
    return Silo(str(name).strip(), folder, data, run, made, hosts, most_bytes=most_bytes, ranges=ranges)


def checked(path: Path, table: str, content: Any, problems: Problems) -> Settings:
    """Return the settings of a table that are known; others are problems."""
    kinds: dict[str, tuple[str, ...]] = {
        "data": (*OWN_DATA, *OWN_SPLIT, "ranges"),
        "run": OWN_RUN,
        "allow": tuple(fields_by_name(Allowed)),
    }
    if not isinstance(content, dict):
        problems.add(f"'{path}': {table} is a table, [{table}]")
        return {}
    unknowns = [key for key in content if key not in kinds[table]]
    problems.add(*(f"'{path}' [{table}]: {unknown('setting', key, kinds[table])}" for key in unknowns))
    known = {key: value for key, value in content.items() if key not in unknowns}
    if not isinstance(known.get("ranges", {}), dict):
        problems.add(f"'{path}' [{table}]: ranges is a table, as ranges = {{age = [0, 120]}}")
        del known["ranges"]
    return known


def read_allowed(path: Path, key: str, value: Any) -> Any:
    """Return a setting of what is allowed: a list of names, or a number."""
    if key not in ("methods", "files", "parts", "data", "names"):
        return converted(fields_by_name(Allowed)[key], value)
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f'{key} is a list of names, as ["fedper"]')
    if key in ("files", "data"):  # beside the file, as people write them
        beside = path.expanduser().parent
        names = [name if is_data_name(name) else str(beside / Path(name).expanduser()) for name in names]
    return tuple(names)


def converted(spec: dataclasses.Field[Any], value: Any) -> Any:
    """Convert a setting of the file, where numbers and true or false stand without quotes."""
    if isinstance(value, str) and field_type(spec)[0] in (int, float, bool):
        raise ConfigError(f"{spec.name} = {value!r} is a text, not {allowed_values(spec)}: write it without quotes")
    return convert(spec, value)


def stated_range(path: Path, column: str, limits: Any) -> tuple[float, float]:
    """Return the stated range of a column."""
    numbers = isinstance(limits, list) and len(limits) == 2 and all(type(end) in (int, float) for end in limits)
    if not numbers or not -LARGEST_VALUE <= limits[0] < limits[1] <= LARGEST_VALUE:
        raise ConfigError(f"'{path}' [data]: ranges of '{column}' are {limits!r}; write [LOWEST, HIGHEST]")
    return float(limits[0]), float(limits[1])


def spanned(path: Path, hosts: Any) -> tuple[int, int] | None:
    """Return the first and the last simulated client of `0-999`."""
    if hosts is None:
        return None
    first, dash, last = str(hosts).partition("-")
    if not (dash and first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
        raise ConfigError(f"'{path}': hosts = {hosts!r} is not of the form \"0-999\", the first and the last client")
    return int(first), int(last)


def is_data_name(text: str) -> bool:
    """Return whether a text names data of Hugging Face or of an installed package, and no file."""
    return text.startswith("hf:") or text in published("data set")


def resolved(path: str) -> str | Path:
    """Return where a path leads, links followed: one file may have many names. A name of data leads nowhere."""
    return path if is_data_name(path) else Path(os.path.realpath(os.path.expanduser(path)))


def fields_by_name(table: type) -> dict[str, dataclasses.Field[Any]]:
    """Return the fields of a table of settings, by name."""
    return {spec.name: spec for spec in dataclasses.fields(table)}
