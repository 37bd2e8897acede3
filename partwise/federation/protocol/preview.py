"""A list of all data that would leave a silo, before any do: `partwise node SILO.toml --check`.

The functions that tell are asked, and nothing is written. The lines are for the silo alone: they also name what stays.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from partwise.data import CATALOGUE
from partwise.data.source import Federation, Source
from partwise.data.sources import own_path
from partwise.data.transforms import TEXT
from partwise.errors import ConfigError, PartwiseError, unknown
from partwise.federation.protocol.data_description import class_names_of, describe_data
from partwise.federation.protocol.handshake import OF_COLUMNS, agree, columns_of
from partwise.federation.protocol.leaving import REPORTED_DIGITS
from partwise.federation.protocol.policy import ANY, Allowed
from partwise.federation.protocol.releases import ReleaseLedger, spent_of
from partwise.federation.protocol.reported_data import ReportedData, check_ranges, names_of
from partwise.federation.protocol.silo import Silo, is_data_name
from partwise.methods import installed_names
from partwise.records.messages import Joined
from partwise.runs.config import Config, make_config
from partwise.runs.settings import Privacy

NEW = ""  # a run that has not begun here: none is called so
NO_PRIVACY, NOISY = Privacy(), Privacy(upload_clip=1.0, upload_noise=1.0)
PRECISION = {"no": "none", "rounded": f"rounded to {REPORTED_DIGITS} digits", "exact": "exact"}


class Found(list[PartwiseError]):
    """Problems of all kinds, raised together as the kind with the highest exit code."""

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Go on behind the `with` block in which a problem was found."""
        try:
            yield
        except PartwiseError as error:
            self.append(error)

    def tell(self) -> None:
        """Raise what was found."""
        if self:
            worst = max(self, key=lambda error: error.exit_code)
            raise type(worst)(*dict.fromkeys(line for error in self for line in error.problems))


def preview(silo: Silo, task: str = "auto") -> list[str]:
    """Return in lines all that would leave a silo in runs of a task; `auto` is what the labels look like.

    All that keeps it from taking part is raised together.
    """
    found, federation, once = Found(), None, hosting(silo)
    with found.collect():
        releases = ReleaseLedger(silo.folder, silo.allow, silo.name)
        releases.check_run(NEW)
    with found.collect():
        check_methods(silo.allow)
    if silo.hosts is None:
        with found.collect():
            config = silo.config(make_config("fedavg", {"task": task}))  # how a silo's data are read is its own affair
            federation = silo.federation(config)
            with found.collect():
                silo.check_sizes(federation)
            with found.collect():
                check_ranges(silo, federation.source)
            once = before_round_1(silo, federation, config)
    found.tell()
    return [*once, "", *each_round(silo, federation), "", *in_all(silo.allow, releases)]


def check_here(silo: Silo) -> None:
    """Refuse methods, files of code and data that a silo's file names and that are not here."""
    found, data = Found(), silo.data.get("data")
    with found.collect():
        check_methods(silo.allow)
    with found.collect():
        if silo.hosts is None and data is not None and data not in CATALOGUE and not is_data_name(data):
            own_path(data, silo.data.get("data_root"))
    found.tell()


def check_methods(allow: Allowed) -> None:
    """Refuse methods and files of code that are not here."""
    known = installed_names()
    lines = [unknown("method", name, known) for name in allow.methods if name not in (ANY, *known)]
    lines += [f"there is no file '{file}'" for file in allow.files if not Path(file).expanduser().is_file()]
    if lines:
        raise ConfigError(*(f"[allow] {line}" for line in lines))


# ---- before the first round


def hosting(silo: Silo) -> list[str]:
    """Return what a node with simulated clients tells."""
    first, last = silo.hosts or (0, 0)
    return [
        f"{silo.name} can take part: it hosts the simulated clients {first} to {last} of the run's own data.",
        "",
        "Once, before the first round:",
        "- what the data of these clients are: the server reads them too, and they have no secrets",
        "- of its own files it reads "
        f"{comma_separated(silo.allow.data)}, and else data sets of the catalogue ([allow] data)",
    ]


