"""DP-SGD as the gradient rule of a move: the mean of clipped gradients of single samples, with noise on their sum.

References:
    Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang: Deep Learning with Differential Privacy. CCS 2016.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from partwise.network.keyed import Draws
from partwise.network.view import Batch, Me, Net, Tensors
from partwise.trees import Samples

ROW, NOISE = 0x27D4EB2F, 0x165667B1  # keep the draws of samples and of the noise apart from others of a step


@dataclass(frozen=True)
class PrivateGradients:
    """A move's gradients from those of single samples (Algorithm 1)."""

    clip: float  # largest L2 norm of a sample's gradient, over all that the move trains
    noise: float  # standard deviation on the sum, in clips

    def __call__(self, loss: Callable, net: Net, b: Batch, me: Me) -> tuple[Tensors, Tensor]:
        """Return the gradients by name, and the mean loss; padded rows add nothing to either."""
        assert net.key is not None and b.draws.key is not None
        key, drawn = net.key, b.draws.key

        def alone(x: Samples, y: Tensor, number: Tensor) -> tuple[Tensors, Tensor]:
            own = Batch(
                tree_map(lambda value: value[None], x), y[None], torch.ones_like(number[None], dtype=torch.bool), b.task
            )
            own = own._replace(draws=Draws(drawn + ROW * number, b.draws.dtype))
            grads, (value, _) = net.with_key(key + ROW * number).grad_and_value(loss, own, me)
            norm = torch.stack([grad.square().sum() for grad in grads.values()]).sum().sqrt()
            factor = (self.clip / norm).clamp(max=1)
            scaled = {name: grad * factor for name, grad in grads.items()}
            if self.noise:  # it cannot hide a gradient that is not finite, which is replaced by 0
                scaled = {
                    name: torch.where(norm.isfinite(), grad, torch.zeros_like(grad)) for name, grad in scaled.items()
                }
            return scaled, value

        each, values = torch.vmap(alone)(b.x, b.y, torch.arange(len(b.y), device=b.y.device))
        real = b.mask.sum().clamp(min=1)
        draws, result = Draws(key + NOISE, b.draws.dtype), {}
        for name, grads in each.items():
            mask = b.mask.view(-1, *[1] * (grads.dim() - 1))
            total = torch.where(mask, grads, torch.zeros_like(grads)).sum(0)
            if self.noise:
                total = total + self.noise * self.clip * draws.normal(total.shape).to(total.dtype)
            result[name] = total / real
        return result, b.mean(values)
