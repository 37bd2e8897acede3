"""Checks of every data set, built-in or a user's own."""

from collections.abc import Sequence, Set
from difflib import get_close_matches

import numpy as np
import torch
from torch import Tensor

from partwise.data.source import Source
from partwise.data.transforms import row_tensor
from partwise.errors import DataError, short
from partwise.trees import beyond_end, tensors_of

STORED_TYPES = (torch.float32, torch.int64)  # of samples that are not images


def check(source: Source, allow_nonfinite: bool = False, missing: str = "refuse") -> Source:
    """Return the source; refuse one whose contents do not fit together, with counts.

    Where `missing` is "mean" and the source is standardised, empty cells are NaN until the clients' means are known.
    """
    x, y, train, where = source.x, source.y, source.train, f"data set '{source.name}'"
    for own in tensors_of(x):
        if (own.dtype, own.ndim) != (torch.uint8, 4) and (own.dtype not in STORED_TYPES or own.ndim < 2):
            raise DataError(
                f"{where}: x must be uint8 images or rows of float32 or int64, got {own.dtype} of shape "
                f"{tuple(own.shape)}"
            )
        if len(y) != len(own):
            raise DataError(f"{where}: {len(own):,} samples need as many labels, got y of shape {tuple(y.shape)}")
    channels = row_tensor(x).shape[1] if source.standardise or not isinstance(x, dict) else 1
    if not {len(source.centre), len(source.scale)} <= {1, channels} or 0 in source.scale:
        raise DataError(
            f"{where}: centre and scale must be 1 or {channels} numbers, scale without 0, "
            f"got {source.centre} and {source.scale}"
        )
    if not 0 < train <= len(y):
        raise DataError(f"{where}: {train:,} for training, {len(y) - train:,} for testing; training needs a sample")
    wrong = source.task.check(y)
    if wrong:
        raise DataError(f"{where}: {wrong}")
    trained, tested = set(source.bins[:train].tolist()), set(source.bins[train:].tolist())
    if source.task.of_classes and tested and trained != tested:
        names = source.class_names or range(source.classes)
        alone = ", ".join(str(names[label]) for label in sorted(trained ^ tested)[:8])
        raise DataError(
            f"{where}: {len(trained)} classes in the training set, {len(tested)} in the test set; in one alone: {alone}"
        )
    for name, column in source.columns.items():
        code, values = column.code, len(column.names)
        if (code.dtype, code.shape) != (torch.int64, y.shape[:1]) or not ((code >= 0) & (code < values)).all():
            raise DataError(f"{where}: column '{name}' must be {len(y):,} int64 numbers from 0 to {values - 1}")
    if not allow_nonfinite:
        for own in tensors_of(x):
            if own.is_floating_point():
                _check_finite(source, own, source.standardise and missing == "mean")
    return source


def _check_finite(source: Source, x: Tensor, nan_allowed: bool) -> None:
    """Refuse NaN and infinity, naming the first."""
    odd = (torch.isinf(x) if nan_allowed else ~torch.isfinite(x)).numpy()
    if x.ndim == 3:
        odd = odd & ~beyond_end(x).numpy()[..., None]
    if odd.any():
        sample, *feature = np.unravel_index(odd.argmax(), odd.shape)
        named = source.feature_names and len(feature) == 1
        label = f"'{source.feature_names[feature[0]]}'" if named else ", ".join(map(str, feature))
        value, samples = x[sample, *feature].item(), odd.reshape(len(odd), -1).any(1).sum()
        raise DataError(
            f"data set '{source.name}': sample {sample}, feature {label} is {value}, one of {odd.sum():,} numbers in "
            f"{samples:,} samples that are not finite; mend the data, or accept them with --allow-nonfinite-data"
        )


def lacking(missing: Sequence[str], there: Sequence[str]) -> str:
    """Return the message for missing columns: which, a similar name, and the columns that exist."""
    near = get_close_matches(missing[0], there, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    return f"lacks {', '.join(map(repr, missing))}{hint} it has {short(', '.join(map(repr, there)))}"


def other_columns(own: Set[str], most: Set[str]) -> str:
    """Return what a client's table lacks or adds to the columns that most have; '' if neither."""
    lacking, more = sorted(most - own), sorted(own - most)
    words = [f"lacks {', '.join(map(repr, lacking))}"] if lacking else []
    words += [f"has {', '.join(map(repr, more))} besides"] if more else []
    return " and ".join(words)
