"""Where tensors lie: on the host, or on a device that works while the host goes on."""

import torch
from torch import Tensor


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor where it is needed, without waiting for what a GPU is doing."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def free_memory(device: torch.device) -> int:
    """Return the bytes of a GPU that nobody uses; torch holds some of them ready."""
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
