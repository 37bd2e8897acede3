"""Describe the models of a run: `model.json`, how they are built and fed, and each file's header.

Nothing else is needed to use them. The run writes it (`runs/saving.py`), and `partwise/inference` reads it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import isfinite
from typing import Any, Literal

from partwise.data.saved import json_digest
from partwise.data.transforms import ArrayTransform, ImageTransform, NamedTransform, TableTransform, TextTransform
from partwise.errors import DataError
from partwise.records.record import Record, WrongForm, fields_of, read_record
from partwise.tasks import TASKS, Classes, Task
from partwise.version import __version__

MANIFEST_FORMAT, MANIFEST_VERSION = "partwise models", 1
TASK_VERSION = 2  # where labels are no classes: who reads version 1 alone would take all outputs for their logits
CLASS = "class"  # what JSON calls `made_of`, for it is a word of Python's
MADE = ("method", "network")  # those that have it
FRAME = ("format", "version", "sha256")  # beside the fields of a manifest


@dataclass(frozen=True)
class ManifestMethod(Record):
    """The method of a run."""

    name: str
    made_of: str  # module:class
    file: str | None  # of a method that is a file of the user's: how its copy in the folder is called
    sha256: str | None  # of that file
    settings: dict[str, object]  # those that are set, as JSON


@dataclass(frozen=True)
class ManifestNetwork(Record):
    """The network of a run: one by name, one in a file of the user's, or a class that was handed in."""

    name: str | None
    made_of: str | None  # module:class
    batch_norm: bool
    dropout: float
    projector: bool
    dtype: str
    file: str | None = None  # of a network in a file of the user's: how its copy in the folder is called
    sha256: str | None = None  # of that file


@dataclass(frozen=True)
class Scaling(Record):
    """How samples are standardised: the network sees (x - centre) / scale."""

    centre: list[float]  # of each channel or feature, or one for all
    scale: list[float]


@dataclass(frozen=True)
class TextInput(Record):
    """A column of texts, which become tokens."""

    column: str
    tokens: str  # words, characters, ascii, or the content of a tokenizer's file
    vocabulary: list[str]
    length: int


@dataclass(frozen=True, kw_only=True)
class TableInput(Record):
    """Models that take rows of tables."""

    kind: Literal["table"] = "table"
    shape: list[int]  # of a sample
    features: list[str]  # in the order of a sample
    columns: list[str]  # of each feature: itself, or that of the text `column=text`
    beside: list[str] = field(default_factory=list)  # columns that are no features, the label first: they may be there
    missing: Literal["refuse", "mean"]  # what becomes of empty numbers
    nonfinite: bool  # NaN and infinity are let through
    other_texts: Literal["refuse", "zeros"] = "refuse"  # zeros: as a silo trained on texts that no silo may name
    codes: bool = False  # texts are numbers in a tensor of their own; others are 0
    text: TextInput | None = None

    def __post_init__(self) -> None:
        if len(self.features) != len(self.columns):
            raise WrongForm(
                f"model.json.input has {len(self.features)} features and {len(self.columns)} columns of them"
            )

    @property
    def row(self) -> TableTransform:
        """Return what makes features of the columns that are no text."""
        return TableTransform(tuple(self.features), tuple(self.columns), self.codes)

    @property
    def transform(self) -> TableTransform | TextTransform:
        """Return what makes samples of rows."""
        if self.text is None:
            return self.row
        vocabulary, row = tuple(self.text.vocabulary), self.row if self.features else None
        return TextTransform(self.text.column, self.text.tokens, vocabulary, self.text.length, row)

    @property
    def different_columns(self) -> list[str]:
        """Return the columns that a table must have, each once."""
        return list(dict.fromkeys([*self.columns, *([self.text.column] if self.text else [])]))


@dataclass(frozen=True, kw_only=True)
class ImageInput(Record):
    """Models that take images."""

    kind: Literal["images"] = "images"
    shape: list[int]  # channels, height, width
    white: float  # the brightest value
    resize: bool  # images of other sizes are brought to this one, as the run's own were

    @property
    def transform(self) -> ImageTransform:
        """Return what makes samples of images."""
        return ImageTransform(tuple(self.shape), self.white)


@dataclass(frozen=True, kw_only=True)
class ArrayInput(Record):
    """Models that take numbers as they are."""

    kind: Literal["arrays"] = "arrays"
    shape: list[int]  # of a sample
    whole: bool = False  # they are whole numbers
    vocabulary: int | None = None  # how many different ones, from 0 on, where they are tokens

    @property
    def transform(self) -> ArrayTransform:
        """Return what makes samples of arrays."""
        return ArrayTransform(tuple(self.shape), self.whole)


@dataclass(frozen=True, kw_only=True)
class NamedInput(Record):
    """Models that take several arrays by name."""

    kind: Literal["named"] = "named"
    shape: list[int]  # none: each array has its own
    shapes: dict[str, list[int]]  # of a sample, by name
    types: dict[str, str]  # of torch, by name: float32, int64 or uint8

    @property
    def transform(self) -> NamedTransform:
        """Return what makes samples of arrays by name."""
        return NamedTransform({name: tuple(shape) for name, shape in self.shapes.items()}, self.types)


