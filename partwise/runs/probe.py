"""The padding probe: does a row of a mini-batch change what the network makes of the others?"""

import torch

from partwise.layers import Scope
from partwise.net import Net
from partwise.parts import Parts


def mixes_rows(parts: Parts, scope: Scope, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> bool:
    """Change padded rows and compare: a network that mixes rows anyway cannot run in padded blocks."""
    x = torch.linspace(-1, 1, 6 * torch.Size(shape).numel(), dtype=dtype, device=device).view(6, *shape)
    other = x.clone()
    other[4:] = 3 - 2 * x[4:]
    mask = torch.arange(6, device=device) < 4
    results = []
    with torch.no_grad():
        for rows in (x, other):
            net = Net(parts, scope, parts.tensors(), training=True, mask=mask, key=torch.tensor(0, device=device))
            results.append([net(rows)[:4], *(net.tensors[name] for name in sorted(parts.buffers))])
    return any(not torch.equal(one, two) for one, two in zip(*results, strict=True))
