"""Probes of a network before a run: does it fit the data, are its parts the whole of it, is it random by itself, do
rows of a mini-batch meet in it, and can clients run through it in blocks?"""

import copy
import warnings

import torch
from torch import Tensor
from torch.func import vmap

from partwise.data import Source
from partwise.errors import ConfigError, one_line, short
from partwise.layers import Scope
from partwise.net import Net, Tensors
from partwise.parts import Parts

REAL, ROWS = 4, 6


def samples_of(source: Source) -> Tensor:
    """Samples from all over a data set as the network will see them; behind ROWS of them, others for padded rows."""
    index = torch.linspace(0, len(source.y) - 1, 2 * ROWS - REAL).long()
    channels = (-1, *[1] * (source.x.ndim - 2))
    centre, scale = (torch.tensor(values).view(channels) for values in (source.centre, source.scale))
    return ((source.x[index].float() - centre) / scale).nan_to_num()


def features(parts: Parts, x: Tensor, classes: int) -> int:
    """What the last part of the chain takes in; also the check that data and network fit and that the parts are it."""
    modules, shape = parts.duplicate().modules, tuple(x.shape[1:])  # it is run, and what was handed in stays as it is
    x = sample = x[:2].to(next(iter(parts.tensors().values())).dtype)
    try:
        with torch.no_grad():
            for part in parts.chain:
                size, x = x.flatten(1).shape[1], modules[part].eval()(x)
            whole = x if parts.origin is None else copy.deepcopy(parts.origin).eval()(sample)
    except Exception as error:  # a network may fail in any way on what is not made for it
        raise ConfigError(f"the network does not take samples of shape {shape}: {short(one_line(error))}") from None
    if not isinstance(whole, Tensor) or whole.shape != x.shape or not torch.allclose(whole, x, atol=1e-5):
        raise ConfigError(
            f"the parts {' > '.join(parts.chain)} in a row are not the network: its forward does more than call them; "
            "say how a part runs with Parts(net, ..., forward={'body': function})"
        )
    if x.shape[1:] != (classes,):
        given = "x".join(map(str, x.shape[1:]))
        raise ConfigError(f"the network gives {given} logits for a sample, but the data have {classes} classes")
    return size


def check_repeatable(parts: Parts, scope: Scope, x: Tensor) -> None:
    """Run it twice: randomness that is not a client's own would make a run depend on who else runs."""
    for name, value in parts.tensors().items():
        if not torch.isfinite(value).all():
            raise ConfigError(f"the network's '{name}' holds numbers that are not finite")
    if differ(outputs(parts, scope, x[:ROWS]), outputs(parts, scope, x[:ROWS])):
        raise ConfigError(
            "the network gives something else the second time it is run in training: it draws random numbers by itself "
            "(use nn.Dropout layers for that) or changes its buffers"
        )


def mixes_rows(parts: Parts, scope: Scope, x: Tensor) -> bool:
    """Change padded rows and compare: a network that mixes rows anyway cannot run in padded blocks."""
    return differ(*(outputs(parts, scope, torch.cat([x[:REAL], others])) for others in (x[REAL:ROWS], x[ROWS:])))


def goes_in_blocks(parts: Parts, scope: Scope, x: Tensor) -> bool:
    """Run two clients at once: torch does not know how to do that with every layer, nor with every forward."""
    both = {name: value.detach().expand(2, *value.shape) for name, value in parts.tensors().items()}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of slow ways
            vmap(lambda tensors: outputs(parts, scope, x[:ROWS], tensors))(both)
    except RuntimeError:
        scope.clear()
        return False
    return True


def outputs(parts: Parts, scope: Scope, x: Tensor, tensors: Tensors | None = None) -> list[Tensor]:
    """What the network makes of the real rows in training, and its running values."""
    mask, key = torch.arange(ROWS, device=x.device) < REAL, torch.tensor(0, device=x.device)
    net = Net(parts, scope, parts.tensors() if tensors is None else tensors, training=True, mask=mask, key=key)
    with torch.no_grad():
        return [net(x)[:REAL], *(net.tensors[name] for name in sorted(parts.buffers))]


def differ(one: list[Tensor], two: list[Tensor]) -> bool:
    """Whether something is not the same; numbers that are none, of samples that are too large, are."""
    return any(not torch.equal(first.nan_to_num(), second.nan_to_num()) for first, second in zip(one, two, strict=True))