@dataclass(frozen=True)
class ManifestTask(Record):
    """What a label is where it is no class: the fields of the task of this kind, and the shape of a sample's label."""

    kind: Literal["labels", "numbers", "places"]
    names: list[str]
    label_shape: list[int]
    centre: list[float] = field(default_factory=list)  # of each number: label = centre + scale x what a model gives
    scale: list[float] = field(default_factory=list)
    edges: list[float] = field(default_factory=list)  # of the bins of numbers
    patterns: list[list[int]] = field(default_factory=list)  # of labels that are bins

    def __post_init__(self) -> None:
        number, scaled = len(self.names), {len(self.centre), len(self.scale)}
        if not number or any(size < 1 for size in self.label_shape):
            raise WrongForm("model.json.own_task has no names, or a label_shape with a size below 1")
        if scaled != {0} and scaled != {number}:
            raise WrongForm(f"model.json.own_task has {number} names, but not as many of centre and scale")
        if not all(map(isfinite, (*self.centre, *self.scale, *self.edges))) or any(each <= 0 for each in self.scale):
            raise WrongForm("model.json.own_task has a number that is not finite, or a scale that is not above 0")
        if any(len(pattern) != number for pattern in self.patterns):
            raise WrongForm(f"model.json.own_task has {number} names, and a pattern of another length")

    @classmethod
    def of(cls, task: Task, label_shape: Sequence[int]) -> "ManifestTask":
        """Return a task as JSON has it."""
        own = {spec.name: as_lists(getattr(task, spec.name)) for spec in fields(task)}
        return read_record(cls, {"kind": task.kind, "label_shape": list(label_shape), **own}, "task")

    @property
    def task(self) -> Task:
        """Return the task itself."""
        kind = TASKS[self.kind]
        return kind(**{spec.name: as_tuples(getattr(self, spec.name)) for spec in fields(kind)})


@dataclass(frozen=True)
class ModelManifest(Record):
    """How the models of a run are built and fed, and the files that hold them."""

    partwise: str  # the version that wrote it
    method: ManifestMethod
    network: ManifestNetwork
    parts: dict[str, list[str]]  # the layers of each
    plain: bool  # clients predict by their network alone: its state dict is the whole model
    data: str  # what the data set is called
    input: TableInput | ImageInput | ArrayInput | NamedInput
    standardise: Scaling
    classes: list[str]  # none where a label is something else
    clients: list[str]  # their names, by number; of an export '' for all others
    files: dict[str, str]  # the SHA-256 of each
    own_task: ManifestTask | None = None  # what a label is; None: one of the classes

    @property
    def task(self) -> Task:
        """Return what a label is."""
        return Classes(tuple(self.classes)) if self.own_task is None else self.own_task.task

    @property
    def label_shape(self) -> list[int]:
        """Return the shape of a sample's label."""
        return [] if self.own_task is None else self.own_task.label_shape

    def as_json(self) -> dict[str, object]:
        """Return the content of model.json, with the SHA-256 of all of it; of classes as version 1 has it."""
        version, own = TASK_VERSION, asdict(self, dict_factory=json_names)
        if self.own_task is None:
            version = MANIFEST_VERSION
            del own["own_task"]
        content = {"format": MANIFEST_FORMAT, "version": version, **own}
        return {**content, "sha256": json_digest(content)}

    @classmethod
    def from_json(cls, content: Any, path: object) -> "ModelManifest":
        """Return the manifest that a model.json at a path holds; refuse one that was changed, or is of another form."""
        if not isinstance(content, dict) or content.get("format") != MANIFEST_FORMAT:
            raise DataError(f"'{path}' does not describe models of partwise")
        if content.get("version") not in (MANIFEST_VERSION, TASK_VERSION):
            raise DataError(
                f"'{path}' is of version {content.get('version')!r}, made by partwise {content.get('partwise')}; this "
                f"partwise reads versions {MANIFEST_VERSION} and {TASK_VERSION}"
            )
        if content.pop("sha256", None) != json_digest(content):
            raise DataError(f"'{path}' is damaged or was edited: its content does not have the SHA-256 it states")
        own = {name: value for name, value in content.items() if name not in FRAME}
        own |= {name: field_names(own[name]) for name in MADE if isinstance(own.get(name), dict)}
        try:
            return read_record(cls, own, "model.json")
        except WrongForm as error:
            raise DataError(f"'{path}' is not what partwise writes: {error}") from None


def as_lists(value: Any) -> Any:
    """Return tuples within tuples as lists, as JSON has them."""
    return list(map(as_lists, value)) if isinstance(value, tuple) else value


def as_tuples(value: Any) -> Any:
    """Return lists within lists as tuples."""
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def json_names(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return the fields of a dataclass by the names that JSON has for them."""
    return {CLASS if name == "made_of" else name: value for name, value in pairs}


def field_names(content: dict[str, object]) -> dict[str, object]:
    """Return a JSON object by the names of a dataclass's fields."""
    return {"made_of" if name == CLASS else name: value for name, value in content.items()}


@dataclass(frozen=True)
class FileHeader:
    """The header of a file of tensors, as texts: which model it belongs to, and what else a prediction needs."""

    moment: str  # of the run at which the model was this one
    method: str
    stage: int  # of the method, by which it predicts
    client: int | None = None  # None: the global model
    name: str | None = None  # of the client
    key: int | None = None  # of what is drawn in a prediction
    lr: float | None = None  # that a prediction goes by
    extras: str | None = None  # what the client received beside tensors, as JSON
    held: str | None = None  # attributes of the method that changed, as JSON
    lacks: str | None = None  # why the file cannot hold all that a prediction needs

    def as_texts(self) -> dict[str, str]:
        """Return the metadata of a safetensors file."""
        own = {name: str(value) for name, value in fields_of(self).items() if value is not None}
        return {"format": MANIFEST_FORMAT, "version": str(MANIFEST_VERSION), "partwise": __version__, **own}

    @classmethod
    def from_texts(cls, texts: Mapping[str, str]) -> "FileHeader":
        """Return the header that metadata hold; raise ValueError or TypeError if they hold none."""
        read = {"stage": int, "client": int, "key": int, "lr": float}
        named = [spec.name for spec in fields(cls) if spec.name in texts]
        return cls(**{name: read.get(name, str)(texts[name]) for name in named})
