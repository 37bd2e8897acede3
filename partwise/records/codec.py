"""Trees of plain values and tensors as bytes, and back: for checkpoints, the disk of a silo, and the wire.

The bytes are the SHA-256 of all that follows, the version of the format, the length of a JSON text, that text, and the
tensors as safetensors. Reading cannot run code: nothing is pickled, and only classes that the reader names are
made. Records (`records/record.py`) are written as dicts of their fields.
"""

import dataclasses
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from partwise.errors import PartwiseError
from partwise.records.record import Json, Record, fields_of

VERSION = 0  # of the format
DIGEST, VERSION_BYTES, LENGTH = 32, 2, 6  # bytes of the SHA-256, of the version, and of the length of the text
HEADER = 8  # bytes of the length of the header of safetensors
DEEPEST_TREE = 100  # lists and dicts of a text that lie in one another
STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')  # of JSON, with the marks in it that are no structure
HOST = torch.device("cpu")
KIND = "$"  # the key that tells an encoded value from a dict
PLAIN_TYPES = (type(None), bool, int, float, str)
TENSOR_TYPES = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool complex64"
STORABLE = {
    getattr(torch, name) for name in TENSOR_TYPES.split()
}  # what safetensors holds, of what a state may be made of


class Unstorable(PartwiseError):
    """A value of a type that cannot be stored."""


class Unreadable(PartwiseError):
    """Bytes that are not a packed tree, or were changed."""


@dataclass(frozen=True)
class Limit:
    """The most bytes that are read. JSON and tensors are limited apart: JSON unfolds to many times its length."""

    labels: int  # bytes of JSON, with the header of safetensors
    tensors: int  # bytes of tensors, as often as the tree names them

    @property
    def message(self) -> int:
        """Return the limit of all together."""
        return DIGEST + VERSION_BYTES + LENGTH + HEADER + self.labels + self.tensors


