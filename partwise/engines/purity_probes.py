"""The measurements of a purity check: copies in float64, states of random generators, fingerprints, and differences."""

import math
import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves, tree_map

from partwise.method import Method
from partwise.network.view import Tensors
from partwise.streams import torch_stream

EQUAL = 1e-9  # of the largest value of a tensor
ZERO_GRADIENT = 1e-11  # of the largest value of all: a gradient that is zero but for rounding
MOVED = 0.1  # of each of a client's own numbers, at most: how far it is from what the client received


def on_host(tree: Any) -> Any:
    """Copy a tree of tensors to the CPU, floating ones in float64; other leaves stay."""

    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        leaf = leaf.detach().cpu().clone()
        return leaf.double() if leaf.is_floating_point() else leaf

    return tree_map(moved, tree)


def moved(tensors: Tensors, what: str) -> Tensors:
    """Return tensors whose floating numbers are a little further from zero, zeros a little above it.

    No number changes its sign: running variances stay positive, and sums of many weights stay as large as they were.
    """
    random = torch_stream(0, "trial", what)

    def away(value: Tensor) -> Tensor:
        far = MOVED * torch.rand(value.shape, generator=random, dtype=torch.float64)
        return value + far * torch.where(value == 0, 1, value)

    return {name: away(value) if value.is_floating_point() else value for name, value in tensors.items()}


@contextmanager
def held_on_host(method: Method) -> Iterator[None]:
    """Hold a method's tensors on the CPU in float64 while entered."""
    held = dict(vars(method))
    vars(method).update(on_host(held))
    try:
        yield
    finally:
        vars(method).clear()
        vars(method).update(held)


def states() -> Any:
    """Return the states of the global random generators, which a method must not use."""
    numpys = np.random.get_state(legacy=False)
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), pickle.dumps(numpys)


def fingerprint(method: Method) -> Any:
    """Return a fingerprint of a method's attributes, equal while nothing changes."""
    try:
        return pickle.dumps(vars(method))
    except Exception:  # it may hold anything
        return {name: id(value) for name, value in vars(method).items()}


def changed_in_place(tree: Any) -> list[tuple[int, int]]:
    """Return the tensors of a tree, and how often each was changed in place."""
    return [(id(leaf), leaf._version) for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def equal_to_the_bit(one: Any, two: Any) -> bool:
    """Return whether two trees are equal to the bit."""
    first, second = ([leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)] for tree in (one, two))
    return len(first) == len(second) and all(
        torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, second, strict=True)
    )


def largest_difference(one: Any, two: Any) -> str:
    """Return where two trees of tensors differ most and by how much; '' where they are equal."""
    first, second = (
        [(path, leaf) for path, leaf in tree_flatten_with_path(tree)[0] if isinstance(leaf, Tensor)]
        for tree in (one, two)
    )
    if [(path, leaf.shape) for path, leaf in first] != [(path, leaf.shape) for path, leaf in second]:
        return "the results hold different tensors"
    sizes = [largest_magnitude(value) for _, value in first]
    furthest, words = 0.0, ""
    for (path, value), (_, other), size in zip(first, second, sizes, strict=True):
        # A model that diverged says nothing about the function: only what is finite by itself is compared.
        off = largest_magnitude(torch.where(value.isfinite(), value.double() - other.double(), 0.0), otherwise=math.inf)
        if off > max(EQUAL * size + ZERO_GRADIENT * max(sizes), furthest):
            furthest, words = off, f"result{keystr(path)} differs by {off:.3g}, its largest number is {size:.3g}"
    return words


def largest_magnitude(value: Tensor, otherwise: float = 0.0) -> float:
    """Return the largest absolute number of a tensor; numbers that are not finite count as `otherwise`."""
    return float(value.double().abs().nan_to_num(nan=otherwise, posinf=otherwise).max()) if value.numel() else 0.0
