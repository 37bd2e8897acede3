"""Moving tensors between the host and a device, and the memory that a device has left."""

import torch
from torch import Tensor


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device, without waiting for the work that a GPU has in progress."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def free_memory(device: torch.device) -> int:
    """Return the free bytes of a GPU, including those that torch's allocator holds in reserve."""
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
