"""A data set, and its partition among clients, as the rest of partwise sees them."""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from partwise.data.room import check_room
from partwise.data.transforms import (
    BESIDE,
    ArrayTransform,
    ImageTransform,
    NamedTransform,
    TableTransform,
    TextTransform,
    Transform,
)
from partwise.errors import ConfigError, DataError, unknown
from partwise.tasks import Classes, Task
from partwise.trees import Samples, Shape, is_whole, sample_shape, tensors_of

CLIENTS_TOGETHER = 1024  # clients whose samples are looked at together


@dataclass(frozen=True)
class Column:
    """An attribute of samples beside their label that can divide them: their domain, their hospital."""

    names: tuple[str, ...]
    code: Tensor  # (samples,) int64, 0 .. len(names)-1


@dataclass(frozen=True)
class Source:
    """A data set as it is stored: nothing is normalised, nothing is split among clients."""

    name: str
    x: Samples  # (samples, channels, ...) uint8, or (samples, features, ...) float32 or int64; or several by name
    y: Tensor  # (samples,) int64, labels 0 .. classes-1; where `own_task` says so, something else
    classes: int  # or bins, where labels are no classes
    train: int  # the first `train` samples are the original training set, the others (there may be none) the test set
    centre: tuple[float, ...]  # per channel and in the units of x: the network sees (x - centre) / scale
    scale: tuple[float, ...]
    model: str = ""  # what `auto` means for this data set: its network (empty: by the shape of its samples),
    partition: str = "dir:0.1"  # how it is divided among clients,
    split: Literal["merged", "original"] = "merged"  # whether its own test set counts,
    test_share: float = 0.25  # and which share of a client's samples is for testing where it does not
    columns: dict[str, Column] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    table: TableTransform | None = None  # how rows became samples, where it is a table with features
    text: TextTransform | None = None  # how texts became tokens, where a column of it is one
    tokens: int | None = None  # how many different tokens there may be, where the samples need not show it
    white: float = 255.0  # the brightest value of its images
    standardise: bool = False  # centre and scale come from sums over the clients' training samples (standardise.py)
    own_task: Task | None = None  # what a label is; None: one of the classes
    notes: tuple[str, ...] = ()  # what a user should know of how it was read
    no_features: tuple[str, ...] = ()  # the other columns of a table, the label first
    groups: Tensor | None = None  # (samples,) int64: samples of one group stay on one side of every split
    late: Tensor | None = None  # (samples,) bool: the samples for testing, where a date decides

    @cached_property
    def task(self) -> Task:
        """Return what a label is."""
        return self.own_task or Classes(self.labels)

    @property
    def shape(self) -> Shape:
        """Return the shape of a sample."""
        return sample_shape(self.x)

    @cached_property
    def normalisation(self) -> tuple[Samples, Samples]:
        """Return centre and scale as tensors that go with those of a mini-batch: the network sees (x - centre) / scale.

        Where samples have several tensors, pixels are seen as -1 .. 1, and numbers as they are unless of a table.
        """
        if isinstance(self.x, dict):
            middle = torch.tensor(self.white / 2)
            pixels = {name: tensor.dtype == torch.uint8 for name, tensor in self.x.items()}
            centre = {name: middle if of else torch.tensor(0.0) for name, of in pixels.items()}
            scale = {name: middle if of else torch.tensor(1.0) for name, of in pixels.items()}
            if self.table is not None and BESIDE in self.x:  # beside a text, or codes of texts
                centre[BESIDE], scale[BESIDE] = torch.tensor(self.centre), torch.tensor(self.scale)
            return centre, scale
        channels = (-1, *[1] * (self.x.ndim - 2))
        return torch.tensor(self.centre).view(channels), torch.tensor(self.scale).view(channels)

    @property
    def outputs(self) -> int:
        """Return how many numbers a network gives; names of classes are not spelled out, for a server may claim any."""
        return self.classes if self.own_task is None else self.own_task.outputs

    @property
    def at_places(self) -> bool:
        """Return whether a label is a class for each place."""
        return self.own_task is not None and self.own_task.at_places

    @cached_property
    def bins(self) -> Tensor:
        """Return (samples,) int64 what each label counts as where samples are divided: its class, or its bin."""
        return self.task.binned(self.y)

    @cached_property
    def vocabulary(self) -> int | None:
        """Return how many different tokens samples may hold, 0 .. vocabulary-1; None where they hold none."""
        if self.text is not None or self.tokens is not None:
            return self.tokens if self.text is None else self.text.size
        whole = [own for own in tensors_of(self.x) if is_whole(own) and own.numel()]
        return 1 + max(int(own.max()) for own in whole) if whole and min(int(own.min()) for own in whole) >= 0 else None

    @property
    def is_table(self) -> bool:
        """Return whether samples are rows of a table."""
        return self.table is not None or self.text is not None

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Return the names of a table's features, in the order of x, without codes of texts; () for other data."""
        return () if self.table is None else self.table.numbers if self.table.codes else self.table.features

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the names of the classes, their numbers where they have none; of other labels those of their bins."""
        return self.own_task.bin_names if self.own_task else self.class_names or tuple(map(str, range(self.classes)))

    @property
    def feature_columns(self) -> tuple[str, ...]:
        """Return the column of each feature: the column itself, or that of the text `column=text`."""
        return () if self.table is None else self.table.numbers if self.table.codes else self.table.columns

    @property
    def code_sizes(self) -> tuple[int, ...]:
        """Return how many codes each column of a table's texts has, where they are codes."""
        return tuple(self.table.code_sizes.values()) if self.table is not None and self.table.codes else ()

    @property
    def transform(self) -> Transform:
        """Return what turns new rows, images or arrays into samples."""
        if self.text is not None:
            return self.text
        if self.table is not None:
            return self.table
        if isinstance(self.x, dict):
            forms = {name: tuple(own.shape[1:]) for name, own in self.x.items()}
            return NamedTransform(forms, {n: str(own.dtype).removeprefix("torch.") for n, own in self.x.items()})
        shape = tuple(self.x.shape[1:])
        if self.x.dtype == torch.uint8:
            return ImageTransform(shape, self.white)
        return ArrayTransform(shape, whole=is_whole(self.x))


