"""A silo's answer about how its columns are distributed, by which features are standardised: given once, and repeated.

The moments of a column are stored in the silo's folder, with a salted hash of every cell behind them. They leave anew
only when cells were added to the column of which could be told alone, and none were removed: the difference of two
answers is then told of many samples, never of one. With noise, it is drawn once, and stored with the answer.
"""

import hmac
import logging
import math
import secrets
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partwise.data.source import Federation, Source
from partwise.data.standardise import client_moments, merged, moments, texts
from partwise.errors import ConfigError, DataError, PartwiseError
from partwise.federation.agreement import Agreed, columns_of, fitted
from partwise.federation.silo import Silo
from partwise.rounds.wire import packed, unpacked
from partwise.runs.config import Config
from partwise.streams import stream
from partwise.writing import make_folder, write

log = logging.getLogger(__name__)

FILE = "moments.told"  # in the silo's folder
TAG = 8  # bytes of a cell's hash
MARK = np.float32(1).tobytes()  # the cell of a sample that has a text


@dataclass(frozen=True)
class Column:
    """What was told of a feature, and on which cells it rests."""

    moments: list[float]  # count, mean, squares
    filled: float  # samples that have a cell in its column
    noise: float  # in the norm of what a sample adds
    cells: dict[int, int] = field(default_factory=dict)  # how often each hash is there

    def content(self) -> dict[str, Any]:
        pairs = torch.tensor(sorted(self.cells.items()), dtype=torch.int64).view(-1, 2)
        return {"moments": self.moments, "filled": self.filled, "noise": self.noise, "cells": pairs}

    @classmethod
    def read(cls, content: dict[str, Any]) -> "Column":
        return cls(content["moments"], content["filled"], content["noise"], dict(content["cells"].tolist()))


def check_ranges(silo: Silo, source: Source) -> None:
    """Refuse to tell of columns whose range is not stated where noise must cover what is told."""
    if not silo.noise or not source.standardise or silo.hosts is not None:
        return
    if source.x.ndim > 2:
        raise ConfigError(f"{silo.name} demands noise, and samples with several values of a feature cannot have it")
    for name, (low, _) in zip(names_of(source), limits(silo, source), strict=True):
        if math.isnan(low):
            raise ConfigError(
                f"{silo.name} demands noise, and its file states no range of column '{name}': [data] ranges = "
                f"{{{name} = [LOWEST, HIGHEST]}}"
            )


def told_moments(federation: Federation, agreed: Agreed, silo: Silo, config: Config) -> Tensor:
    """(3, features) Return what a node tells of the agreed features, all of its clients together.

    Simulated clients have no secrets, so theirs are computed anew.
    """
    few, rare = config.privacy.min_train_samples, config.privacy.min_class_count
    if silo.hosts is not None:
        source = fitted(federation.source, agreed)
        return merged(client_moments(source.x[own], source, few, rare) for own in federation.train)
    stored = Stored(silo, federation.source, config)
    answers = [stored.answer(who, own, agreed) for who, own in zip(federation.names, federation.train, strict=True)]
    stored.write()
    return merged(answers)


