"""How a network sees samples: features standardised from sums that clients share, images by a known scale."""

from dataclasses import replace

import torch
from torch import Tensor

from partwise.data.source import Federation, Source
from partwise.errors import ConfigError, DataError

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and deviation of its channels, white being 1


def standardised(federation: Federation, fill: bool = False) -> Federation:
    """The federation with its training samples' mean and deviation as centre and scale, where its source asks for it.

    With `fill`, NaN in any sample is replaced with its feature's mean.
    """
    source = federation.source
    if not source.standardise:
        return federation
    centre = torch.zeros(source.x.shape[1], dtype=torch.float64)
    # Two exchanges, the second around the mean of the first: in 1e9 + noise the noise is lost among squares around 0.
    for _ in range(2):
        total = torch.stack([sums(source.x[own], centre) for own in federation.train]).sum(0)
        centre, scale = moments(total, centre)
    x = source.x
    if fill:
        for feature in (total[0] == 0).nonzero().flatten().tolist():
            name = source.feature_names[feature] if source.feature_names else str(feature)
            raise DataError(f"data set '{source.name}': no training sample has a value of '{name}'; --drop it")
        mean = centre.to(x.dtype).view(-1, *[1] * (x.ndim - 2))
        x = torch.where(x.isnan(), mean, x)
    source = replace(source, x=x, centre=tuple(centre.tolist()), scale=tuple(scale.tolist()))
    return replace(federation, source=source)


def sums(x: Tensor, around: Tensor) -> Tensor:
    """A client's part, (3, features): how many values are finite, and the sums of their distances and squares."""
    values = x.double().movedim(1, 0).flatten(1)  # (features, values)
    finite = values.isfinite()
    distance = torch.where(finite, values - around[:, None], 0.0)
    return torch.stack([finite.sum(1), distance.sum(1), distance.square().sum(1)])


def moments(total: Tensor, around: Tensor) -> tuple[Tensor, Tensor]:
    """The server's part: mean and deviation from the clients' added sums; a feature that does not vary has scale 1."""
    distance, squares = total[1:] / total[0].clamp(min=1)
    deviation = (squares - distance.square()).clamp(min=0).sqrt()
    return around + distance, torch.where(deviation > 0, deviation, 1.0)  # float64 sums equal float32 values exactly


def normalised(source: Source, how: str | None) -> Source:
    """Images `half` (-1 to 1), `unit` (0 to 1) or by the numbers of `imagenet`; None: as the data set's papers do."""
    if how is None:
        return source
    if source.x.dtype != torch.uint8:
        raise ConfigError(f"normalise = '{how}' is for images of bytes, but '{source.name}' holds {source.x.dtype}")
    if how == "imagenet" and source.x.shape[1] != 3:
        raise ConfigError(f"normalise = 'imagenet' is for 3 channels, but '{source.name}' has {source.x.shape[1]}")
    numbers = {"half": ((0.5,), (0.5,)), "unit": ((0.0,), (1.0,)), "imagenet": IMAGENET}[how]
    centre, scale = (tuple(source.white * number for number in each) for each in numbers)
    return replace(source, centre=centre, scale=scale)