def before_round_1(silo: Silo, federation: Federation, config: Config) -> list[str]:
    """Return what a silo tells of its data, and what it keeps to itself."""
    source, allow, record = federation.source, silo.allow, ReportedData(silo, federation, config)
    told = describe_data(federation, record, allow)
    train, test, validation = map(sum, zip(*told.sizes, strict=True))
    columns, classes = told.columns, told.class_names
    labels, unknown_labels = of_labels(silo, source, record, told)
    lines = [
        f"{silo.name} can take part: '{source.name}' has {train + test + validation} samples.",
        "",
        "Once, before the first round, and the same in every run while the data stay:",
        f"- the names {', '.join(told.names)} and {told.data}; how many samples are for training ({train}), "
        f"testing ({test}) and validation ({validation})",
        f"- the shape of a sample ({' x '.join(map(str, told.shape))}); min_clients = {allow.min_clients}",
        *[f"- {len(columns)} columns by name: {comma_separated(columns)}"] * bool(columns),
        *labels,
        "- size, sum and norm of each tensor of the network, as the run's seed draws it",
    ]
    rare = [name for name in class_names_of(source) if name not in classes]
    kept = [f"- the classes {comma_separated(rare)}: a run is refused where no other silo names them"] * bool(rare)
    kept += unknown_labels
    if source.standardise:
        shown, hidden = of_columns(silo, source, record, told)
        lines, kept = [*lines, *shown], [*kept, *hidden]
    else:
        lines.append(f"- how values are scaled: centre {told.centre}, scale {told.scale}, white {told.white}")
    return [*lines, *["", "Stays here, named on this terminal alone:", *kept] * bool(kept)]


def of_labels(silo: Silo, source: Source, record: ReportedData, told: Joined) -> tuple[list[str], list[str]]:
    """Return what a silo tells of its labels, and what it does not."""
    names, kind = told.class_names, told.task
    if kind not in OF_COLUMNS:
        lines = [f"- the classes {comma_separated(names)}" if names else f"- the number of classes ({told.classes})"]
        if source.table is not None and all(map(is_number, source.labels)):
            moments = "its name, and of its training cells count, mean and squared distances from the mean"
            lines.append(f"- in a run of task numbers, in place of the classes: of the label {moments}")
        return lines, []
    lines = [f'- the labels by name: {comma_separated(names)}; a run must say task = "{kind}"']
    counts = record.label_moments(names)[0].tolist()
    sent = [name if silo.noise else f"{name} ({count:g})" for name, count in zip(names, counts, strict=False) if count]
    if sent:
        lines.append(
            f"- count, mean and squared distances from the mean of the training labels{noise_of(silo)}: "
            f"{comma_separated(sent)}"
        )
    few = f"min_train_samples = {silo.allow.min_train_samples}"
    hidden = [name for name, count in zip(names, counts, strict=False) if not count]
    return lines, [f"- all of the label {name} but its name ({few})" for name in hidden]


def is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def noise_of(silo: Silo) -> str:
    """Return how noise covers moments, in words; '' without noise."""
    return f", with noise {silo.noise:g} times as large as what one sample adds" if silo.noise else ""


def of_columns(silo: Silo, source: Source, record: ReportedData, told: Joined) -> tuple[list[str], list[str]]:
    """Return what a silo tells of the features of its columns, and what it does not."""
    every = names_of(source)
    named = told.features or list(every)
    with_features = list(dict.fromkeys(columns_of(told.features, told.columns)))  # all that one silo can agree on
    counts = record.moments(agree({silo.name: replace(told, columns=with_features)}))[0].tolist()
    count = {name: number for name, number in zip(named, counts, strict=True) if number}
    noise = noise_of(silo)
    few, rare = f"min_train_samples = {silo.allow.min_train_samples}", f"min_class_count = {silo.allow.min_class_count}"
    shown, kept, shares = [], [], []
    for column, own in record.texts.items():
        text = {every[feature]: every[feature].removeprefix(f"{column}{TEXT}") for feature in own}
        shown.append(f"- of {column} the texts {comma_separated(text[name] for name in text if name in named)}")
        if hidden := [text[name] for name in text if name not in named]:
            kept.append(f"- of {column} the texts {comma_separated(hidden)} ({rare}, {few})")
        if alone := [text[name] for name in text if name in named and name not in count]:
            kept.append(f"- of {column} how many samples have {comma_separated(alone)} ({rare}, {few})")
        shares += [name for name in text if name in count]
    marks = {feature for own in record.texts.values() for feature in own}
    numbers = {name: record.filled(feature) for feature, name in enumerate(every) if feature not in marks}
    kept += [
        f"- all of {name} but its name: {numbers[name]} training cells ({few})" for name in numbers if name not in count
    ]
    sent = [name if silo.noise else f"{name} ({count[name]:g})" for name in numbers if name in count]
    shown.append(
        f"- count, mean and squared distances from the mean of the training cells{noise}: {comma_separated(sent)}"
    )
    if shares:
        shown.append(f"- the share of training samples{noise} with {comma_separated(shares)}")
    return shown, kept


