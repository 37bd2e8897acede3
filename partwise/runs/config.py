"""The settings of a run: typed fields in four tables, from Python, a TOML file or the command line."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from partwise.data import CATALOGUE, parse_rule
from partwise.data.readers.places import absolute
from partwise.errors import ConfigError, Problems, unknown
from partwise.method import Method, Training
from partwise.methods import find
from partwise.options import Checked, convert, option

DEVICES = ("auto", "cpu", "cuda")


def check_partition(rule: str) -> None:
    if rule != "auto":
        parse_rule(rule)


def check_augmentation(text: str) -> None:
    from partwise.rounds.augment import parse_augmentation  # needs torch; the help of a run does not

    parse_augmentation(text)


def check_robust(text: str) -> None:
    from partwise.rounds.robust import parse_robust  # needs torch; the help of a run does not

    parse_robust(text)


def check_histograms(text: str) -> None:
    if text != "exact":
        from partwise.privacy.histograms import parse_histograms  # needs torch, as above

        parse_histograms(text)


def check_device(name: str) -> None:
    """Whether there is such a device here is known when the run is prepared."""
    device, colon, number = name.partition(":")
    if device not in DEVICES or (colon and (device != "cuda" or not number.isdecimal())):
        raise ConfigError(unknown("device", name, [*DEVICES, "cuda:NUMBER"]))


@dataclass(kw_only=True)
class Data(Checked):
    """What is learned, and how it is divided among clients."""

    data: str = option("digits", "Data set: a name from `partwise data`, or a file or folder of your own.")
    data_root: str | None = option(None, "First folder to look for the data set in.")
    download: bool = option(False, "Fetch a data set that is missing, where its makers offer it.")
    label: str = option("label", "Tables: the column that is to be predicted.")
    drop: str | None = option(None, "Tables: columns that are no features, separated by commas.")
    missing: Literal["refuse", "mean"] = option("refuse", "Tables: empty cells, or their column's mean in their place.")
    image_size: int | None = option(None, "Images are resized to squares of this many pixels a side.", minimum=1)
    normalise: Literal["half", "unit", "imagenet"] | None = option(
        None, "Images: to -1..1, to 0..1, or by ImageNet's mean and deviation; unset: as the data set's papers do."
    )
    augment: str | None = option(
        None,
        "Training images, at random: flip, rotate:DEGREES and crop:PIXELS, separated by commas.",
        check=check_augmentation,
    )
    allow_nonfinite_data: bool = option(False, "Let NaN and infinity in the data through.")
    clients: int | None = option(None, "Number of clients; unset: 20, or as many as a column has values.", minimum=1)
    partition: str = option(
        "auto",
        "How samples are divided: dir:ALPHA, hsu:ALPHA, pat:CLASSES, quantity:ALPHA, iid, domain, column:NAME or "
        "file:PATH; auto: by domain or client where the data say it, else dir:0.1.",
        check=check_partition,
    )
    split: Literal["auto", "merged", "original"] = option(
        "auto",
        "merged: each client's samples are divided into train and test; original: the data set's own test set; "
        "auto: merged, unless the data set's papers do otherwise.",
    )
    test_share: float | None = option(
        None,
        "Share of a client's samples that are its test set; unset: 0.25, domains 0.2.",
        above=0,
        below=1,
        when="split=auto|merged",
    )
    train_samples: int | None = option(None, "Most training samples of a client; others are left out.", minimum=1)
    validation: float = option(0.0, "Share of a client's training samples that are set aside.", minimum=0, below=1)
    min_samples: int | None = option(
        None, "Fewest samples of a client; partitions are redrawn until it holds.", minimum=0
    )
    cap: bool = option(False, "dir: clients that hold their equal share get no more.")
    balance: bool = option(False, "pat: clients get equal shares of their classes.")


@dataclass(kw_only=True)
class Model(Checked):
    """The network."""

    model: str = option("auto", "Network; auto: the one that belongs to the data set.")
    batch_norm: bool = option(False, "Batch-norm after every convolution (hidden layer) of the small networks.")
    dropout: float = option(0.0, "Dropout before the head.", minimum=0, below=1)
    projector: bool = option(False, "A projector as the last layer of the body.")
    weights: str | None = option(None, "File of weights to start from: .safetensors, or .pth without code in it.")


@dataclass(kw_only=True)
class Run(Checked):
    """How the run is carried out and what it shows."""

    seed: int = option(0, "The one seed that everything random comes from.", minimum=0)
    engine: Literal["auto", "loop", "workers", "vector"] = option(
        "auto", "One client after another, the same in several processes, many side by side; auto: a rule chooses."
    )
    workers: int | None = option(
        None, "Processes of the workers engine; unset: one for each processor.", minimum=1, when="engine=auto|workers"
    )
    device: str = option("auto", "cpu, cuda, cuda:NUMBER or auto.", check=check_device)
    dtype: Literal["float32", "float64", "bfloat16"] = option(
        "float32", "Precision; bfloat16: of the forward pass, the parameters stay float32."
    )
    block: int | None = option(
        None, "Clients in a block of the vector engine; unset: all of a round.", minimum=1, when="engine=auto|vector"
    )
    compile: Literal["auto", "yes", "no"] = option(
        "auto",
        "Compile the steps of the vector engine; auto: in the phases that are long enough to pay for it.",
        when="engine=auto|vector",
    )
    threads: int | None = option(
        None, "Threads that torch uses on a CPU; unset: one where steps are small, else torch's own choice.", minimum=1
    )
    deterministic: bool = option(False, "Only deterministic algorithms, also on a GPU.")
    eval_every: int = option(1, "Rounds between two evaluations; the last round is always evaluated.", minimum=1)
    eval_at: tuple[int, ...] | None = option(None, "Rounds at which copies are adapted; unset: the last.", minimum=1)
    eval_clients: int | None = option(None, "Evaluate a fixed sample of this many clients; unset: all.", minimum=1)
    moment: Literal["received", "trained", "adapted"] = option(
        "received",
        "When methods are compared: after download, after a round's training (all clients must take part), or adapted "
        "by --finetune-epochs of cross-entropy on a copy, the same for every method.",
    )
    metric: Literal["accuracy", "balanced", "f1", "auroc"] = option(
        "accuracy", "What chooses the best round, ranks methods and stops early."
    )
    hold_out: float = option(
        0.0, "Share of clients that never train, and join after the last round.", minimum=0, below=1
    )
    join_rounds: int = option(10, "Rounds for which a client that joins trains what is its own.", minimum=0)
    patience: int | None = option(
        None, "Stop after this many evaluations without a better one on validation data; unset: never.", minimum=1
    )
    check: bool = option(
        False, "Train a client of every round again by the loop, compare, and tell how fast a nudged copy departs."
    )
    checkpoint_every: float = option(
        60.0, "Seconds between two checkpoints in the run's folder; 0: one after every round.", minimum=0
    )
    save_models: bool = option(True, "Write every client's model into the run's folder.")


@dataclass(kw_only=True)
class Robust(Checked):
    """What the server does about updates that are wrong."""

    robust: str | None = option(
        None,
        "In place of a mean: median, trimmed[:SHARE], krum[:ATTACKERS] or clip[:NORM].",
        check=check_robust,
    )
    outliers: Literal["log", "leave-out", "clip"] = option(
        "log",
        "Treatment of updates far longer than the round's others: log them only, or also leave them out or clip them.",
    )
    outlier_factor: float = option(
        7.0,
        "Updates longer than this multiple of the round's median norm are outliers, if they also lie far beyond the "
        "round's own spread.",
        minimum=1,
    )


@dataclass(kw_only=True)
class Privacy(Checked):
    """What happens to an update before it leaves a client."""

    upload_clip: float | None = option(
        None, "Largest L2 norm of what a client uploads, as the difference from what it received.", above=0
    )
    upload_noise: float = option(
        0.0,
        "Gaussian noise that every client adds to its upload: its standard deviation, in upload_clips.",
        minimum=0,
        when="upload_clip",
    )
    upload_top: float = option(
        1.0,
        "Share of the numbers of parts that is uploaded, the largest; what is not is added to the next difference.",
        above=0,
        maximum=1,
        when="upload_noise=0",
    )
    upload_bits: int | None = option(
        None, "Bits of an uploaded number, rounded up or down at random; unset: all.", minimum=1, maximum=16
    )
    histograms: str = option(
        "exact",
        "What clients tell of their label counts: exact, presence, bits:NUMBER or laplace:EPSILON.",
        check=check_histograms,
    )
    min_class_count: int = option(
        1, "Classes of which a client has fewer samples are left out of what it uploads by class.", minimum=1
    )
    dp_clip: float | None = option(None, "DP-SGD: largest L2 norm of the gradient of one sample.", above=0)
    dp_noise: float = option(
        0.0,
        "DP-SGD: Gaussian noise on the sum of these gradients: its standard deviation, in dp_clips.",
        minimum=0,
        when="dp_clip",
    )
    delta: float = option(
        1e-5, "Delta at which epsilon is told.", above=0, below=1, when="not upload_noise=0 or not dp_noise=0"
    )
    accountant: Literal["rdp", "prv"] = option(
        "rdp",
        "Opacus' accountant that tells epsilon; prv is tighter and slower.",
        when="not upload_noise=0 or not dp_noise=0",
    )


@dataclass(kw_only=True)
class Failures(Checked):
    """Clients that fail, as a simulation plays them."""

    client_dropout: float = option(
        0.0, "Probability that a participant drops out of a round: nothing of it arrives.", minimum=0, maximum=1
    )
    stragglers: float = option(
        0.0,
        "Probability that a participant's answer comes too late: it trained, but is not mixed.",
        minimum=0,
        maximum=1,
    )
    failure_trace: str | None = option(
        None,
        "CSV file that says who fails when, in place of probabilities: round,client,what (drop, late or back).",
        when="not client_dropout and not stragglers",
    )
    min_clients: int = option(
        1, "Fewest usable updates of a round; with fewer, its copies stay as they are.", minimum=1
    )

    @property
    def played(self) -> bool:
        """Whether any client can fail."""
        return bool(self.client_dropout or self.stragglers or self.failure_trace)


LIES_AT = "# lies at "  # begins the line below a relative path: where it led when it was written
HANDED_IN = "handed in from Python:"  # stands for an object that no file can name

SECTIONS: dict[str, type] = {
    "data": Data,
    "model": Model,
    "train": Training,
    "robust": Robust,
    "privacy": Privacy,
    "failures": Failures,
    "run": Run,
}
TABLES = {name: table for name, table in SECTIONS.items() if table is not Training}  # a method brings those itself


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
    notes: tuple[str, ...] = ()  # where its settings come from, if not from whoever asked for it

    def __post_init__(self) -> None:
        if self.data.clients is not None:
            self.check_clients(self.data.clients)
        some = self.method.participation < 1 or self.method.clients_per_round not in (None, self.data.clients)
        if self.run.moment == "trained" and (some or self.failures.played):
            raise ConfigError("moment = trained is known of a round's participants alone: let all clients take part")

    def check_clients(self, clients: int) -> None:
        """Refuse to ask more clients than there are."""
        numbers = {"clients_per_round": self.method.clients_per_round, "eval_clients": self.run.eval_clients}
        larger = {name: number for name, number in numbers.items() if number is not None and number > clients}
        if larger:
            raise ConfigError(*(f"{name} = {n} is more than the {clients} clients" for name, n in larger.items()))

    def as_tables(self) -> dict[str, dict[str, Any]]:
        """Every value by table; None where a field is unset."""
        shared = {spec.name for spec in dataclasses.fields(Training)}
        training = {spec.name: getattr(self.method, spec.name) for spec in dataclasses.fields(self.method)}
        tables = {name: values(getattr(self, name)) for name in TABLES}
        tables["train"] = {name: value for name, value in training.items() if name in shared}
        tables["method"] = {name: value for name, value in training.items() if name not in shared}
        return tables

    def to_toml(self) -> str:
        """The whole configuration as a file that `--config` reads back; unset fields are comments.

        So is what a relative path stood for when it was written, and which method file it was.
        """
        tables = self.as_tables()
        tables = {"method": {"name": self.name, **tables.pop("method")}, **tables}
        blocks = []
        for table, content in tables.items():
            lines = [f"[{table}]"]
            for key, value in content.items():
                lines.append(f"# {key} is unset" if value is None else f"{key} = {literal(value)}")
                path = path_in(key, value)
                if path and not os.path.isabs(path) and os.path.exists(os.path.expanduser(path)):
                    lines.append(LIES_AT + literal(str(absolute(path))))
                if key == "name" and (method := file_of(self.name)):
                    lines.append(f"# SHA-256 {hashlib.sha256(method.read_bytes()).hexdigest()}")
            blocks.append("\n".join(lines) + "\n")
        return "\n".join(blocks)


def label(method: str) -> str:
    """The name of a method in tables and folders: that of a user's file without its folder and ending."""
    return Path(method).stem if method.endswith(".py") else method.removeprefix(HANDED_IN).strip().lower()


