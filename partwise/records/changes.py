"""Detect changes of attributes: compare trees of plain values and tensors with copies of them."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from partwise.records.codec import PLAIN_TYPES, is_dense


class InitialAttributes:
    """The initial attributes of an object, to find those that have changed since."""

    def __init__(self, attributes: Mapping[str, object]):
        self.first = {name: (value, copied(value)) for name, value in attributes.items()}

    def changed(self, attributes: Mapping[str, object]) -> dict[str, object]:
        """Return those that were replaced, changed in place, or are new."""
        return {name: value for name, value in attributes.items() if self.has_changed(name, value)}

    def has_changed(self, name: str, value: object) -> bool:
        """Return whether an attribute is new, was replaced or was changed in place."""
        first, copy = self.first.get(name, (None, None))
        return name not in self.first or value is not first or not unchanged(copied(value), copy)

    def gone(self, attributes: Iterable[str]) -> list[str]:
        """Return the names of those that were deleted."""
        return [name for name in self.first if name not in attributes]


def copied(tree: Any) -> Any:
    """Return a tree whose containers, tensors and arrays are copies; a network is replaced by its tensors."""

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
    """Return whether two leaves are equal to the bit, or are the same object."""
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        return one.dtype == two.dtype and is_dense(one) and is_dense(two) and torch.equal(one, two)
    if isinstance(one, np.ndarray) and isinstance(two, np.ndarray):
        return one.dtype == two.dtype and np.array_equal(one, two)
    return one is two or (type(one) is type(two) and type(one) in (*PLAIN_TYPES, set) and one == two)
