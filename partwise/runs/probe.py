"""Probes of a network before a run: does it draw random numbers by itself, and do rows of a mini-batch meet?"""

import torch
from torch import Tensor

from partwise.errors import ConfigError
from partwise.layers import Scope
from partwise.net import Net
from partwise.parts import Parts

REAL, ROWS = 4, 6


def check_repeatable(
    parts: Parts, scope: Scope, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    """Run it twice: randomness that is not a client's own would make a run depend on who else runs."""
    x = probe(shape, dtype, device)
    for name, value in parts.tensors().items():
        if not torch.isfinite(value).all():
            raise ConfigError(f"the network's '{name}' holds numbers that are not finite")
    if differ(outputs(parts, scope, x), outputs(parts, scope, x)):
        raise ConfigError("the network draws random numbers by itself in training: use nn.Dropout layers for that")


def mixes_rows(parts: Parts, scope: Scope, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> bool:
    """Change padded rows and compare: a network that mixes rows anyway cannot run in padded blocks."""
    x = probe(shape, dtype, device)
    other = torch.cat([x[:REAL], 3 - 2 * x[REAL:]])
    return differ(outputs(parts, scope, x), outputs(parts, scope, other))


def probe(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.linspace(-1, 1, ROWS * torch.Size(shape).numel(), dtype=dtype, device=device).view(ROWS, *shape)


def outputs(parts: Parts, scope: Scope, x: Tensor) -> list[Tensor]:
    """What the network makes of the real rows in training, and its running values."""
    mask = torch.arange(ROWS, device=x.device) < REAL
    net = Net(parts, scope, parts.tensors(), training=True, mask=mask, key=torch.tensor(0, device=x.device))
    with torch.no_grad():
        return [net(x)[:REAL], *(net.tensors[name] for name in sorted(parts.buffers))]


def differ(one: list[Tensor], two: list[Tensor]) -> bool:
    return any(not torch.equal(first, second) for first, second in zip(one, two, strict=True))