def file_of(method: str) -> Path | None:
    """The file of a method that is one of the user's."""
    return path if method.endswith(".py") and (path := Path(os.path.expanduser(method))).is_file() else None


def path_in(key: str, value: Any) -> str | None:
    """The path that a setting names, if it names one."""
    if key == "name":
        return value if file_of(value) else None
    if key == "partition":
        return value.removeprefix("file:") if value.startswith("file:") else None
    if key == "data":
        named = value in CATALOGUE or value.startswith(("hf:", HANDED_IN))
        return None if named else value
    return value if key in ("data_root", "weights", "failure_trace") else None


def values(settings: Any) -> dict[str, Any]:
    return {spec.name: getattr(settings, spec.name) for spec in dataclasses.fields(settings)}


def literal(value: Any) -> str:
    """A value as TOML writes it; JSON writes texts, numbers, booleans and lists the same way, except one letter."""
    written = json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
    return written.replace("\x7f", "\\u007f")


def known_fields(method: type[Method]) -> dict[str, dataclasses.Field]:
    """Every setting of a run of this method, by name."""
    result = {spec.name: spec for table in TABLES.values() for spec in dataclasses.fields(table)}
    for spec in dataclasses.fields(method):
        if spec.name in result:
            raise ConfigError(f"{method.__name__}.{spec.name} has the name of a setting of every run; choose another")
        result[spec.name] = spec
    return result


