"""Updates of several nodes, grouped by form so that they can be stacked."""

from collections import Counter
from collections.abc import Sequence

from torch import Tensor
from torch.utils._pytree import tree_flatten

from partwise.rounds.messages import Updates


def same_form(pieces: Sequence[Updates]) -> tuple[list[Updates], dict[int, str]]:
    """Return those of one form, which most clients have, so that they can be stacked; and why the others cannot be."""
    forms = [form(piece) for piece in pieces]
    counts = Counter[str]()
    for piece, own in zip(pieces, forms, strict=True):
        counts[own] += len(piece.clients) if own else 0
    usual = counts.most_common(1)[0][0] if counts else None
    sound = [piece for piece, own in zip(pieces, forms, strict=True) if own and own == usual]
    others = [piece for piece, own in zip(pieces, forms, strict=True) if not own or own != usual]
    why = "its tensors have other names, shapes or types than those of most clients"
    return sound, {client: why for piece in others for client in piece.clients}


def form(updates: Updates) -> str:
    """Return names, shapes and types of all that a node sent; empty: something of it has not a row for each client."""
    leaves, structure = tree_flatten(updates.extras)
    columns = [updates.samples, updates.steps, updates.loss]
    sent, rows = [*updates.of_clients().values(), *leaves, *columns], len(updates.clients)
    if not all(tensor.dim() and len(tensor) == rows and not tensor.requires_grad for tensor in sent):
        return ""
    parts = tuple(sorted((name, kind(value)) for name, value in updates.parts.items()))
    unsaid = updates.finite is None, updates.withheld is None
    return str((parts, str(structure), [kind(value) for value in (*leaves, *columns)], unsaid))


def kind(tensor: Tensor) -> str:
    """Return the shape and the type of a row."""
    return f"{tuple(tensor.shape[1:])} {tensor.dtype}"
