"""Trees of plain values and tensors as JSON with a flat dict of tensors beside it, and back.

What is read can be no code: nothing here is pickled, and of classes only those come back that the reader names.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from partwise.errors import PartwiseError

KIND = "$"  # the key that tells an encoded value from a dict
PLAIN = (type(None), bool, int, float, str)
NUMBERS = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool complex64"
STORABLE = {getattr(torch, name) for name in NUMBERS.split()}  # what safetensors holds, of what a state may be made of


class Unstorable(PartwiseError):
    """A value of a type that cannot be stored."""


class Encoder:
    """Turns trees into what JSON can hold; `tensors` are those that it met, by the names under which JSON has them."""

    def __init__(self, known: Sequence[type] = ()):
        self.known = set(known)  # dataclasses and named tuples that may occur
        self.tensors: dict[str, Tensor] = {}
        self.names: dict[int, str] = {}  # of a tensor's identity: one that occurs twice is written once

    def encode(self, value: Any, place: str) -> Any:
        """Return a value as JSON; `place` is how a refusal calls it."""
        kind = type(value)
        if kind in PLAIN:
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
            if value.dtype not in STORABLE or not is_plain(value):
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
        if kind in self.known:
            named = getattr(kind, "_fields", None) or [spec.name for spec in dataclasses.fields(kind) if spec.init]
            return {KIND: kind.__name__, "fields": self.encode({name: getattr(value, name) for name in named}, place)}
        raise Unstorable(f"{place} is of the type {kind.__name__}")

    def each(self, values: Any, place: str) -> list[Any]:
        return [self.encode(value, f"{place}[{number}]") for number, value in enumerate(values)]

    def named(self, tensor: Tensor) -> dict[str, Any]:
        """Return where a tensor is found again, and how it lies: the layout decides the last bits of a product."""
        if id(tensor) not in self.names:
            self.names[id(tensor)] = str(len(self.tensors))
            self.tensors[self.names[id(tensor)]] = tensor
        where = {} if tensor.device.type == "cpu" else {"on": "device"}
        order = memory_order(tensor)
        return {"name": self.names[id(tensor)], **where, **({"order": order} if order else {})}

    def written(self) -> dict[str, Tensor]:
        """Return the tensors as they are written: on the host, one value after another in the order they lie in."""
        written, places = dict[str, Tensor](), set[int]()
        for name, tensor in self.tensors.items():
            order, value = memory_order(tensor), tensor.detach()
            value = (value.permute(order) if order else value.contiguous()).cpu()
            place = value.untyped_storage().data_ptr()
            written[name] = value.clone() if place in places else value  # safetensors has no views of one memory
            places.add(place)
        return written


def memory_order(tensor: Tensor) -> list[int]:
    """Return the dimensions in the order in which they lie in memory; nothing where they lie in their own order."""
    order = sorted(range(tensor.dim()), key=lambda dim: -int(tensor.stride()[dim]))
    return order if not tensor.is_contiguous() and tensor.permute(order).is_contiguous() else []


class TooLarge(ValueError):
    """A tree names its tensors so often that their bytes exceed the limit."""


class Decoder:
    """Turns JSON and its tensors into the tree again; those that lay on a device come back there."""

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

    def tensor(self, value: dict[str, Any]) -> Tensor:
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


def is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor has its values one after another: not where it is sparse, or has none."""
    return tensor.layout is torch.strided and not tensor.is_meta


# ---- has a tree changed?


class Held:
    """What an object's attributes held at first, to tell which of them hold something else since."""

    def __init__(self, attributes: Mapping[str, Any]):
        self.first = {name: (value, copied(value)) for name, value in attributes.items()}

    def changed(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Return those that were replaced, changed in place, or are new."""
        return {name: value for name, value in attributes.items() if self.has_changed(name, value)}

    def has_changed(self, name: str, value: Any) -> bool:
        first, copy = self.first.get(name, (None, None))
        return name not in self.first or value is not first or not unchanged(copied(value), copy)

    def gone(self, attributes: Mapping[str, Any]) -> list[str]:
        """Return the names of those that are there no more."""
        return [name for name in self.first if name not in attributes]


def copied(tree: Any) -> Any:
    """Return a tree whose containers, tensors and arrays are copies; of a network it has the tensors."""

    def own(leaf: Any) -> Any:
        if isinstance(leaf, nn.Module):
            return copied(leaf.state_dict())
        if isinstance(leaf, Tensor):
            return leaf.detach().clone()
        return leaf.copy() if isinstance(leaf, np.ndarray | set) else leaf

    return tree_map(own, tree)


def unchanged(one: Any, two: Any) -> bool:
    """Return whether two trees are equal to the bit; objects that are no plain values are equal to themselves alone."""
    (first, structure), (second, other) = tree_flatten(one), tree_flatten(two)
    return structure == other and all(map(unchanged_leaf, first, second))


def unchanged_leaf(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        return one.dtype == two.dtype and is_plain(one) and is_plain(two) and torch.equal(one, two)
    if isinstance(one, np.ndarray) and isinstance(two, np.ndarray):
        return one.dtype == two.dtype and np.array_equal(one, two)
    return one is two or (type(one) is type(two) and type(one) in (*PLAIN, set) and one == two)