def image_source(
    name: str, x: Tensor, y: Tensor, classes: int, train: int, white: float = 255.0, **more: Any
) -> Source:
    """Return images whose values 0 .. white the network sees as -1 .. 1."""
    middles = (white / 2,) * x.shape[1]
    return Source(name, x, y, classes, train, middles, middles, white=white, **more)


def resized(source: Source, size: int | None) -> Source:
    """Resize images that were not read from image files to squares of `size`, and the classes of their pixels."""
    if size is None or (not isinstance(source.x, dict) and source.x.shape[2:] == (size, size)):
        return source
    if isinstance(source.x, dict) or source.x.ndim != 4:
        raise ConfigError(f"image_size = {size}, but data set '{source.name}' holds no images")
    check_room(f"data set '{source.name}'", source.x[:, :, 0, 0].nbytes * size**2, "; use a smaller --image-size")
    pixels = source.task.at_places and source.y.shape[1:] == source.x.shape[2:]
    y = interpolate(source.y[:, None].double(), (size, size), mode="nearest-exact")[:, 0].long() if pixels else source.y
    return replace(source, x=interpolate(source.x, (size, size), mode="bilinear", antialias=True), y=y)


def with_positive(source: Source, name: str) -> Source:
    """Return samples of two classes, of which the one with this name is the second: F1 and AUROC are about that one."""
    if not source.task.of_classes or source.classes != 2:
        raise ConfigError(f"positive = {name} needs two classes, but '{source.name}' has {source.task.wanted}")
    if name not in source.labels:
        raise ConfigError(unknown("class", name, source.labels))
    if name == source.labels[1]:
        return source
    return replace(source, y=1 - source.y, class_names=source.labels[::-1])


