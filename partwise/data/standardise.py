"""How a network sees samples: features standardised by all clients' moments, images by a known scale.

A client's moments are the count and mean of its own training samples, and their squared distances from this mean. No
client depends on another's centre, and in 1e9 + noise the noise is not lost among squares around 0.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from partwise.data.source import Federation, Source
from partwise.data.transforms import row_tensor, with_rows
from partwise.errors import ConfigError, DataError
from partwise.tasks import Numbers

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and deviation of its channels, white being 1


def standardised(federation: Federation, fill: bool = False, few: int = 1, rare: int = 1) -> Federation:
    """Return the federation with centre and scale from its training samples, if its source asks for it.

    With `fill`, NaN in any sample is replaced with its feature's mean. `few` and `rare` are those of `enough`.
    """
    federation = with_standardised_labels(federation, few)
    source = federation.source
    if not source.standardise:
        return federation
    x = row_tensor(source.x)
    total = merged(client_moments(x[own], source, few, rare) for own in federation.train)
    centre, scale = centre_and_scale(total)
    if fill or few > 1:
        lack = "training sample has a value" if few == 1 else f"client has {few} filled training cells"
        check_columns_known(
            total, source.feature_names, source.feature_columns, f"data set '{source.name}': no {lack} of"
        )
    if fill:
        mean = centre.to(x.dtype).view(-1, *[1] * (x.ndim - 2))
        x = torch.where(x.isnan(), mean, x)
    source = replace(source, x=with_rows(source.x, x), centre=tuple(centre.tolist()), scale=tuple(scale.tolist()))
    return replace(federation, source=source)


def with_standardised_labels(federation: Federation, few: int = 1) -> Federation:
    """Return the federation with labels that are numbers standardised by the clients' training samples.

    Clients with fewer than `few` known labels do not count.
    """
    source, task = federation.source, federation.source.own_task
    if not isinstance(task, Numbers) or task.centre:
        return federation
    total = merged(label_moments(source.y[own], few) for own in federation.train)
    check_columns_known(
        total,
        task.names,
        task.names,
        f"data set '{source.name}': no client has {few} training samples with label",
        "leave it out",
    )
    task = task.standardised_by(*centre_and_scale(total))
    return replace(federation, source=replace(source, y=task.standardised(source.y), own_task=task))


def tells_of_clients(source: Source, fill: bool) -> bool:
    """Return whether samples or labels were changed by what the clients train on, which another seed may change."""
    standardised_labels = isinstance(source.own_task, Numbers) and bool(source.own_task.centre)
    counted = source.text is not None and source.text.counted
    return (fill and source.standardise) or standardised_labels or counted


def client_moments(x: Tensor, source: Source, few: int, rare: int) -> Tensor:
    """Return (3, features) a client's moments; zeros for features without enough samples."""
    return column_moments(x) * enough(x, source, few, rare)


def label_moments(y: Tensor, few: int) -> Tensor:
    """Return (3, numbers) a client's moments of its labels; zeros where fewer than `few` are known."""
    moments = column_moments(y)
    return moments * (moments[0] >= few)


def column_moments(x: Tensor) -> Tensor:
    """Return (3, features) the count of finite values, their mean, and the sum of squared distances from it."""
    values = x.double().movedim(1, 0).flatten(1)  # (features, values)
    finite = values.isfinite()
    count = finite.sum(1).double()
    mean = torch.where(finite, values, 0.0).sum(1) / count.clamp(min=1)
    squares = torch.where(finite, values - mean[:, None], 0.0).square().sum(1)
    return torch.stack([count, mean, squares])


def merged(each: Iterable[Tensor]) -> Tensor:
    """Return (3, features) the moments of all clients together, one after the other (Chan, Golub and LeVeque 1979)."""
    first, *others = each
    total = first
    for own in others:
        count, apart = total[0] + own[0], own[1] - total[1]
        share = own[0] / count.clamp(min=1)
        mean = total[1] + share * apart
        total = torch.stack([count, mean, total[2] + own[2] + share * total[0] * apart.square()])
    return total


def centre_and_scale(total: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation; a feature that does not vary has scale 1."""
    deviation = (total[2] / total[0].clamp(min=1)).sqrt()
    return total[1], torch.where(deviation > 0, deviation, 1.0)  # equal float32 values have no deviation in float64


def enough(x: Tensor, source: Source, few: int, rare: int) -> Tensor:
    """Return (features,) which features of a client's training samples may be reported.

    A column needs `few` filled cells. A text needs `rare` samples with it and as many without: otherwise its mean would
    reveal how many have a rare one.
    """
    filled = x.isfinite() if x.ndim == 2 else x.isfinite().flatten(2).any(2)
    result = filled.sum(0) >= few
    for features in texts(source.feature_names, source.feature_columns).values():
        marks = x[:, features] == 1
        have = marks.sum(0)
        fewest = torch.minimum(have, len(x) - have)
        result[features] = (fewest.clamp(min=1) >= rare) & (marks.any(1).sum().clamp(min=1) >= few)
    return result


def texts(names: Sequence[str], columns: Sequence[str]) -> dict[str, list[int]]:
    """Return the features of each column of texts; `columns` are those of the features."""
    result: dict[str, list[int]] = {}
    for feature, (name, column) in enumerate(zip(names, columns, strict=False)):
        if name != column:
            result.setdefault(column, []).append(feature)
    return result


def check_columns_known(
    total: Tensor, names: Sequence[str], columns: Sequence[str], problem: str, remedy: str = "--drop it"
) -> None:
    """Refuse a number column without moments from any client; features of texts need none."""
    marks = {feature for own in texts(names, columns).values() for feature in own}
    for feature in (total[0] == 0).nonzero().flatten().tolist():
        if feature not in marks:
            name = names[feature] if names else str(feature)
            raise DataError(f"{problem} '{name}'; {remedy}")


def normalised(source: Source, how: str | None) -> Source:
    """Return images scaled by `half` (-1 to 1), `unit` (0 to 1) or `imagenet` (its numbers); None: as they are."""
    if how is None:
        return source
    if isinstance(source.x, dict) or source.x.dtype != torch.uint8:
        held = "several tensors" if isinstance(source.x, dict) else str(source.x.dtype)
        raise ConfigError(f"normalise = '{how}' is for images of bytes, but '{source.name}' holds {held}")
    if how == "imagenet" and source.x.shape[1] != 3:
        raise ConfigError(f"normalise = 'imagenet' is for 3 channels, but '{source.name}' has {source.x.shape[1]}")
    numbers = {"half": ((0.5,), (0.5,)), "unit": ((0.0,), (1.0,)), "imagenet": IMAGENET}[how]
    centre, scale = (tuple(source.white * number for number in each) for each in numbers)
    return replace(source, centre=centre, scale=scale)
