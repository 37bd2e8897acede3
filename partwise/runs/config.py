"""The settings of a run: typed fields in four tables, from Python, a TOML file or the command line."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from partwise.data import parse_rule
from partwise.data.readers.catalogue import data_names
from partwise.data.readers.places import absolute
from partwise.errors import ConfigError, Problems, unknown
from partwise.method import Method, Training
from partwise.methods import find, names, published_method
from partwise.options import Checked, convert, option
from partwise.records.metrics import ChoosingMetric

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
    """Refuse a name that is no device; whether this machine has it is checked when the run is prepared."""
    device, colon, number = name.partition(":")
    if device not in DEVICES or (colon and (device != "cuda" or not number.isdecimal())):
        raise ConfigError(unknown("device", name, [*DEVICES, "cuda:NUMBER"]))


@dataclass(kw_only=True)
class Data(Checked):
    """The data set, and its partition among clients."""

    data: str = option("digits", "Data set: a name from `partwise data`, or a file or folder of your own.")
    data_root: str | None = option(None, "Folder to search for the data set before the usual places.")
    download: bool = option(False, "Download the data set if it is missing and its publisher offers a download.")
    label: str = option("label", "Tables: column to predict.")
    drop: str | None = option(None, "Tables: columns not to use as features, separated by commas.")
    missing: Literal["refuse", "mean"] = option(
        "refuse", "Tables: how to treat empty cells; mean fills in the mean of the column."
    )
    image_size: int | None = option(
        None,
        "Images: resize to squares with sides of this many pixels; unset: the data set's usual size.",
        minimum=1,
    )
    normalise: Literal["half", "unit", "imagenet"] | None = option(
        None,
        "Images: scale pixels to -1..1 (half) or 0..1 (unit), or by ImageNet's mean and standard deviation; unset: as "
        "in the data set's papers.",
    )
    augment: str | None = option(
        None,
        "Images: random changes to training images, separated by commas: flip, rotate:DEGREES, crop:PIXELS; unset: "
        "none.",
        check=check_augmentation,
    )
    allow_nonfinite_data: bool = option(False, "Accept NaN and infinity in the data.")
    clients: int | None = option(
        None, "Number of clients; unset: 20, or one for each value of the partition's column.", minimum=1
    )
    partition: str = option(
        "auto",
        "How to divide samples among clients: dir:ALPHA, hsu:ALPHA, pat:CLASSES, quantity:ALPHA, iid, domain, "
        "column:NAME or file:PATH; auto: by the domains or clients that the data name, otherwise dir:0.1.",
        check=check_partition,
    )
    split: Literal["auto", "merged", "original"] = option(
        "auto",
        "Source of test samples. merged: divide each client's samples into train and test; original: the data set's "
        "own test set; auto: merged, unless the data set's papers do otherwise.",
    )
    test_share: float | None = option(
        None,
        "Fraction of each client's samples to test on; unset: 0.25, or 0.2 for data with domains.",
        above=0,
        below=1,
        when="split=auto|merged",
    )
    split_seed: int | None = option(
        None,
        "Seed that divides samples among clients and into training, test and validation sets, each client's own by its "
        "name, as on a node; unset: the run's seed, and by the client's number.",
        minimum=0,
    )
    train_samples: int | None = option(
        None, "Largest number of training samples per client, the rest are not used; unset: no limit.", minimum=1
    )
    validation: float = option(
        0.0, "Fraction of each client's training samples to set aside for validation.", minimum=0, below=1
    )
    min_samples: int | None = option(
        None,
        "Smallest number of samples per client; the partition is redrawn until every client has them. Unset: 10 for "
        "dir and quantity, otherwise 1.",
        minimum=0,
    )
    cap: bool = option(False, "dir: give no further samples to clients that already have an equal share.")
    balance: bool = option(False, "pat: give a client the same number of samples of each of its classes.")


@dataclass(kw_only=True)
class Model(Checked):
    """The network."""

    model: str = option("auto", "Network: the name of a built-in one, or timm:NAME; auto: the data set's usual one.")
    batch_norm: bool = option(
        False, "Add batch-norm after every convolution or hidden layer; small built-in networks only."
    )
    dropout: float = option(0.0, "Probability of dropout before the head.", minimum=0, below=1)
    projector: bool = option(False, "Add a projector as the last layer of the body.")
    weights: str | None = option(
        None, "File of initial weights: .safetensors, or .pth with nothing but tensors; unset: draw them from the seed."
    )


@dataclass(kw_only=True)
class Run(Checked):
    """The execution and evaluation of the run."""

    seed: int = option(0, "Seed of everything random in the run.", minimum=0)
    engine: Literal["auto", "loop", "workers", "vector"] = option(
        "auto",
        "How to compute clients. loop: one after another; workers: the same in several processes; vector: many at once "
        "on one device; auto: the likely fastest that can run the method.",
    )
    workers: int | None = option(
        None,
        "Number of processes of the workers engine; unset: one per CPU core.",
        minimum=1,
        when="engine=auto|workers",
    )
    device: str = option("auto", "Device: cpu, cuda, cuda:NUMBER or auto.", check=check_device)
    dtype: Literal["float32", "float64", "bfloat16"] = option(
        "float32", "Floating-point type; bfloat16 applies to the forward pass, parameters stay float32."
    )
    block: int | None = option(
        None,
        "Largest number of clients that the vector engine computes at once; unset: all of a round.",
        minimum=1,
        when="engine=auto|vector",
    )
    compile: Literal["auto", "yes", "no"] = option(
        "auto",
        "Compile the training steps of the vector engine; auto: those of phases long enough to save time.",
        when="engine=auto|vector",
    )
    threads: int | None = option(
        None,
        "Number of torch's CPU threads; unset: 1 for small training steps, otherwise torch's own choice.",
        minimum=1,
    )
    deterministic: bool = option(False, "Use deterministic algorithms only, also on a GPU.")
    eval_every: int = option(1, "Evaluate every this many rounds, and after the last one.", minimum=1)
    eval_at: tuple[int, ...] | None = option(
        None, "Rounds after which to evaluate copies that are adapted or fine-tuned; unset: the last.", minimum=1
    )
    eval_clients: int | None = option(None, "Evaluate a fixed sample of this many clients; unset: all.", minimum=1)
    moment: Literal["received", "trained", "adapted"] = option(
        "received",
        "Moment in a round whose accuracy compares methods. received: after download; trained: after local training "
        "(all clients must take part); adapted: after --finetune-epochs of cross-entropy on a copy, the same for all "
        "methods.",
    )
    metric: ChoosingMetric = option(  # noqa: RUF009 - a type that follows from the table
        "accuracy", "Metric that chooses the best round, ranks methods and decides early stopping."
    )
    hold_out: float = option(
        0.0, "Fraction of clients to keep out of training; they join after the last round.", minimum=0, below=1
    )
    join_rounds: int = option(10, "Rounds in which a joining client trains its personal parts.", minimum=0)
    patience: int | None = option(
        None, "Stop after this many evaluations without improvement on validation data; unset: never.", minimum=1
    )
    check: bool = option(
        False,
        "Retrain one client per round with the loop engine, compare the results, and report how fast a perturbed copy "
        "diverges.",
    )
    checkpoint_every: float = option(
        60.0, "Seconds between checkpoints in the run's folder; 0: one after every round.", minimum=0
    )
    save_models: bool = option(True, "Write every client's model into the run's folder.")


@dataclass(kw_only=True)
class Robust(Checked):
    """The server's protection against wrong updates."""

    robust: str | None = option(
        None,
        "Aggregate by a robust mean: median, trimmed[:SHARE], krum[:ATTACKERS] or clip[:NORM]; unset: the plain mean.",
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
    """Filters of updates, histograms and gradients before anything leaves a client."""

    upload_clip: float | None = option(
        None, "Clip each upload, as its difference from the download, to this L2 norm; unset: no clipping.", above=0
    )
    upload_noise: float = option(
        0.0,
        "Add Gaussian noise to every upload; standard deviation as a multiple of upload_clip.",
        minimum=0,
        when="upload_clip",
    )
    upload_top: float = option(
        1.0,
        "Fraction of update entries to upload, largest first; the rest carries over to the client's next update (error "
        "feedback).",
        above=0,
        maximum=1,
        when="upload_noise=0",
    )
    upload_bits: int | None = option(
        None,
        "Round uploaded numbers to this many bits, up or down at random; unset: no rounding.",
        minimum=1,
        maximum=16,
    )
    histograms: str = option(
        "exact",
        "Form in which clients upload label counts: exact, presence, bits:NUMBER or laplace:EPSILON.",
        check=check_histograms,
    )
    min_class_count: int = option(
        1, "Leave classes with fewer samples on a client out of what it uploads by class.", minimum=1
    )
    dp_clip: float | None = option(
        None, "DP-SGD: clip the gradient of each sample to this L2 norm; unset: no DP-SGD.", above=0
    )
    min_train_samples: int = option(
        1, "Tables: standardise a column by the clients with at least this many filled training cells.", minimum=1
    )
    dp_noise: float = option(
        0.0,
        "DP-SGD: add Gaussian noise to the sum of clipped gradients; standard deviation as a multiple of dp_clip.",
        minimum=0,
        when="dp_clip",
    )
    delta: float = option(
        1e-5, "Delta for which to report epsilon.", above=0, below=1, when="not upload_noise=0 or not dp_noise=0"
    )
    accountant: Literal["rdp", "prv"] = option(
        "rdp",
        "Opacus accountant that computes epsilon; prv is tighter and slower.",
        when="not upload_noise=0 or not dp_noise=0",
    )


@dataclass(kw_only=True)
class Failures(Checked):
    """Simulated failures of clients."""

    client_dropout: float = option(
        0.0,
        "Probability that a participant drops out of a round; its update never arrives.",
        minimum=0,
        maximum=1,
    )
    stragglers: float = option(
        0.0,
        "Probability that a participant's update arrives too late; it has trained, but its update is discarded.",
        minimum=0,
        maximum=1,
    )
    failure_trace: str | None = option(
        None,
        "CSV file of failures, instead of probabilities; columns round, client and what (drop, late or back).",
        when="not client_dropout and not stragglers",
    )
    min_clients: int = option(
        1,
        "Smallest number of usable updates of a round, and of each group in it; with fewer, models stay as they are.",
        minimum=1,
    )

    @property
    def played(self) -> bool:
        """Return whether any client can fail."""
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
TABLES = {name: table for name, table in SECTIONS.items() if table is not Training}  # a method has those as fields


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

    def as_tables(self) -> dict[str, dict[str, Any]]:
        """Return every value by table; None where a field is unset."""
        shared = {spec.name for spec in dataclasses.fields(Training)}
        training = {spec.name: getattr(self.method, spec.name) for spec in dataclasses.fields(self.method)}
        tables = {name: values(getattr(self, name)) for name in TABLES}
        tables["train"] = {name: value for name, value in training.items() if name in shared}
        tables["method"] = {name: value for name, value in training.items() if name not in shared}
        return tables

    def to_toml(self) -> str:
        """Return the whole configuration as a TOML file that `--config` reads; unset fields are comments.

        So is what a relative path stood for when it was written, and which code a method was that is not built in.
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
                if key == "name" and (code := code_of(self.name)):
                    lines.append(f"# SHA-256 {code}")
            blocks.append("\n".join(lines) + "\n")
        return "\n".join(blocks)


def label(method: str) -> str:
    """Return the name of a method in tables and folders: of a method file the name without folder and ending."""
    return Path(method).stem if method.endswith(".py") else method.removeprefix(HANDED_IN).strip().lower()


def file_of(method: str) -> Path | None:
    """Return the path of a method file; None for a built-in method."""
    return path if method.endswith(".py") and (path := Path(os.path.expanduser(method))).is_file() else None


def code_of(method: str) -> str | None:
    """Return the SHA-256 of a method file, or of the package that publishes a method, and that package's version."""
    if file := file_of(method):
        return hashlib.sha256(file.read_bytes()).hexdigest()
    known = published_method(method)
    return f"{known.digest()} {known.package} {known.version}" if known else None


def path_in(key: str, value: Any) -> str | None:
    """Return the path that a setting names; None if it names none."""
    if key == "name":
        return value if file_of(value) else None
    if key == "partition":
        return value.removeprefix("file:") if value.startswith("file:") else None
    if key == "data":
        named = value in data_names() or value.startswith(("hf:", HANDED_IN))
        return None if named else value
    return value if key in ("data_root", "weights", "failure_trace") else None


def values(settings: Any) -> dict[str, Any]:
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
Preset = Callable[[str, type[Method], dict[str, Any]], tuple[dict[str, Any], list[str]]]


def make_config(
    name: str | type[Method] | Method,
    settings: dict[str, Any],
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
            fitting[key] = convert(setting(known, key, [label(called)]), value)

    def pick(table: type) -> Any:
        return table(**{spec.name: fitting[spec.name] for spec in dataclasses.fields(table) if spec.name in fitting})

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
    """Return a configuration for every method and seed. Each setting goes to the methods that have it, at least one.

    `preset` gives values for settings that are not in `settings`.
    """
    problems = Problems()
    with problems.collect():
        check_names([label(name) for name, _ in methods])
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
            setting(every, key, [label(name) for name, _ in methods if name])
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
    """Refuse methods of the same name: they would share rows and folders."""
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise ConfigError(*(f"two methods are called '{name}'; each needs a different name" for name in twice))


def setting(known: dict[str, dataclasses.Field], key: str, methods: Sequence[str]) -> dataclasses.Field:
    """Return the setting of this name; refuse one that these methods lack, with those that have it or the nearest."""
    if key in known:
        return known[key]
    having = [name for name in names() if key in known_fields(find(name))]
    if having and methods:
        have = f"{listed(having)} {'has' if len(having) == 1 else 'have'}"
        lacking = f"{listed(methods)} {'has' if len(methods) == 1 else 'have'} no option {key}"
        raise ConfigError(f"{lacking}; {have}")
    raise ConfigError(unknown("setting", key, known))


def listed(words: Sequence[str]) -> str:
    """Return words as a sentence lists them: `ditto, fedprox and pfedme`."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
