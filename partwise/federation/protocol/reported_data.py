"""A silo's statistics for the server before round 1: computed once, stored, and repeated in every run.

A salted hash of every cell that they rest on is stored beside them. A statistic changes only if no cell was removed and
enough cells were added to report on these alone. Two answers then differ by many samples, never by one. That holds for
moments, by which features and labels are standardised, and for the names of texts and classes. Noise is drawn once, and
stored. A column has one answer, whether a run takes it for a feature or for its label.
"""

import hmac
import logging
import math
import secrets
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from partwise.data.source import Federation, Source
from partwise.data.standardise import column_moments, texts
from partwise.errors import ConfigError, DataError, PartwiseError
from partwise.federation.protocol.handshake import OF_COLUMNS, columns_of
from partwise.federation.protocol.silo import Silo
from partwise.records.messages import Agreed
from partwise.records.record import Record, read_record
from partwise.records.wire import pack_tree, unpack_tree
from partwise.runs.config import Config
from partwise.streams import stream
from partwise.tasks import Numbers
from partwise.trees import one_tensor
from partwise.writing import make_folder, write

log = logging.getLogger(__name__)

RECORD_FILE = "told.record"  # in the silo's folder
TAG = 8  # bytes of a cell's hash
MARK, NO_MARK = np.float32(1).tobytes(), np.float32(0).tobytes()  # the cell of a sample that has a text, or has not


@dataclass(frozen=True)
class Reported(Record):
    """The reported statistics of a feature or a class."""

    named: bool
    cells: Tensor  # (different cells, 2) their hashes, and how often each was there
    moments: list[float] = field(default_factory=list)  # count, mean, squares; empty: not reported
    filled: float = 0.0  # samples that have a cell in its column
    noise: float = 0.0  # in the norm of what a sample adds

    @property
    def counted(self) -> Counter[int]:
        """Return how often each cell occurs, by its hash."""
        return Counter(dict(self.cells.tolist()))


@dataclass(frozen=True)
class RecordFile(Record):
    """The stored form of a silo's reported data."""

    features: dict[str, Reported] = field(default_factory=dict)
    classes: dict[str, Reported] = field(default_factory=dict)
    salt: str = field(default_factory=lambda: secrets.token_hex(32))
    data: str = ""  # the fingerprint of the data on which it rests
    minima: list[int] = field(default_factory=list)  # the silo's, when it was written
    bins: dict[str, list[float]] = field(default_factory=dict)  # by label: the edges between which it is counted


