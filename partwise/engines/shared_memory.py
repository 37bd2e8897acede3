"""Tensors in memory that several processes share: written once, read in place."""

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._pytree import tree_map

from partwise.errors import PartwiseError

ALIGNED = 64  # bytes: torch begins a tensor there, too


@dataclass(frozen=True)
class SharedTensor:
    """The place of a tensor in shared memory."""

    block: int
    start: int  # byte
    shape: torch.Size
    dtype: torch.dtype

    def tensor(self, memory: Tensor) -> Tensor:
        """Return the tensor that lies here in the memory of the block; nothing is copied."""
        end = self.start + self.shape.numel() * self.dtype.itemsize
        return memory[self.start : end].view(self.dtype).view(self.shape)


class Block:
    """Shared memory that is filled with tensors, from its beginning."""

    def __init__(self, number: int, memory: Tensor):
        self.number, self.memory = number, memory  # (bytes,)
        self.filled = 0  # bytes
        self.held: dict[
            Any, tuple[Tensor, SharedTensor]
        ] = {}  # by where a tensor lies outside: it must not go before its key

    def clear(self) -> None:
        """Discard all tensors of the block."""
        self.filled, self.held = 0, {}

    def put(self, tensor: Tensor) -> SharedTensor | NDArray[Any]:
        """Copy a tensor into the block and return its place; if it does not fit, return the array to send instead."""
        if self.filled + tensor.nbytes > len(self.memory):
            return tensor.numpy()
        place = SharedTensor(self.number, self.filled, tensor.shape, tensor.dtype)
        place.tensor(self.memory).copy_(tensor)
        self.filled += padded(tensor.nbytes)
        if tensor.is_contiguous():
            self.held[whereabouts(tensor)] = tensor, place
        return place

    def find(self, tensor: Tensor) -> SharedTensor | None:
        """Return the place of a tensor that is already in the block, else None."""
        held = self.held.get(whereabouts(tensor)) if tensor.is_contiguous() else None
        return held and replace(held[1], shape=tensor.shape)


def whereabouts(tensor: Tensor) -> Any:
    """Return a key that identifies a contiguous tensor among those that exist."""
    return tensor.data_ptr(), tensor.numel(), tensor.dtype


def padded(size: int) -> int:
    """Return a number of bytes, after which another tensor may begin."""
    return -(-size // ALIGNED) * ALIGNED


def blocks(sizes: Sequence[int]) -> list[Block]:
    """Return blocks of these sizes in bytes; empty ones if there is too little shared memory."""
    memories = [torch.empty(size, dtype=torch.uint8) for size in sizes]
    try:
        for memory in memories:
            memory.share_memory_()
    except RuntimeError:
        memories = [torch.empty(0, dtype=torch.uint8) for _ in sizes]
    return [Block(number, memory) for number, memory in enumerate(memories)]


def read_tree(tree: Any, memories: Sequence[Tensor], copied: bool) -> Any:
    """Return a tree with the tensors of its places, or copies of them, and of arrays that were sent instead."""

    def tensor(leaf: Any) -> Any:
        if isinstance(leaf, SharedTensor):
            found = leaf.tensor(memories[leaf.block])
            return found.clone() if copied else found
        return torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf

    return tree_map(tensor, tree)


class Mapped:
    """A tensor in a file, which other processes map into their memory. The file goes with it."""

    def __init__(self, tensor: Tensor):
        self.shape, self.dtype = tensor.shape, tensor.dtype
        self.file = tempfile.NamedTemporaryFile(prefix="partwise-")  # noqa: SIM115 - workers open it when they start
        tensor.numpy().tofile(self.file)
        self.file.flush()

    def __reduce__(self) -> Any:
        return open_memory, (self.file.name, self.shape, self.dtype)


def open_memory(name: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Return the tensor in a file, mapped into memory."""
    return torch.from_file(name, size=shape.numel(), dtype=dtype).view(shape)


def in_shared_memory(tensor: Tensor) -> Any:
    """Put a tensor where other processes can use it without a copy: shared memory, or else a file."""
    with suppress(RuntimeError):  # containers often have no more than 64 MB
        return tensor.share_memory_()
    try:
        return Mapped(tensor)
    except OSError as error:
        raise PartwiseError(
            f"no room for {tensor.nbytes / 1e9:.1f} GB of samples in shared memory nor in {tempfile.gettempdir()} "
            f"({error.strerror}): set TMPDIR to a folder on a larger disk, or run with --engine loop"
        ) from None
