"""Optimisers as functions of one tensor, so that they run for one client or, under vmap, for many."""

import torch
from torch import Tensor

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
SERVER_BETA_2, SERVER_TAU = 0.99, 1e-3
# Of the server's step where nothing else is said: rate and momentum. Rate 1 and no momentum is the mean itself.
SERVER_STEP = {"sgd": (1.0, 0.0), "adam": (0.01, 0.9)}


def initial_state(optimizer: str, momentum: float, tensors: Tensor) -> dict[str, Tensor]:
    """Return the optimiser's initial state for a tensor of several clients, a row for each."""
    if optimizer == "adamw":
        steps = tensors.new_zeros(len(tensors))
        return {"first": torch.zeros_like(tensors), "second": torch.zeros_like(tensors), "steps": steps}
    return {"momentum": torch.zeros_like(tensors)} if momentum else {}


def step(
    optimizer: str,
    tensor: Tensor,
    grad: Tensor,
    state: dict[str, Tensor],
    rate: Tensor | float,
    momentum: float,
    weight_decay: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Make one step; return the new tensor and the optimiser's state."""
    if optimizer == "adamw":
        steps = state["steps"] + 1
        first = state["first"] + (1 - BETA_1) * (grad - state["first"])
        second = state["second"] + (1 - BETA_2) * (grad.square() - state["second"])
        size = (second / (1 - BETA_2**steps)).sqrt() + EPSILON
        tensor = tensor * (1 - rate * weight_decay) - rate * (first / (1 - BETA_1**steps)) / size
        return tensor, {"first": first, "second": second, "steps": steps}
    if weight_decay:
        grad = grad + weight_decay * tensor
    if momentum:
        grad = state["momentum"] * momentum + grad
        state = {"momentum": grad}
    if isinstance(rate, Tensor):
        return torch.addcmul(tensor, grad, rate, value=-1), state  # tensor - rate * grad, going through both once
    return torch.sub(tensor, grad, alpha=rate), state


def initial_server_state(optimizer: str, momentum: float, copies: Tensor) -> dict[str, Tensor]:
    """Return the initial state of the server's optimiser for its copies of a tensor."""
    if optimizer == "adam":
        return {"first": torch.zeros_like(copies), "second": torch.full_like(copies, SERVER_TAU**2)}
    return {"momentum": torch.zeros_like(copies)} if momentum else {}


def server_step(
    optimizer: str, before: Tensor, mean: Tensor, state: dict[str, Tensor], rate: float, momentum: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Make one step of the server towards the mean of updates; return its new copies and the optimiser's state.

    `sgd` is FedAvgM (Hsu et al. 2019), `adam` is FedAdam (Reddi et al. 2021, Algorithm 2: no correction of the bias).
    """
    change = mean - before
    if optimizer == "adam":
        first = momentum * state["first"] + (1 - momentum) * change
        second = SERVER_BETA_2 * state["second"] + (1 - SERVER_BETA_2) * change.square()
        return before + rate * first / (second.sqrt() + SERVER_TAU), {"first": first, "second": second}
    if momentum:
        change = momentum * state["momentum"] + change
        state = {"momentum": change}
    return before + rate * change, state


def clip_gradients(grads: dict[str, Tensor], largest: float) -> dict[str, Tensor]:
    """Scale gradients down together so that their norm is at most `largest`."""
    norm = torch.stack([grad.square().sum() for grad in grads.values()]).sum().sqrt()
    factor = (largest / (norm + 1e-6)).clamp(max=1)
    return {name: grad * factor for name, grad in grads.items()}