class ReportedData:
    """The statistics of its training samples that a silo reports.

    They stay as first reported until enough samples were added.
    """

    def __init__(self, silo: Silo, federation: Federation, config: Config):
        self.silo, self.source, self.privacy = silo, federation.source, config.privacy
        self.secret = config.run.seed if silo.known_noise else secrets.randbits(63)
        self.texts = texts(self.source.feature_names, self.source.feature_columns)
        own = torch.cat(list(federation.train))
        self.x, self.y = one_tensor(self.source.x, "a silo")[own], self.source.y[own]
        self.path = silo.folder / RECORD_FILE
        known = read_reported(self.path) if self.path.is_file() else RecordFile()
        self.minima = [silo.allow.min_train_samples, silo.allow.min_class_count]
        self.same_minima = self.minima == known.minima
        self.salt, self.features, self.classes = known.salt, dict(known.features), dict(known.classes)
        self.numbers = self.source.task.names if isinstance(self.source.task, Numbers) else ()
        self.bins = dict(known.bins)
        self.data = self.fingerprint()
        self.changed = self.data != known.data
        if self.changed:
            self.renew()

    def write(self) -> None:
        """Write the statistics before they are reported, whole or not at all."""
        if self.changed:
            make_folder(self.silo.folder)
            content = RecordFile(self.features, self.classes, self.salt, self.data, self.minima, self.bins)
            write(self.path, pack_tree(content), durable=True)

    def moments(self, agreed: Agreed) -> Tensor:
        """Return the reported moments of the agreed features, (3, features); zeros where nothing is reported."""
        if not agreed.standardise:
            return torch.zeros(3, 0, dtype=torch.float64)
        rows, asked = [], agreed.features or names_of(self.source)
        for name, column in zip(asked, columns_of(asked, agreed.columns or asked), strict=True):
            told = self.features.get(name)
            if column in self.texts and told is None and not self.silo.noise:  # a text that nobody has here
                others = [self.features[text].filled for text in self.named(column) if text in self.features]
                told = Reported(False, torch.empty(0, 2), [float(len(self.x)), 0.0, 0.0], max(others, default=0.0))
            wanted = told is not None and self.wanted(told, column in self.texts)
            rows.append(told.moments if told is not None and wanted else [0.0, 0.0, 0.0])
        return torch.tensor(rows, dtype=torch.float64).T.contiguous()

    def label_moments(self, names: Sequence[str]) -> Tensor:
        """Return the reported moments of labels that are numbers, (3, numbers); zeros where nothing is reported."""
        rows = []
        for name in names if self.numbers else ():
            told = self.features.get(name)
            rows.append(told.moments if told is not None and self.wanted(told, False) else [0.0, 0.0, 0.0])
        return torch.tensor(rows, dtype=torch.float64).view(-1, 3).T.contiguous()

    def check_bins(self, edges: tuple[float, ...]) -> None:
        """Note the first edges between which a label is counted; refuse others later.

        Counts between two sets of edges would differ by few samples, and show what these are.
        """
        label = self.source.task.names[0]
        first = self.bins.get(label)
        if first is not None and first != list(edges):
            raise ConfigError(
                f"{self.silo.name} counts '{label}' in the same bins in every run: "
                f"set bins = {first} in [data] of the run"
            )
        self.changed = self.changed or first is None
        self.bins[label] = list(edges)

    def wanted(self, told: Reported, text: bool) -> bool:
        """Return whether an entry meets the run's own minima, which may be larger than the silo's."""
        few, rare = self.privacy.min_train_samples, self.privacy.min_class_count
        if not told.moments or not text:
            return bool(told.moments) and told.filled >= few
        have = round(told.moments[0] * told.moments[1])
        return max(1, min(have, told.moments[0] - have)) >= rare and max(1, told.filled) >= few

    def named(self, column: str) -> list[str]:
        """Return the features of a column of texts."""
        return [self.source.feature_names[feature] for feature in self.texts[column]]

    # ---- what is reported anew

    def renew(self) -> None:
        """Replace the statistics that may be reported anew."""
        kept: list[str] = []
        fresh = self.fresh().T.tolist() if standardised_names(self.source) else []
        of_column = {text: self.named(column) for column in self.texts for text in self.named(column)}
        for feature, name in enumerate(names_of(self.source) if self.source.standardise else ()):
            now = Reported(True, self.cells(name, self.x[:, feature]), fresh.pop(0), self.filled(feature))
            self.take(self.features, name, now, of_column.get(name, ()), kept)
        for number, name in enumerate(self.numbers):
            values = self.y[:, number].float()  # as features are: the column may be one in another run
            now = Reported(True, self.cells(name, values), fresh.pop(0), len(present_values(values)))
            self.take(self.features, name, now, (), kept)
        classes = () if self.source.task.kind in OF_COLUMNS else self.source.labels
        for label, name in enumerate(classes):
            have = (self.y == label).flatten(1).any(1) if self.y.ndim > 1 else self.y == label
            now = Reported(True, self.cells(name, have.float()), filled=len(self.y))
            self.take(self.classes, name, now, classes, kept)
        if kept:
            log.warning(
                "the training data of %s changed; what is told of these stays as before, for fewer than "
                "min_train_samples = %d filled cells were added, or some were removed: %s",
                self.silo.name,
                self.silo.allow.min_train_samples,
                ", ".join(kept),
            )

    def take(
        self, known: dict[str, Reported], name: str, now: Reported, beside: Collection[str], kept: list[str]
    ) -> None:
        """Report the newest statistics, as far as the cells that were added since may be reported alone.

        `beside` are the texts of the same column, or the classes; a new one of them had no sample before.
        """
        rows = max((known[other].counted.total() for other in beside if other in known), default=0)
        before = known.get(name)
        if before is None and rows:
            before = Reported(False, torch.tensor([[self.tag(name, NO_MARK), rows]]))
        if before is not None and before.moments and before.noise < self.silo.noise:
            before = None  # it is reported with more noise from now on
        elif before is not None and not before.moments and not self.same_minima:
            before = None  # its owner may tell of it now, or no more
        old, new = before.counted if before else Counter[int](), now.counted
        added = new - old
        naming, telling = self.enough(name, added, bool(beside), now.filled) if not old - new else (False, False)
        if self.silo.noise:
            now = replace(now, noise=self.silo.noise, filled=now.moments[0] if now.moments else 0.0)
        if before is None or telling or (naming and not before.named):
            known[name] = now if telling else replace(now, named=naming, moments=[])
        else:
            known[name] = before
            if before.moments and old != new:
                kept.append(name)

    def enough(self, name: str, added: Counter[int], text: bool, filled: float) -> tuple[bool, bool]:
        """Return whether the added cells alone suffice to name a feature, and to tell its moments."""
        few, rare, total = self.silo.allow.min_train_samples, self.silo.allow.min_class_count, added.total()
        if not text:
            return total >= few, total >= few
        have = added[self.tag(name, MARK)]
        naming = total >= few and max(1, filled) >= few and max(1, have) >= rare
        return naming, naming and max(1, total - have) >= rare

    def fresh(self) -> Tensor:
        """Return the present moments of features and labels, (3, columns), with noise if the silo demands it."""
        columns = [self.x] * self.source.standardise + [self.y] * bool(self.numbers)
        if not self.silo.noise:
            return torch.cat(list(map(column_moments, columns)), 1)
        values, ranges = torch.cat([each.double() for each in columns], 1), torch.tensor(limits(self.silo, self.source))
        return noisy(values, ranges, self.silo.noise, stream(self.secret, "moments", self.silo.name))

    def filled(self, feature: int) -> int:
        """Return how many samples have a cell in the column of a feature."""
        marks = next((own for own in self.texts.values() if feature in own), None)
        if marks is not None:
            return int((self.x[:, marks] == 1).any(1).sum())
        return len(present_values(self.x[:, feature]))

    # ---- cells

    def cells(self, name: str, values: Tensor) -> Tensor:
        """Return the salted hashes of a feature's filled cells and their counts, (different cells, 2)."""
        different = Counter(cell.tobytes() for cell in present_values(values).contiguous().numpy())
        tags = sorted((self.tag(name, cell), times) for cell, times in different.items())
        return torch.tensor(tags, dtype=torch.int64).view(-1, 2)

    def tag(self, name: str, cell: bytes) -> int:
        """Return a cell's hash as a whole number."""
        return int.from_bytes(self.hashed(name.encode(), cell)[:TAG], "little", signed=True)

    def fingerprint(self) -> str:
        """Return a hash of everything that the statistics depend on."""
        source = self.source
        shape: tuple[object, ...] = (names_of(source), source.class_names, self.minima, self.silo.noise)
        if source.own_task is not None:
            shape += (source.own_task.kind, source.own_task.names)
        seen = [self.y, self.x] if source.standardise else [self.y]
        return self.hashed(repr(shape).encode(), *(each.contiguous().numpy().tobytes() for each in seen)).hex()

    def hashed(self, *parts: bytes) -> bytes:
        """Return the HMAC of the parts, a chain, so that no two lists of parts are one text."""
        key = bytes.fromhex(self.salt)
        for part in parts:
            key = hmac.digest(key, part, "sha256")
        return key


