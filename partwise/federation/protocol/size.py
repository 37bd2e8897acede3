"""The size of a network that a server names, computed before a node builds it."""

import torch

from partwise.data.source import Source
from partwise.errors import ConfigError
from partwise.network import models
from partwise.runs.config import Config
from partwise.runs.prepare import network_name


def check_size(config: Config, source: Source, most: int, who: str) -> None:
    """Refuse a network that does not fit into one message; on the device `meta` its tensors take no memory."""
    settings, double = config.model, config.run.dtype == "float64"
    name, shape = network_name(config, source), tuple(source.x.shape[1:])
    outputs = source.classes if source.own_task is None else source.own_task.outputs
    with torch.device("meta"):
        parts = models.build(name, shape, outputs, settings.batch_norm, settings.dropout)
    size = sum(value.numel() for value in parts.tensors().values()) * (8 if double else 4)
    if size > most:
        raise ConfigError(
            f"{who} takes networks of {most:,} bytes at most (most_bytes in its file), {name} has {size:,}"
        )
