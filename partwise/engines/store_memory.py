"""Memory for the state of clients: the device where all clients together would need little of it, else the host.

From a bound on it lies in files that are mapped into memory.
"""

import os
import tempfile
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from partwise.errors import PartwiseError

DEVICE_SHARE = 0.1  # of a device's memory: if all clients together would need more, their state lies on the host
# A quarter of the machine's memory: where more would be needed, it lies in files.
HOST_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4 if hasattr(os, "sysconf") else 2**32

Name = TypeVar("Name", bound=Hashable)


@dataclass
class StoreMemory:
    """Allocates sheets of a store."""

    device: torch.device
    runs: int = 1  # side by side, each with a store

    def share(self, runs: int) -> None:
        """Divide memory among several runs side by side."""
        self.runs = runs

    def empty(self, rows: int, like: Tensor, each: int, clients: int) -> Tensor:
        """Return (rows, ...) for rows like those of `like`, where memory suffices for them and all other sheets.

        `each` is the bytes of one client in all sheets, `clients` is how many there can be.
        """
        shape = (rows, *like.shape[1:])
        if self.device.type == "cuda":
            most = DEVICE_SHARE * torch.cuda.get_device_properties(self.device).total_memory
            if self.runs * each * clients <= most:
                return torch.empty(shape, dtype=like.dtype, device=self.device)
        if self.runs * each * rows <= HOST_BYTES:
            return torch.empty(shape, dtype=like.dtype)
        return mapped(shape, like.dtype)


def mapped(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a tensor in a file of the temporary folder, mapped into memory.

    The file has lost its name when it comes back: it goes with the tensor, and with the process however that ends.
    """
    size = torch.Size(shape).numel()
    try:
        with tempfile.NamedTemporaryFile(prefix="partwise-") as file:
            if hasattr(os, "posix_fallocate"):  # a disk that is full as a row is written would end the process
                os.posix_fallocate(file.fileno(), 0, max(1, size) * dtype.itemsize)
            return torch.from_file(file.name, shared=True, size=max(1, size), dtype=dtype)[:size].view(shape)
    except OSError as error:
        raise PartwiseError(
            f"no room for {size * dtype.itemsize / 1e9:.1f} GB of the clients' state in {tempfile.gettempdir()} "
            f"({error.strerror}): set TMPDIR to a folder on a larger disk"
        ) from None


def copied_to_host(tensors: Mapping[Name, Tensor]) -> dict[Name, Tensor]:
    """Copy tensors from a GPU to the host, waiting for it once."""
    copies = {key: torch.empty(value.shape, dtype=value.dtype, pin_memory=True) for key, value in tensors.items()}
    for key, value in tensors.items():
        copies[key].copy_(value, non_blocking=True)
    if copies:
        torch.cuda.current_stream(next(iter(tensors.values())).device).synchronize()
    return copies