def present_values(values: Tensor) -> Tensor:
    """Return a feature's values of the samples that have any."""
    return values[values.isfinite().reshape(len(values), -1).any(1)] if len(values) else values


def check_ranges(silo: Silo, source: Source) -> None:
    """Refuse columns without a stated range where noise must cover the statistics."""
    names = standardised_names(source)
    if not silo.noise or not names or silo.hosts is not None:
        return
    if source.standardise and len(source.shape) > 1:
        raise ConfigError(f"{silo.name} demands noise, and samples with several values of a feature cannot have it")
    unknown = [name for name, (low, _) in zip(names, limits(silo, source), strict=True) if math.isnan(low)]
    if unknown:
        raise ConfigError(
            *(
                f"{silo.name} demands noise, and its file states no range of column '{name}': [data] ranges = "
                f"{{{name} = [LOWEST, HIGHEST]}}"
                for name in unknown
            )
        )


def noisy(x: Tensor, ranges: Tensor, noise: float, random: np.random.Generator) -> Tensor:
    """Return moments with Gaussian noise, (3, features); `ranges`, (features, 2), bound what one sample adds.

    A filled cell is u in -1..1 of its range, and adds (1, u, u^2) to three sums. Over d features that is at most
    sqrt(3 d) in the L2 norm: the noise is `noise` times that on each sum.
    """
    middle, half = ranges.double().sum(1) / 2, ranges.double().diff(dim=1)[:, 0] / 2
    filled = x.isfinite()
    u = torch.where(filled, ((x.double() - middle) / half).clamp(-1, 1), 0.0)
    sums = torch.stack([filled.sum(0).double(), u.sum(0), u.square().sum(0)])
    sums = sums + torch.from_numpy(random.normal(0, noise * math.sqrt(sums.numel()), tuple(sums.shape)))
    count = sums[0].clamp(min=1)
    mean = (sums[1] / count).clamp(-1, 1)
    squares = (sums[2] - count * mean.square()).clamp(min=0)
    return torch.stack([count, middle + half * mean, half.square() * squares])


def limits(silo: Silo, source: Source) -> list[tuple[float, float]]:
    """Return the range of each standardised column: as the silo's file states it, of a text 0 to 1; NaN if unknown."""
    marks = {feature for own in texts(source.feature_names, source.feature_columns).values() for feature in own}
    unknown, names = (math.nan, math.nan), standardised_names(source)
    return [(0.0, 1.0) if f in marks else silo.ranges.get(name, unknown) for f, name in enumerate(names)]


def standardised_names(source: Source) -> tuple[str, ...]:
    """Return the names of the columns whose moments are reported: features, then labels that are numbers."""
    features = names_of(source) if source.standardise else ()
    return (*features, *source.task.names) if isinstance(source.task, Numbers) else features


def names_of(source: Source) -> tuple[str, ...]:
    """Return what features are called: without names, their numbers."""
    return source.feature_names or tuple(map(str, range(one_tensor(source.x, "a silo").shape[1])))


def read_reported(path: Path) -> RecordFile:
    """Return what was stored; a damaged file is no reason to tell anew."""
    try:
        return read_record(RecordFile, unpack_tree(path.read_bytes()), path.name)
    except (OSError, PartwiseError):
        raise DataError(f"'{path}' is damaged: put it back as it was; without it this silo would tell anew") from None
