"""The networks of timm, by name. Nothing is downloaded: weights come from a file (weights.py)."""

from difflib import get_close_matches
from functools import partial

import torch
from torch import nn

from partwise.errors import ConfigError, needed
from partwise.network.models.convolutional import image
from partwise.network.parts import BUILD_AGAIN, Parts


def from_timm(name: str, shape: tuple[int, ...], classes: int, norm: bool = False, dropout: float = 0.0) -> Parts:
    """Return a network of timm's without its classifier as the body, and a head on its features."""
    image(f"timm:{name}", shape)
    if norm:
        raise ConfigError(f"batch_norm applies to small built-in networks only; leave it out for model 'timm:{name}'")
    check_timm_name(name)
    try:
        body = create(name, shape)
        with torch.no_grad():
            (features,) = body.eval()(torch.zeros(2, *shape)).shape[1:]
    except Exception as error:  # each network has its own way to say so
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"model 'timm:{name}' does not take samples of shape {shape}: {reason}") from None
    setattr(body, BUILD_AGAIN, partial(create, name, shape))  # its layers cannot be drawn one by one
    parts = Parts(nn.ModuleDict({"body": body, "head": nn.Linear(features, classes)}))
    return parts.append("body", "dropout", nn.Dropout(dropout)) if dropout else parts


def create(name: str, shape: tuple[int, ...]) -> nn.Module:
    """Return a network of timm's for images of this shape, its values drawn from torch's generator."""
    timm, (channels, *size) = needed("timm", "timm"), shape
    make = partial(timm.create_model, name, pretrained=False, num_classes=0, in_chans=channels)
    try:
        net = make(img_size=tuple(size))
    except TypeError as error:
        if "img_size" not in str(error):
            raise
        net = make()  # it takes images of any size
    net.drop_rate = 0.0  # some drop features by function; dropout before the head is a layer here
    return net


def check_timm_name(name: str) -> None:
    """Refuse a name that timm does not know, with the nearest one."""
    timm = needed("timm", "timm")
    if not timm.is_model(name):
        near = get_close_matches(name, timm.list_models(), n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise ConfigError(f"unknown model 'timm:{name}'; {hint}timm.list_models() lists them")