# ---- later


def each_round(silo: Silo, federation: Federation | None) -> list[str]:
    """Return what leaves after a training or a test."""
    allow = silo.allow
    parts = "all parts and extras" if ANY in allow.parts else f"only {comma_separated(allow.parts)}"
    methods = "any that partwise brings" if ANY in allow.methods else comma_separated(allow.methods)
    return [
        "In each round:",
        f"- of what the method shares: {parts} ([allow] parts); 'partwise methods NAME' lists it",
        f"- methods that may train: {methods} (methods); files of code: {comma_separated(allow.files)} (files)",
        f"- fewest silos behind a mean: {allow.min_clients} (min_clients); this silo's own model "
        f"{'may' if allow.relay else 'does not'} go to other silos (relay)",
        "- numbers of training samples and steps and, without noise, whether training diverged",
        f"- training losses: {precision(allow, 'loss')} (loss)",
        f"- scores: {precision(allow, 'scores')} (scores), over {tested(allow, federation)}",
        "- where the silo refuses, a line that says why",
    ]


def tested(allow: Allowed, federation: Federation | None) -> str:
    """Return the samples over which scores leave."""
    fewest = f"min_test_samples = {allow.min_test_samples}"
    if federation is None:
        return f"a client's test and validation samples ({fewest})"
    source, sets = federation.source, {"test": federation.test, "validation": federation.validation}
    labels = {kind: source.y[torch.cat(own)] for kind, own in sets.items()}
    known = {kind: source.task.enough_known(y, allow.min_test_samples) for kind, y in labels.items()}
    enough = [f"{len(y)} {kind} samples" for kind, y in labels.items() if known[kind]]
    return f"{' and '.join(enough) or 'no samples'} ({fewest})"


def precision(allow: Allowed, what: Literal["loss", "scores"]) -> str:
    """Return how losses or scores leave, in runs without noise and with it."""
    quiet, noisy = (PRECISION[allow.telling(what, privacy)] for privacy in (NO_PRIVACY, NOISY))
    return quiet if quiet == noisy else f"{quiet}, {noisy} in runs with noise"


def in_all(allow: Allowed, releases: ReleaseLedger) -> list[str]:
    """Return what bounds all runs together, and what left so far."""
    demands = {"least_noise": allow.least_noise, "least_dp_noise": allow.least_dp_noise}
    noise = [f"{name} = {value:g}" for name, value in demands.items() if value]
    bound = "no bound" if allow.most_epsilon is None else f"at most {allow.most_epsilon:g}, at delta = {allow.delta:g}"
    left: Counter[str] = Counter()
    for released in releases.runs.values():
        left.update(released.left)
    spent = spent_of(releases.runs, allow.delta)
    lines = [
        "In all, over all runs:",
        f"- {allow.most_runs or 'any number of'} runs (most_runs) of {allow.most_rounds or 'any number of'} rounds "
        "(most_rounds), and how many models it wrote after the last one",
        f"- epsilon: {bound} (most_epsilon); noise that a run must have: {comma_separated(noise)}",
    ]
    if not allow.demands_noise:
        lines.append("- so nothing bounds what updates reveal (least_noise, least_dp_noise, most_epsilon)")
    answers = f"answers with {comma_separated(f'{kind} ({number})' for kind, number in left.items())}"
    lines.append(f"- so far: {f'{len(releases.runs)} runs, {answers}' if releases.runs else 'nothing'}")
    if spent:
        lines.append(f"- epsilon so far: {spent:.4g}, of answers under noise")
    return lines


def comma_separated(names: Iterable[str]) -> str:
    """Return names side by side."""
    return ", ".join(names) or "none"