@dataclass(frozen=True)
class Codec:
    """Trees that may hold some classes beside plain values, tensors and records, as bytes."""

    known: tuple[type, ...]

    def packed(self, content: Any, place: str = "message") -> bytes:
        """Return a tree as bytes; `place` is how a refusal calls it."""
        from safetensors.torch import save  # a run on this machine does without

        encoder = Encoder(self.known)
        text = json.dumps(encoder.encode(content, place)).encode()
        version = VERSION.to_bytes(VERSION_BYTES, "big")
        body = version + len(text).to_bytes(LENGTH, "big") + text + save(encoder.written())
        return checksum(body) + body

    def unpacked(self, message: bytes, limit: Limit | None = None, device: torch.device = HOST) -> Any:
        """Return the tree that was packed; bytes beyond the limit are refused before they are decoded."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        text, tensors = sections(message, limit)
        most = math.inf if limit is None else limit.tensors
        try:
            return Decoder(load(tensors), self.known, device, most).decode(json.loads(text))
        except (SafetensorError, ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
            raise Unreadable(f"a message cannot be read: {type(error).__name__}") from None


def sections(message: bytes, limit: Limit | None) -> tuple[bytes, bytes]:
    """Return the JSON text and the tensors of packed bytes, once sum, version and limits are checked."""
    if limit is not None and len(message) > limit.message:
        raise Unreadable(f"a message of {len(message):,} bytes; at most {limit.message:,} are read")
    body = memoryview(message)[DIGEST:]
    if len(body) < VERSION_BYTES + LENGTH + HEADER or checksum(body) != message[:DIGEST]:
        raise Unreadable("a message is not what was sent")
    version, body = int.from_bytes(body[:VERSION_BYTES], "big"), body[VERSION_BYTES:]
    if version != VERSION:
        raise Unreadable(f"a message of format {version}; this partwise reads format {VERSION}")
    length = int.from_bytes(body[:LENGTH], "big")
    if length > len(body) - LENGTH - HEADER:
        raise Unreadable(f"a message says that it has {length:,} bytes of text")
    text, rest = bytes(body[LENGTH : LENGTH + length]), body[LENGTH + length :]
    labels = length + int.from_bytes(rest[:HEADER], "little")
    if limit is not None and labels > limit.labels:
        raise Unreadable(f"a message with {labels:,} bytes of text; at most {limit.labels:,} are read")
    if depth(text) > DEEPEST_TREE:
        raise Unreadable(f"a message of lists in lists, more than {DEEPEST_TREE} deep")
    return text, bytes(rest)


def depth(text: bytes) -> int:
    """Return how deep lists and dicts of a JSON text are nested."""
    marks = np.frombuffer(STRING.sub(b"", text), np.uint8)
    steps = np.isin(marks, list(b"[{")).astype(np.int32) - np.isin(marks, list(b"]}"))
    return int(steps.cumsum().max(initial=0))


def checksum(content: bytes | memoryview) -> bytes:
    """Return the SHA-256 of bytes."""
    return hashlib.sha256(content).digest()


class Encoder:
    """Turns trees into JSON; `tensors` holds their tensors, by the names that stand for them in the JSON."""

    def __init__(self, known: Sequence[type] = ()):
        self.known = set(known)  # dataclasses and named tuples that may occur
        self.tensors: dict[str, Tensor] = {}
        self.names: dict[int, str] = {}  # of a tensor's identity: one that occurs twice is written once

    def encode(self, value: Any, place: str) -> Any:
        """Return a value as JSON; `place` is how a refusal calls it."""
        kind = type(value)
        if kind in PLAIN_TYPES:
            return value
        if kind is list:
            return self.each(value, place)
        if kind is dict and KIND not in value and all(type(key) is str for key in value):
            return {key: self.encode(each, f"{place}[{key!r}]") for key, each in value.items()}
        if kind in (dict, Counter):
            return {KIND: kind.__name__, "items": self.each([list(pair) for pair in value.items()], place)}
        if kind in (tuple, set):
            return {KIND: kind.__name__, "items": self.each(sorted(value, key=repr) if kind is set else value, place)}
        if isinstance(value, Tensor):
            if value.dtype not in STORABLE or not is_dense(value):
                raise Unstorable(f"{place} is a tensor of {value.dtype}, {value.layout} on {value.device.type}")
            return {KIND: "tensor", **self.named(value), **({"grad": True} if value.requires_grad else {})}
        if kind is np.ndarray or isinstance(value, np.generic):
            try:
                tensor = torch.from_numpy(np.array(value))
            except (TypeError, ValueError):  # the latter where bytes lie the other way round
                raise Unstorable(f"{place} is an array of {value.dtype}") from None
            if tensor.dtype not in STORABLE:
                raise Unstorable(f"{place} is an array of {value.dtype}")
            return {KIND: "array" if kind is np.ndarray else "scalar", **self.named(tensor)}
        if isinstance(value, Record):
            return self.encode(fields_of(value), place)
        if kind in self.known:
            named = getattr(kind, "_fields", None) or [spec.name for spec in dataclasses.fields(kind) if spec.init]
            return {KIND: kind.__name__, "fields": self.encode({name: getattr(value, name) for name in named}, place)}
        raise Unstorable(f"{place} is of the type {kind.__name__}")

    def each(self, values: Any, place: str) -> list[Any]:
        """Return several values as JSON."""
        return [self.encode(value, f"{place}[{number}]") for number, value in enumerate(values)]

    def named(self, tensor: Tensor) -> Json:
        """Return the JSON of a tensor: its name, device and layout, which decides the last bits of a product."""
        if id(tensor) not in self.names:
            self.names[id(tensor)] = str(len(self.tensors))
            self.tensors[self.names[id(tensor)]] = tensor
        where = {} if tensor.device.type == "cpu" else {"on": "device"}
        order = memory_order(tensor)
        return {"name": self.names[id(tensor)], **where, **({"order": order} if order else {})}

    def written(self) -> dict[str, Tensor]:
        """Return the tensors to write: on the host, contiguous in their own memory order."""
        written, places = dict[str, Tensor](), set[int]()
        for name, tensor in self.tensors.items():
            order, value = memory_order(tensor), tensor.detach()
            value = (value.permute(order) if order else value.contiguous()).cpu()
            place = value.untyped_storage().data_ptr()
            written[name] = value.clone() if place in places else value  # safetensors has no views of one memory
            places.add(place)
        return written


def memory_order(tensor: Tensor) -> list[int]:
    """Return the dimensions by their order in memory; empty if that is their own order."""
    order = sorted(range(tensor.dim()), key=lambda dim: -int(tensor.stride()[dim]))
    return order if not tensor.is_contiguous() and tensor.permute(order).is_contiguous() else []


class TooLarge(ValueError):
    """A tree names its tensors so often that their bytes exceed the limit."""


class Decoder:
    """Turns JSON and its tensors into the tree again; tensors of a device return to it."""

    def __init__(self, tensors: dict[str, Tensor], known: Sequence[type], device: torch.device, most: float = math.inf):
        """`most` bytes of tensors may occur in the tree: one that occurs twice counts twice, as when it is stacked."""
        self.tensors, self.device, self.made, self.left = tensors, device, dict[str, Tensor](), most
        self.known = {kind.__name__: kind for kind in known}

    def decode(self, value: Any) -> Any:
        """Return the value that was encoded."""
        if isinstance(value, list):
            return [self.decode(each) for each in value]
        if not isinstance(value, dict):
            return value
        if KIND not in value:
            return {key: self.decode(each) for key, each in value.items()}
        kind = value[KIND]
        collections: dict[str, Callable[[Any], Any]] = {"dict": dict, "tuple": tuple, "set": set}
        if kind in collections:
            return collections[kind](self.decode(value["items"]))
        if kind == "Counter":
            return Counter(dict(self.decode(value["items"])))
        if kind == "tensor":
            return self.tensor(value)
        if kind in ("array", "scalar"):
            array = self.tensor(value).numpy()
            return array if kind == "array" else array[()]
        return self.known[kind](**self.decode(value["fields"]))

    def tensor(self, value: Json) -> Tensor:
        """Return a tensor on the device and in the layout that it had."""
        name = value["name"]
        if name not in self.made:
            tensor = self.tensors[name]
            if "order" in value:
                tensor = tensor.permute(np.argsort(value["order"]).tolist())
            tensor = tensor.to(self.device) if "on" in value else tensor
            self.made[name] = tensor.requires_grad_("grad" in value)
        self.left -= self.made[name].nbytes
        if self.left < 0:
            raise TooLarge("the tree holds more bytes of tensors than allowed")
        return self.made[name]


def is_dense(tensor: Tensor) -> bool:
    """Return whether a tensor has its values one after another: not where it is sparse, or has none."""
    return tensor.layout is torch.strided and not tensor.is_meta
