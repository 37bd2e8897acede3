"""Filters on the upload, between a client's training and the server's checks.

They are independent of the method. Parts are filtered as the difference from the values that the client received, which
is what clipping bounds; floating extras as they are; counts and rows of classes by their types. The L2 norm is that of
one vector with everything that a client sends in an answer.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from partwise.devices import on_device
from partwise.network.view import ClassCounts, ClassRows, Extras, Tensors
from partwise.privacy.histograms import INTEGER, HistogramForm
from partwise.privacy.vectors import add_noise, clip_vector, largest_entries, quantised
from partwise.streams import stream

TensorKey = tuple[str, ...]
Random = Callable[..., np.random.Generator]  # (purpose, number) -> the generator of one client's answer


class Residuals(Protocol):
    """A store of what clients have not sent yet."""

    def read(self, key: TensorKey, clients: Sequence[int], start: Tensor) -> Tensor:
        """Return (clients, ...) a stored tensor, `start` where none is stored."""

    def save(self, clients: Sequence[int], brought: dict[TensorKey, Tensor], steps: Sequence[int]) -> None:
        """Store a row of every tensor for each client."""


@dataclass(frozen=True)
class Upload:
    """The uploads of some clients, a row for each, and their bytes."""

    parts: Tensors
    extras: Extras
    sent: Counter[str]  # bytes by part and by extra


@dataclass(frozen=True)
class Piece:
    """A tensor of numbers that some clients upload."""

    name: str  # of its part or its extra
    values: Tensor  # (clients, ...) float64
    size: int  # bytes of a number as it is sent
    rows: Tensor | None = None  # (clients, classes) the rows that are sent; None: all

    def vector(self, client: int) -> Tensor:
        """Return the numbers that one client sends of it."""
        values = self.values[client]
        return (values if self.rows is None else values[self.rows[client]]).flatten()

    def put(self, client: int, vector: Tensor) -> None:
        """Replace the numbers that one client sends of it."""
        values = self.values[client]
        if self.rows is None:
            values.copy_(vector.view(values.shape))
        else:
            values[self.rows[client]] = vector.view(-1, *values.shape[1:])


@dataclass(frozen=True)
class Filters:
    """The filters of an upload, in order: counts of classes, clipping, noise, sparsification, quantisation."""

    seed: int
    samples: Tensor  # (clients, classes) training samples of each class
    residuals: Residuals
    clip: float | None = None  # L2 norm
    noise: float = 0.0  # standard deviation, in clips
    bits: int | None = None
    top: float = 1.0  # share of numbers of parts to send, the largest; the rest is added to the next difference
    histograms: HistogramForm = field(default_factory=HistogramForm)

    @property
    def of_vectors(self) -> bool:
        """Return whether numbers other than counts are filtered."""
        return self.clip is not None or self.bits is not None or self.top < 1

    def __call__(
        self, parts: Tensors, extras: Extras, received: Tensors, clients: Sequence[int], *when: str | int
    ) -> Upload:
        """Return the filtered upload; `received` are the values before training, `when` names the random stream."""
        streams = [partial(stream, self.seed, "privacy", client, *when) for client in clients]
        leaves, structure = tree_flatten(extras, is_leaf=class_indexed)
        owners = [name for name, extra in extras.items() for _ in tree_flatten(extra, is_leaf=class_indexed)[0]]
        leaves = [self.filter_counts(leaf, clients, streams, number) for number, leaf in enumerate(leaves)]
        changes = {n: value.double() - received[n] for n, value in parts.items() if value.is_floating_point()}
        if self.top < 1:
            changes = {n: self.residuals.read(("residual", n), clients, zeros(c)) + c for n, c in changes.items()}
        of_parts = [Piece(n.split(".")[0], change, parts[n].element_size()) for n, change in changes.items()]
        of_extras = [piece_of(owner, leaf) for owner, leaf in zip(owners, leaves, strict=True)]
        pieces = [*of_parts, *filter(None, of_extras)]
        sent = self.other_bytes({n: v for n, v in parts.items() if n not in changes}, zip(owners, leaves, strict=True))
        unsent = {name: zeros(change) for name, change in changes.items()}
        for row, random in enumerate(streams if pieces else ()):
            meant, left, kept = self.message([piece.vector(row) for piece in pieces], len(of_parts), random)
            for place, piece in enumerate(pieces):
                sent[piece.name] += self.vector_bytes(int(kept[place].sum()), piece.size, place < len(of_parts))
                piece.put(row, left[place])
            for name, before, after in zip(changes, meant, left, strict=False):
                unsent[name][row] = (before - after).view(unsent[name][row].shape)
        if not self.of_vectors:  # unchanged, to the bit
            return Upload(parts, tree_unflatten(leaves, structure), sent)
        if self.top < 1 and unsent:
            self.keep(unsent, clients)
        new = {name: (received[name] + change).to(parts[name].dtype) for name, change in changes.items()}
        leaves = [rebuilt(leaf, piece) for leaf, piece in zip(leaves, of_extras, strict=True)]
        return Upload({**parts, **new}, tree_unflatten(leaves, structure), sent)

    def message(
        self, vectors: list[Tensor], parts: int, random: Random
    ) -> tuple[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]]:
        """Return one client's vectors before and after sparsification and quantisation, and masks of the numbers sent.

        The first `parts` vectors are those of parts: there, the difference of the two waits for the next round.
        """
        sizes = list(map(len, vectors))
        meant = torch.cat(vectors)
        if self.clip is not None:
            if self.noise and not bool(meant.isfinite().all()):
                meant = torch.zeros_like(meant)  # only noise is sent: divergence would reveal something of the data
            meant = clip_vector(meant, self.clip)
            if self.noise:
                meant = add_noise(meant, self.noise * self.clip, random("noise"))
        kept = torch.ones_like(meant, dtype=torch.bool)
        if self.top < 1:
            kept[: sum(sizes[:parts])] = largest_entries(meant[: sum(sizes[:parts])], self.top)
        left = torch.where(kept, meant, 0.0)
        if self.bits is not None:
            for number, (piece, where) in enumerate(zip(left.split(sizes), kept.split(sizes), strict=True)):
                piece[where] = quantised(piece[where], self.bits, random("bits", number))
        return meant.split(sizes), left.split(sizes), kept.split(sizes)

    def filter_counts(self, leaf: Any, clients: Sequence[int], streams: Sequence[Random], number: int) -> Any:
        """Return an extra with filtered counts of classes; `number` is its place among the extras."""
        if not class_indexed(leaf) or self.histograms.exact:
            return leaf
        held = on_device(self.samples[torch.as_tensor(clients)], leaf.counts.device)
        rows = [
            self.histograms.reported(counts, own, random("counts", number))
            for counts, own, random in zip(leaf.counts, held, streams, strict=True)
        ]
        counts = torch.stack(rows)
        if isinstance(leaf, ClassCounts):
            return ClassCounts(counts)
        same = (counts == leaf.counts)[..., None]
        return ClassRows(torch.where(same, leaf.sums, leaf.mean * counts[..., None]), counts)

    def keep(self, unsent: Tensors, clients: Sequence[int]) -> None:
        """Store what clients did not send; those that diverged keep what they had, as their updates are refused."""
        finite = torch.stack([value.flatten(1).isfinite().all(1) for value in unsent.values()]).all(0)
        rows = finite.nonzero()[:, 0]
        if len(rows):
            brought: dict[TensorKey, Tensor] = {
                ("residual", name): value.index_select(0, rows) for name, value in unsent.items()
            }
            self.residuals.save([clients[row] for row in rows.tolist()], brought, [0] * len(rows))

    # ---- bytes

    def vector_bytes(self, numbers: int, size: int, of_part: bool) -> int:
        """Return the bytes of a vector: with few bits plus its range, with sparsification plus positions."""
        ends = 2 * size if numbers else 0
        each = numbers * size if self.bits is None else math.ceil(numbers * self.bits / 8) + ends
        return each + numbers * INTEGER if of_part and self.top < 1 else each

    def other_bytes(self, parts: Tensors, extras: Iterable[tuple[str, Any]]) -> Counter[str]:
        """Return the bytes of everything else: whole numbers, the labels of rows of classes, and counts."""
        sent = Counter[str]()
        for name, value in parts.items():
            sent[name.split(".")[0]] += value.nbytes
        for name, leaf in extras:
            if isinstance(leaf, ClassCounts):
                sent[name] += len(leaf.counts) * self.histograms.wire_bytes(leaf.counts.shape[1])
            elif isinstance(leaf, ClassRows):
                rows = [number for number in torch.count_nonzero(leaf.counts, dim=1).tolist() if number]
                sent[name] += sum(rows) * INTEGER  # labels of the rows
                if self.histograms.kind != "presence":
                    sent[name] += sum(map(self.histograms.wire_bytes, rows))
            elif not leaf.is_floating_point():
                sent[name] += leaf.numel() * INTEGER
        return sent


def class_indexed(leaf: Any) -> bool:
    """Return whether an extra has an entry for each class."""
    return isinstance(leaf, ClassCounts | ClassRows)


def has_numbers(leaf: Any) -> bool:
    """Return whether clipping and noise act on an extra: not on counts or whole numbers."""
    return isinstance(leaf, ClassRows) or (isinstance(leaf, Tensor) and leaf.is_floating_point())


def piece_of(name: str, leaf: Any) -> Piece | None:
    """Return the numbers of an extra: of a tensor, or the means of rows of classes; None without numbers."""
    if not has_numbers(leaf):
        return None
    if isinstance(leaf, ClassRows):
        return Piece(name, leaf.mean.double(), leaf.sums.element_size(), leaf.counts > 0)
    return Piece(name, leaf.double().clone(), leaf.element_size())  # the leaf may be float64 itself


def rebuilt(leaf: Any, piece: Piece | None) -> Any:
    """Return an extra with the numbers that are sent of it."""
    if piece is None:
        return leaf
    if isinstance(leaf, ClassRows):
        return ClassRows((piece.values * leaf.counts[..., None]).to(leaf.sums.dtype), leaf.counts)
    return piece.values.to(leaf.dtype)


def zeros(values: Tensor) -> Tensor:
    """Return zeros of the same shape."""
    return torch.zeros_like(values)