# (name, method, settings): what a preset says where the settings do not, and a note on it
Preset = Callable[[str, type[Method], dict[str, Any]], tuple[dict[str, Any], list[str]]]


def make_config(
    name: str | type[Method] | Method,
    settings: dict[str, Any],
    places: Mapping[str, str] | None = None,
    preset: Preset | None = None,
) -> Config:
    """The configuration of a run from flat settings. All that is wrong with them is refused at once.

    `places` says where settings were written, for the refusal; `preset` is as that of `make_configs`.
    """
    if preset is not None:
        if isinstance(name, Method):
            raise ConfigError("preset goes with the name or the class of a method: an object has all its settings")
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
    if problems:  # what the base class does not know may be a setting of the method that is not there
        settings = {key: value for key, value in settings.items() if key in known}
    fitting = {}
    for key, value in settings.items():
        with problems.collect((places or {}).get(key)):
            fitting[key] = convert(setting(known, key), value)

    def pick(table: type) -> Any:
        return table(**{spec.name: fitting[spec.name] for spec in dataclasses.fields(table) if spec.name in fitting})

    called = name if isinstance(name, str) else f"{HANDED_IN} {method.__name__}"
    with problems.collect():
        config = Config(called, pick(method), **{name: pick(table) for name, table in TABLES.items()})
    problems.tell()
    return config


