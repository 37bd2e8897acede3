"""What every data set must fulfil, built-in or a user's own."""

from collections import Counter

import torch

from partwise.data.source import Source
from partwise.errors import DataError


def check(source: Source, allow_nonfinite: bool = False) -> Source:
    """The source itself, or a refusal that says with counts what does not fit together in it."""
    x, y, train, where = source.x, source.y, source.train, f"data set '{source.name}'"
    if (x.dtype, x.ndim) != (torch.uint8, 4) and not (x.dtype == torch.float32 and x.ndim > 1):
        raise DataError(f"{where}: x must be uint8 images or float32 rows, got {x.dtype} of shape {tuple(x.shape)}")
    if (y.dtype, y.shape) != (torch.int64, x.shape[:1]):
        raise DataError(f"{where}: y must be {len(x):,} int64 labels, got {y.dtype} of shape {tuple(y.shape)}")
    if not {len(source.centre), len(source.scale)} <= {1, x.shape[1]} or 0 in source.scale:
        raise DataError(
            f"{where}: centre and scale must be 1 or {x.shape[1]} numbers, scale without 0, "
            f"got {source.centre} and {source.scale}"
        )
    if not 0 < train <= len(y):
        raise DataError(f"{where}: a set without samples: {train:,} for training, {len(y) - train:,} for testing")
    outside = Counter(y[(y < 0) | (y >= source.classes)].tolist())
    if outside:
        counts = ", ".join(f"{label} ({count:,} samples)" for label, count in outside.most_common(8))
        raise DataError(f"{where}: {outside.total():,} labels are not in 0..{source.classes - 1}: {counts}")
    trained, tested = set(y[:train].tolist()), set(y[train:].tolist())
    if tested and trained != tested:
        alone = ", ".join(str(label) for label in sorted(trained ^ tested)[:8])
        raise DataError(
            f"{where}: {len(trained)} classes in the training set, {len(tested)} in the test set; in one alone: {alone}"
        )
    return source
