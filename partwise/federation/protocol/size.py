"""The size of a network that a server names, computed before a node builds it."""

import torch

from partwise.data.source import Source
from partwise.errors import ConfigError, located
from partwise.network.own import network_in_file, own_parts
from partwise.runs.config import Config
from partwise.runs.prepare import named_network, network_arguments, network_name


def check_size(config: Config, source: Source, most: int, who: str) -> None:
    """Refuse a network that does not fit into one message; on the device `meta` its tensors take no memory."""
    settings, double = config.model, config.run.dtype == "float64"
    name = network_name(config, source)
    own = network_in_file(settings.model)
    with torch.device("meta"), located("while its size is computed, on torch's device meta"):
        if own is None:
            parts = named_network(config, source)
        else:
            parts = own_parts(own, settings.model, network_arguments(source), config.run.seed)
    size = sum(value.numel() for value in parts.tensors().values()) * (8 if double else 4)
    if size > most:
        raise ConfigError(
            f"{who} takes networks of {most:,} bytes at most (most_bytes in its file), {name} has {size:,}"
        )
