"""Optimisers as functions of one tensor, so that they run for one client and for many alike."""

import torch
from torch import Tensor

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8


def slots(optimizer: str, momentum: float, tensors: Tensor) -> dict[str, Tensor]:
    """What the optimiser remembers about a tensor of several clients (a row for each) before its first step."""
    if optimizer == "adamw":
        steps = tensors.new_zeros(len(tensors))
        return {"first": torch.zeros_like(tensors), "second": torch.zeros_like(tensors), "steps": steps}
    return {"momentum": torch.zeros_like(tensors)} if momentum else {}


def step(
    optimizer: str,
    tensor: Tensor,
    grad: Tensor,
    slot: dict[str, Tensor],
    rate: Tensor | float,
    momentum: float,
    weight_decay: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """One step: the new tensor and what the optimiser remembers."""
    if optimizer == "adamw":
        steps = slot["steps"] + 1
        first = slot["first"] + (1 - BETA_1) * (grad - slot["first"])
        second = slot["second"] + (1 - BETA_2) * (grad.square() - slot["second"])
        size = (second / (1 - BETA_2**steps)).sqrt() + EPSILON
        tensor = tensor * (1 - rate * weight_decay) - rate * (first / (1 - BETA_1**steps)) / size
        return tensor, {"first": first, "second": second, "steps": steps}
    if weight_decay:
        grad = grad + weight_decay * tensor
    if momentum:
        grad = slot["momentum"] * momentum + grad
        slot = {"momentum": grad}
    if isinstance(rate, Tensor):
        return torch.addcmul(tensor, grad, rate, value=-1), slot  # tensor - rate * grad, going through both once
    return torch.sub(tensor, grad, alpha=rate), slot


def clipped(grads: dict[str, Tensor], largest: float) -> dict[str, Tensor]:
    """Gradients scaled down together so that their norm is at most `largest`."""
    norm = torch.stack([grad.square().sum() for grad in grads.values()]).sum().sqrt()
    factor = (largest / (norm + 1e-6)).clamp(max=1)
    return {name: grad * factor for name, grad in grads.items()}
