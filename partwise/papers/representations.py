"""Metrics of representations: similarity of clients (CKA), separation of classes (R^2), and places on a plane (t-SNE).

Everything is computed in float64. A number that does not exist is None (in a matrix NaN), never 0: the CKA of features
that do not vary, the separation of a single class, and whatever would follow from features that are not finite.
"""

import io
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from partwise.errors import DataError, needed
from partwise.writing import write

CHUNK_ROWS = 16  # rows of the covariances that are in memory at a time: a thousand whole ones of 512 x 512 take 2 GB
SMALLEST_DISTANCE = 1e-12  # a distance below it is none
PERPLEXITY = 30.0  # t-SNE's usual number of neighbours


def cka(one: Tensor, other: Tensor) -> float | None:
    """Return the linear CKA between the features (samples, size) of two clients, who may differ in samples: 0 .. 1."""
    return existing_number(cka_matrix([one, other])[0, 1])


def cka_matrix(features: Sequence[Tensor]) -> Tensor:
    """Return (clients, clients) linear CKA: <vec S_i, vec S_j> / (|S_i| |S_j|), S_i a covariance (DualFed Eq. 1).

    NaN in the row and column of a client whose features do not vary: there is no covariance to compare.
    """
    matrices = [each.detach().cpu().double().flatten(1) for each in features]
    sizes = {each.shape[1] for each in matrices}
    if len(sizes) > 1:
        raise DataError(f"features of one size are needed to compare clients, not {', '.join(map(str, sorted(sizes)))}")
    # The first row goes before the mean: features that do not vary are exactly zero then, not zero but for rounding.
    matrices = [each - each[:1] for each in matrices]
    matrices = [each - each.mean(0) for each in matrices]
    matrices = [each / torch.linalg.vector_norm(each) for each in matrices]  # CKA asks for no scale
    products = torch.zeros(len(matrices), len(matrices), dtype=torch.float64)
    for first in range(0, max(sizes, default=0), CHUNK_ROWS):
        rows = torch.stack([(each[:, first : first + CHUNK_ROWS].T @ each).flatten() for each in matrices])
        products += rows @ rows.T
    norms = products.diagonal().sqrt()
    return (products / (norms[:, None] * norms)).clamp(0, 1)


def mean_cka(matrix: Tensor) -> float | None:
    """Return the mean over pairs i < j of the clients that have one."""
    upper = torch.ones_like(matrix).triu(1) > 0
    return existing_number(matrix[upper].nanmean())


def class_separation(features: Tensor, labels: Tensor) -> float | None:
    """Return R^2 = 1 - d_within / d_total, of mean cosine distances within classes and over all. Classes weigh equally.

    With m_c the mean of class c's vectors of length 1, d_within = 1 - mean |m_c|^2 and d_total = 1 - |mean m_c|^2: the
    means over all pairs of samples, exactly. A vector of zeros stays one, at distance 1 from everything.
    """
    vectors = features.detach().cpu().double().flatten(1)
    lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    vectors = vectors / torch.where(lengths == 0, 1.0, lengths)
    present, place, counts = labels.cpu().unique(return_inverse=True, return_counts=True)
    means = torch.zeros(len(present), vectors.shape[1], dtype=torch.float64).index_add_(0, place, vectors)
    means /= counts[:, None]
    within, total = 1 - means.square().sum(1).mean(), 1 - means.mean(0).square().sum()
    if len(present) < 2 or total < SMALLEST_DISTANCE:
        return None
    return existing_number(1 - within / total)


def tsne_rows(features: Tensor, labels: Tensor, seed: int) -> NDArray[np.float64]:
    """Return (samples, 3) x, y and label: places on a plane by scikit-learn's t-SNE, neighbours near each other.

    Of fewer than three samples, or where all are equal, nothing is near or far: they lie at 0. A sample whose features
    are not finite has no place: NaN.
    """
    vectors = features.detach().cpu().double().flatten(1).numpy()
    rows = np.full((len(vectors), 3), np.nan)
    rows[:, 2] = labels.cpu().numpy()
    finite = np.isfinite(vectors).all(axis=1)
    rows[finite, :2] = 0.0
    known = vectors[finite] - vectors[finite][:1]
    spread = np.abs(known).max(initial=0.0)
    if len(known) >= 3 and spread > 0:
        known = np.pad(known / spread, ((0, 0), (0, max(0, 2 - known.shape[1]))))  # it starts from two components
        plane = needed("sklearn.manifold", "data").TSNE(
            perplexity=min(PERPLEXITY, (len(known) - 1) / 3), random_state=seed
        )
        rows[finite, :2] = plane.fit_transform(known)
    return rows


def write_tsne(rows: NDArray[np.float64], path: str | Path) -> None:
    """Write the rows of `tsne_rows` as a CSV file: x, y, label."""
    text = io.StringIO()
    np.savetxt(text, rows, ("%.6g", "%.6g", "%d"), ",", header="x,y,label", comments="")
    write(path, text.getvalue().encode())


def existing_number(value: Tensor) -> float | None:
    """Return a number that exists, or None."""
    return None if math.isnan(value) else float(value)