class Stored:
    """A silo's answers, as they lie on its disk."""

    def __init__(self, silo: Silo, source: Source, config: Config):
        self.silo, self.source, self.config = silo, source, config
        self.texts = texts(source.feature_names, source.feature_columns)
        self.path = silo.folder / FILE
        content: dict[str, Any] = (
            read(self.path) if self.path.is_file() else {"salt": secrets.token_hex(32), "clients": {}}
        )
        self.salt: str = content["salt"]
        self.clients: dict[str, Any] = content["clients"]
        self.changed = False

    def write(self) -> None:
        """Write what is about to be told, whole or not at all."""
        if self.changed:
            make_folder(self.silo.folder)
            write(self.path, packed({"salt": self.salt, "clients": self.clients}), durable=True)

    def answer(self, client: str, own: Tensor, agreed: Agreed) -> Tensor:
        """(3, features) Return the moments of the agreed features that were told of a client, or are told now."""
        x = self.source.x[own]
        told, rows = self.told(client, x), []
        asked = agreed.features or names_of(self.source)
        for name, column in zip(asked, columns_of(asked, agreed.columns or asked), strict=True):
            each = told.get(name)
            if column in self.texts and each is None and not self.silo.noise:  # a text that nobody has here
                others = [told[text].filled for text in self.named(column) if text in told]
                each = Column([float(len(own)), 0.0, 0.0], max(others, default=0.0), 0.0)
            enough = each is not None and self.wanted(each, column in self.texts)
            rows.append(each.moments if each is not None and enough else [0.0, 0.0, 0.0])
        return torch.tensor(rows, dtype=torch.float64).T.contiguous()

    def wanted(self, each: Column, text: bool) -> bool:
        """Whether enough samples stand behind it also for the run, decided by what was told alone."""
        few, rare = self.config.privacy.min_train_samples, self.config.privacy.min_class_count
        if not text:
            return each.filled >= few
        have = round(each.moments[0] * each.moments[1])
        return max(1, min(have, each.moments[0] - have)) >= rare and max(1, each.filled) >= few

    def named(self, column: str) -> list[str]:
        return [self.source.feature_names[feature] for feature in self.texts[column]]

    def told(self, client: str, x: Tensor) -> dict[str, Column]:
        """Return what is told of a client's features: what was told before, unless enough was added since."""
        allow, known = self.silo.allow, self.clients.get(client, {"data": "", "columns": {}})
        shape = [*names_of(self.source), allow.min_train_samples, allow.min_class_count, self.silo.noise]
        data = self.hashed(repr(shape).encode(), x.contiguous().numpy().tobytes()).hex()
        told = {name: Column.read(content) for name, content in known["columns"].items()}
        if known["data"] == data:
            return told
        fresh, old = self.fresh(client, x), []
        for feature, name in enumerate(names_of(self.source)):
            before = told.get(name)
            if before is not None and before.noise < self.silo.noise:
                before = None
            cells = self.cells(name, x[:, feature])
            if self.adds_enough(feature, cells, before, x):
                filled = float(fresh[0, feature]) if self.silo.noise else self.filled(feature, x)
                told[name] = Column(fresh[:, feature].tolist(), filled, self.silo.noise, dict(cells))
            elif before is None:
                told.pop(name, None)
            elif cells != before.cells:
                old.append(name)
        if old:
            log.warning(
                "the training data of %s changed, and what is told of these columns stays as before, for fewer than "
                "min_train_samples = %d filled cells were added, or some were removed: %s",
                client,
                allow.min_train_samples,
                ", ".join(old),
            )
        self.clients[client] = {"data": data, "columns": {name: each.content() for name, each in told.items()}}
        self.changed = True
        return told

    def adds_enough(self, feature: int, cells: Counter[int], before: Column | None, x: Tensor) -> bool:
        """Whether none of the cells told of is gone, and those that came could be told of alone."""
        known = Counter(before.cells) if before else Counter[int]()
        added, few = cells - known, self.silo.allow.min_train_samples
        if known - cells or added.total() < few:
            return False
        if not any(feature in own for own in self.texts.values()):
            return True
        have = added[self.tag(names_of(self.source)[feature], MARK)]
        least = max(1, min(have, added.total() - have))
        return least >= self.silo.allow.min_class_count and max(1, self.filled(feature, x)) >= few

    def filled(self, feature: int, x: Tensor) -> int:
        """Return how many samples have a cell in the column of a feature."""
        marks = next((own for own in self.texts.values() if feature in own), None)
        if marks is not None:
            return int((x[:, marks] == 1).any(1).sum())
        return int(x[:, feature].isfinite().reshape(len(x), -1).any(1).sum()) if len(x) else 0

    def fresh(self, client: str, x: Tensor) -> Tensor:
        """(3, features) Return the moments of the data as they are now, with noise where the silo demands it."""
        if not self.silo.noise:
            return moments(x)
        seed = self.config.run.seed if self.silo.known_noise else secrets.randbits(63)
        return noisy(x, torch.tensor(limits(self.silo, self.source)), self.silo.noise, stream(seed, "moments", client))

    # ---- cells

    def cells(self, name: str, x: Tensor) -> Counter[int]:
        """Return how often each filled cell of a feature is there, as salted hashes."""
        rows = x[x.isfinite().reshape(len(x), -1).any(1)] if len(x) else x
        different = Counter(row.tobytes() for row in rows.contiguous().numpy())
        return Counter({self.tag(name, cell): times for cell, times in different.items()})

    def tag(self, name: str, cell: bytes) -> int:
        return int.from_bytes(self.hashed(name.encode(), cell)[:TAG], "little", signed=True)

    def hashed(self, *parts: bytes) -> bytes:
        key = bytes.fromhex(self.salt)
        for part in parts:  # a chain, so that no two lists of parts are one text
            key = hmac.digest(key, part, "sha256")
        return key


def noisy(x: Tensor, ranges: Tensor, noise: float, random: np.random.Generator) -> Tensor:
    """(3, features) Return moments with Gaussian noise; `ranges` (features, 2) bound what one sample adds to them.

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
    """Return the range of each feature: as the silo's file states it, of a text 0 to 1; NaN where it is not known."""
    marks = {feature for own in texts(source.feature_names, source.feature_columns).values() for feature in own}
    unknown = (math.nan, math.nan)
    return [(0.0, 1.0) if f in marks else silo.ranges.get(name, unknown) for f, name in enumerate(names_of(source))]


def names_of(source: Source) -> tuple[str, ...]:
    """Return what features are called: without names, their numbers."""
    return source.feature_names or tuple(map(str, range(source.x.shape[1])))


def read(path: Path) -> dict[str, Any]:
    """Return what was stored; a damaged file is no reason to tell anew."""
    try:
        content = unpacked(path.read_bytes())
    except (OSError, PartwiseError):
        raise DataError(f"'{path}' is damaged: put it back as it was; without it this silo would tell twice") from None
    assert isinstance(content, dict)
    return content
