"""Robust means, which replace the weighted mean of uploads so that a few wrong ones cannot dominate it.

All work on the rows of a mixing matrix that is a mean (over all, or over a group): its support says who is averaged. A
mix for each client alone is not a mean over several clients, and is refused.

References:
    Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent.
    NeurIPS 2017 (Krum, and Multi-Krum, which averages as many as are safe).
    Yin, Chen, Ramchandran, Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates.
    ICML 2018 (coordinate-wise median and trimmed mean).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from partwise.devices import on_device
from partwise.errors import ConfigError
from partwise.network.view import Tensors
from partwise.rounds.mixing import Copies, mixed
from partwise.rounds.plan import Plan

ROBUST_FORMS = "median, trimmed[:SHARE], krum[:ATTACKERS] or clip[:NORM]"
ATTACKERS = 0.2  # of the uploads, where nothing is said
SORT_BLOCK = 2**25  # numbers that are sorted at once

RobustKind = Literal["median", "trimmed", "krum", "clip"]


@dataclass(frozen=True)
class RobustMean:
    """A robust mean, and its number: the share trimmed at each end, the attackers, or the largest norm."""

    kind: RobustKind
    number: float | None = None  # None: a fifth (trimmed, krum), or the median norm (clip)

    def __str__(self) -> str:
        return self.kind if self.number is None else f"{self.kind}:{self.number:g}"

    def mixed(self, matrix: Tensor, uploads: Tensors, before: Tensors) -> Tensors:
        """Return (copies, ...) of every tensor: the robust mean over each row's support; copies without one stay.

        The tensors are judged together: `krum` chooses whole uploads, `clip` scales them as a whole.
        """
        result = {name: value.clone() for name, value in before.items()}
        for row, weights in enumerate(matrix):
            support = torch.nonzero(weights)[:, 0]
            if len(support):
                chosen = {name: value[on_device(support, value.device)] for name, value in uploads.items()}
                current = {name: value[row] for name, value in before.items()}
                for name, value in self.of(chosen, current, weights[support]).items():
                    result[name][row] = value
        return result

    def of(self, uploads: Tensors, current: Tensors, weights: Tensor) -> Tensors:
        """Return the robust mean of uploads, (participants, ...) each; `weights` are the plain mean's, on the host."""
        number = len(weights)
        if self.kind in ("median", "trimmed"):
            cut = (number - 1) // 2 if self.kind == "median" else self.trimmed(number)
            return {name: middle(value, cut) for name, value in uploads.items()}
        if self.kind == "krum" and number > 2:  # of two, nobody can say which is wrong
            best = krum(square_distances(uploads, current), self.attackers(number))
            return {name: middle(value[on_device(best, value.device)], 0) for name, value in uploads.items()}
        if self.kind == "clip":
            uploads = clip_uploads(uploads, current, self.number)
        return {name: mixed(weights[None], value, current[name][None])[0] for name, value in uploads.items()}

    def trimmed(self, number: int) -> int:
        """Return the number of uploads to leave out at each end: the share, rounded up, but leave one or two."""
        share = ATTACKERS if self.number is None else self.number
        return min((number - 1) // 2, math.ceil(round(share * number, 9)))

    def attackers(self, number: int) -> int:
        """Return the number of attackers to assume: as set, or a fifth, but at most what krum withstands."""
        said = math.ceil(round(ATTACKERS * number, 9)) if self.number is None else int(self.number)
        return min(said, (number - 3) // 2)


def parse_robust(text: str) -> RobustMean:
    """Read a robust mean, as in `trimmed:0.1`; refuse other text with the allowed forms."""
    kind, colon, written = text.partition(":")
    try:
        number = float(written) if colon else None
    except ValueError:
        number = math.nan
    fine = {
        "median": number is None,
        "trimmed": number is None or 0 < number < 0.5,
        "krum": number is None or (number >= 0 and number.is_integer()),
        "clip": number is None or 0 < number < math.inf,
    }
    if not fine.get(kind):
        limits = "SHARE between 0 and 0.5, ATTACKERS a whole number, NORM above 0"
        raise ConfigError(f"robust = '{text}' is not allowed: it must be {ROBUST_FORMS} ({limits})")
    return RobustMean(kind, number)  # type: ignore[arg-type]  # one of the keys


def check_mean(robust: RobustMean, whose: str, name: str, matrix: Tensor) -> None:
    """Refuse a method's own matrix that is no mean: an upload counts in several copies, in each otherwise, or below 0.

    Rows that are equal are one mean, which several copies get.
    """
    rows = matrix[(matrix != 0).any(1)].unique(dim=0)
    if (rows < 0).any() or ((rows != 0).sum(0) > 1).any():
        raise ConfigError(
            f"{whose} mixes '{name}' differently for each copy, but robust = {robust} replaces means only"
        )


def robustly_mixed(
    robust: RobustMean,
    whose: str,
    matrices: Mapping[str, Tensor],
    uploads: Tensors,
    copies: Mapping[str, Copies],
) -> Tensors:
    """Return (copies, ...) of every tensor with a matrix; tensors with equal matrices are judged together."""
    together: dict[tuple[torch.Size, bytes], list[str]] = {}
    for name, matrix in matrices.items():
        check_mean(robust, whose, name, matrix)
        together.setdefault((matrix.shape, matrix.numpy().tobytes()), []).append(name)
    result: Tensors = {}
    for names in together.values():
        before = {name: copies[name].values for name in names}
        result |= robust.mixed(matrices[names[0]], {name: uploads[name] for name in names}, before)
    return result


def check_plans(robust: RobustMean, plans: Sequence[Plan], participants: int) -> None:
    """Refuse, before the first round, a mix for each client alone, and more attackers than krum can withstand."""
    needed = 2 * int(robust.number or 0) + 3
    if robust.kind == "krum" and robust.number and participants < needed:
        raise ConfigError(f"robust = {robust} needs {needed} participants in a round, but there are {participants}")
    for name, share in ((name, share) for plan in plans for name, share in plan.share.items()):
        if share.copy == "mix":
            raise ConfigError(f"robust = {robust} replaces means only, but '{name}' is {share}: a mix for each client")


def middle(uploads: Tensor, cut: int) -> Tensor:
    """Return the mean of each coordinate without its `cut` smallest and `cut` largest values."""
    rows = uploads.reshape(len(uploads), -1)
    pieces = []
    for piece in rows.split(max(1, SORT_BLOCK // len(rows)), dim=1):
        left = piece.sort(dim=0).values[cut : len(rows) - cut]
        mean = left[0] + (left - left[0]).mean(0)
        pieces.append(torch.minimum(torch.maximum(mean, left[0]), left[-1]))  # whatever rounding made of it
    return torch.cat(pieces).view(uploads.shape[1:]) if pieces else uploads[0]


def square_distances(uploads: Tensors, current: Tensors) -> Tensor:
    """Return (participants, participants) on the host: squared distances between uploads over all tensors.

    By products of the differences from the current copy, in float64: those are as small as the distances themselves.
    """
    total: Tensor | None = None
    for name, value in uploads.items():
        away = (value.double() - current[name].double())[..., None].flatten(1)
        products = away @ away.T
        products = (products + products.T) / 2
        total = products if total is None else total + products
    assert total is not None
    squares = total.diagonal()
    distances = (squares[:, None] + squares - 2 * total).nan_to_num(nan=torch.inf).clamp(min=0)
    return distances.cpu()


def krum(distances: Tensor, attackers: int) -> Tensor:
    """Return the n - 2f - 2 uploads that are nearest to their n - f - 2 nearest, of n with f attackers.

    That is Multi-Krum with as many as its proof allows, and Krum where it is one. Equals are all among them: of three
    uploads, the two that are nearest to each other.
    """
    number = len(distances)
    others = distances.masked_fill(torch.eye(number, dtype=torch.bool), torch.inf).sort(dim=1).values
    scores = others[:, : number - attackers - 2].sum(1)
    last = scores.sort().values[max(1, number - 2 * attackers - 2) - 1]
    return torch.nonzero(scores <= last)[:, 0]


def clip_uploads(uploads: Tensors, current: Tensors, most: float | None) -> Tensors:
    """Clip uploads' differences from the current copy to a norm; None: to the median of all."""
    norms = update_norms(uploads, current)
    limit = float(middle(norms[:, None], (len(norms) - 1) // 2)) if most is None else most
    return scale_updates(uploads, current, torch.where(norms > limit, limit / norms, 1.0))


def update_norms(uploads: Tensors, current: Tensors) -> Tensor:
    """Return (participants,) float64 on the host: the norm of each upload's difference from a copy.

    `current` has a row for each participant, or is one copy for all. In float32 it is inf above 1e19, which is far
    enough: an upload that far away counts nothing once it is clipped.
    """
    norms = [
        torch.linalg.vector_norm((value - current[name])[..., None].flatten(1), dim=1).double()
        for name, value in uploads.items()
    ]
    return torch.linalg.vector_norm(torch.stack(norms), dim=0).cpu()


def scale_updates(uploads: Tensors, current: Tensors, factors: Tensor) -> Tensors:
    """Multiply uploads' differences from a copy; with the factor 1 an upload stays the same, bit for bit."""
    result = {}
    for name, value in uploads.items():
        factor = on_device(factors, value.device).view(-1, *[1] * (value.dim() - 1))
        base = current[name].double()
        shorter = (base + factor * (value.double() - base)).to(value.dtype)
        result[name] = torch.where(factor < 1, shorter, value)
    return result