def make_configs(
    methods: Sequence[tuple[str, type[Method]]],
    settings: dict[str, Any],
    seeds: Sequence[Any],
    places: Mapping[str, str] | None = None,
    preset: Preset | None = None,
) -> list[Config]:
    """A configuration for every method and seed. A setting goes to the methods that have it; one at least must.

    `preset` gives settings that hold where nothing else is said.
    """
    problems = Problems()
    with problems.collect():
        check_names([label(name) for name, _ in methods])
    chosen, below = [], {}
    for name, method in methods:
        with problems.collect((places or {}).get("host")):
            below[name] = preset(name, method, settings) if preset else ({}, [])
            chosen.append((name, method.variant(below[name][0] | settings)))
    problems.tell()  # without the methods, nobody knows the settings
    methods = chosen
    known = {name: known_fields(method) for name, method in methods}
    every = {key: spec for fields in known.values() for key, spec in fields.items()}
    for key in settings:
        with problems.collect((places or {}).get(key)):
            setting(every, key)
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


def check_names(names: Sequence[str]) -> None:
    """Refuse methods of the same name: their rows and folders could not be told apart."""
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise ConfigError(*(f"two methods are called '{name}'; each must have a name of its own" for name in twice))


def setting(known: dict[str, dataclasses.Field], key: str) -> dataclasses.Field:
    """The setting of this name; one that is not known is refused with the nearest."""
    if key not in known:
        raise ConfigError(unknown("setting", key, known))
    return known[key]