@dataclass(frozen=True)
class Federation:
    """A source divided among clients: the indices into `source.x` that each client trains, tests and validates on."""

    source: Source
    train: list[Tensor]
    test: list[Tensor]
    global_test: Tensor  # the whole original test set, or every client's test samples where the two sets were merged
    validation: list[Tensor] = field(default_factory=list)  # empty tensors where no validation share is set
    rule: str = "its own division"  # how the samples were divided, for tables
    names: tuple[str, ...] = ()  # of the clients; empty: their numbers
    brought: list[Tensor] = field(default_factory=list)  # where training samples are pooled, those of each client
    holds: Literal["all", "some", "none"] = "all"  # whose samples are here: a node has some, a server stand-ins of all

    def __post_init__(self) -> None:
        if not self.names:
            object.__setattr__(self, "names", tuple(map(str, range(len(self.train)))))
        if not self.validation:
            object.__setattr__(self, "validation", [torch.arange(0)] * len(self.train))
        if not len(self.train) == len(self.test) == len(self.validation) == len(self.names) > 0:
            sizes = f"{len(self.train)} training, {len(self.test)} test, {len(self.validation)} validation sets"
            raise DataError(f"a federation has one of each set for every client, at least one client; got {sizes}")
        if self.holds == "none":  # one sample of each set, as often as its client has any
            return
        samples = len(self.source.y)
        sets = {"train": self.train, "test": self.test, "validation": self.validation}
        for name, own in {**sets, "global_test": [self.global_test]}.items():
            for start in range(0, len(own), CLIENTS_TOGETHER):  # one by one only where something is wrong
                if not are_indices(torch.cat(own[start : start + CLIENTS_TOGETHER]), samples):
                    client = next(k for k, index in enumerate(own) if not are_indices(index, samples))
                    what = name if name == "global_test" else f"client {client}: {name}"
                    raise DataError(f"{what} must hold indices 0 .. {samples - 1} of the source")
        known, seen = np.zeros(samples, np.bool_), np.full(samples, -1)  # the last client that learns from a sample
        known[self.global_test.numpy()] = True
        for client, index in enumerate(self.test):
            tested = index.numpy()
            if not known[tested].all():
                raise DataError(f"client {client}: a test sample is not in global_test")
            seen[self.train[client].numpy()] = client
            seen[self.validation[client].numpy()] = client
            if (seen[tested] == client).any():
                raise DataError(f"client {client}: a test sample is a training or validation sample too")
        both = int((known & (seen >= 0)).sum())
        if both:
            raise DataError(f"global_test holds {both} samples that clients train or validate on; it must hold none")

    @property
    def clients(self) -> int:
        """Return the number of clients."""
        return len(self.train)

    def without(self, clients: Collection[int]) -> "Federation":
        """Return the same federation without some clients' training samples."""
        if not clients:
            return self
        train = [own[:0] if client in clients else own for client, own in enumerate(self.train)]
        return replace(self, train=train)

    def pooled(self, without: Collection[int] = ()) -> "Federation":
        """Give all training samples to the first client, as `central` needs; clients keep their test samples."""
        empty, samples = self.train[0][:0], torch.cat(list(self.without(without).train))
        return replace(self, train=[samples, *[empty] * (self.clients - 1)], brought=self.train)

    def fingerprint(self) -> str:
        """Return the SHA-256 of samples, labels, their names, and the clients' indices."""
        source = self.source
        named = (self.names, source.class_names, source.feature_names, source.centre, source.scale, source.train)
        result = hashlib.sha256(repr(named if source.text is None else (*named, source.text)).encode())
        for tensor in (*fingerprinted(source.x), source.y, *self.train, *self.validation, *self.test):
            result.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
            result.update(tensor.contiguous().numpy().data)
        return result.hexdigest()

    def class_counts(self) -> Tensor:
        """Return (clients, bins) int64: each client's training samples of each class, or bin of other labels."""
        bins, y = self.source.task.bins, self.source.bins.cpu()
        if self.holds == "none":
            single = torch.zeros(self.clients, bins, dtype=torch.long)
            for client, index in enumerate(self.train):
                single[client, y[index[:1]]] = len(index)
            return single
        rows = []
        for start in range(0, self.clients, CLIENTS_TOGETHER):
            own = self.train[start : start + CLIENTS_TOGETHER]
            owner = torch.arange(len(own)).repeat_interleave(torch.tensor([len(index) for index in own]))
            rows.append(torch.bincount(owner * bins + y[torch.cat(own)], minlength=len(own) * bins))
        return torch.cat(rows).view(-1, bins)


def fingerprinted(x: Samples) -> list[Tensor]:
    """Return the tensors of samples as they are hashed: whole numbers as float32, as which they were stored before."""
    return [x.float() if is_whole(x) else x] if isinstance(x, Tensor) else tensors_of(x)


def are_indices(index: Tensor, samples: int) -> bool:
    """Return whether these are indices of samples."""
    return not index.is_floating_point() and bool(((index >= 0) & (index < samples)).all())
