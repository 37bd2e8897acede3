"""The server's copies of every part, and how uploads are mixed into them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from partwise.devices import on_device
from partwise.errors import ConfigError, short
from partwise.method import Method, Share
from partwise.network.parts import Parts
from partwise.network.view import Tensors
from partwise.rounds import optim

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from partwise.rounds.messages import Updates


@dataclass(frozen=True)
class Copies:
    """The server's copies of a tensor: one for all, one a group, or one a client."""

    values: Tensor  # (copies, ...)
    row: Tensor | None = None  # (clients,) which copy a client has; None: the only one
    optimizer_state: Tensors = field(default_factory=dict)  # what the server's remembers, (copies, ...) each

    def of(self, clients: "Sequence[int] | NDArray | Tensor") -> Tensor:
        """Return (clients, ...) the copy of every client."""
        if self.row is None:
            return self.values.expand(len(clients), *self.values.shape[1:])
        return self.values[on_device(self.row[torch.as_tensor(clients)], self.values.device)]


def spread_to_groups(copies: Copies, row: Tensor | None, clients: int) -> Copies:
    """Return the same values for other groups: a group's copy is the mean of those that its members had.

    `row` is (clients,) the copy that each client has from now on; None: there is one for all.
    """
    if copies.row is None and row is None:
        return copies
    groups = torch.zeros(clients, dtype=torch.long) if row is None else row
    number = int(groups.max()) + 1
    if copies.row is None:  # the mean of equal values, without its rounding
        return Copies(copies.of(range(number)).clone(), row)
    members = [torch.where(groups == group)[0] for group in range(number)]
    return Copies(torch.stack([copies.of(group).mean(0) for group in members]), row)


def checked_groups(groups: Iterable[int], clients: int) -> Tensor:
    """Return (clients,) the group of every client, on the host; refuse groups with gaps or of other clients."""
    result = torch.as_tensor(groups if isinstance(groups, Tensor) else list(groups), dtype=torch.long).cpu()
    if len(result) != clients or result.min() < 0 or not torch.bincount(result).all():
        raise ConfigError(
            f"groups must give each of the {clients} clients a number, from 0 and without gaps, not "
            f"{short(str(result.tolist()))}"
        )
    return result


def redrawn(parts: Parts, copies: Mapping[str, Copies], seed: int, stage: int) -> dict[str, Copies]:
    """Return the server's copies of some tensors drawn anew as a stage begins: one draw for each copy."""
    rows = max((len(old.values) for old in copies.values()), default=0)
    draws = [parts.draw(list(copies), seed, "fresh", stage, "copy", row) for row in range(rows)]
    values = {name: torch.stack([draw[name] for draw in draws[: len(old.values)]]) for name, old in copies.items()}
    return {name: Copies(values[name].to(old.values), old.row) for name, old in copies.items()}


def mixing_matrices(
    share: Mapping[str, Share],
    copies: Mapping[str, Copies],
    updates: "Updates",
    own: Mapping[str, Tensor],
    weights: Tensor,
) -> dict[str, Tensor]:
    """Return the mixing matrix of every tensor that is uploaded and mixed: the method's own, or the weighted mean."""
    result, means = dict(own), dict[Share, Tensor]()
    for name in updates.parts:
        kind = share[name]
        if kind.copy is not None and name not in result:  # without a copy, it was uploaded to be seen
            if kind not in means:
                means[kind] = mean_matrix(copies[name], updates.clients, weights)
            result[name] = means[kind]
    return result


def own_matrices(
    whose: str,
    answer: Tensor | Mapping[str, Tensor] | None,
    parts: Parts,
    share: Mapping[str, Share],
    copies: Mapping[str, Copies],
    updates: "Updates",
) -> dict[str, Tensor]:
    """Return a method's own mixing matrices by tensor, checked; `answer` is what its `mix` returned, by selector.

    The later selector wins. `whose` names the hook in an error.
    """
    given = {} if answer is None else answer if isinstance(answer, Mapping) else {"*": answer}
    matrices: dict[str, Tensor] = {}
    for selector, matrix in given.items():
        names = [name for name in parts.select(selector) if name in updates.parts and share[name].copy]
        if not names:
            uploaded = ", ".join({name.split(".")[0]: None for name in updates.parts})
            raise ConfigError(f"{whose} mixes '{selector}', which is not uploaded; uploaded: {uploaded}")
        matrices |= dict.fromkeys(names, torch.as_tensor(matrix).cpu())
    shapes = {name: (len(copies[name].values), len(updates.clients)) for name in matrices}
    return {name: checked_matrix(whose, name, matrix, shapes[name]) for name, matrix in matrices.items()}


def mean_matrix(copies: Copies, clients: Sequence[int], weights: Tensor) -> Tensor:
    """Return (copies, participants) weights of the mean over all participants, or over those of each group."""
    rows = torch.zeros(len(weights), dtype=torch.long) if copies.row is None else copies.row[clients]
    matrix = torch.zeros(len(copies.values), len(weights), dtype=torch.float64)
    matrix[rows, torch.arange(len(weights))] = weights
    return matrix / matrix.sum(1, keepdim=True).clamp(min=1e-300)


def mixed(matrix: Tensor, uploads: Tensor, before: Tensor) -> Tensor:
    """Return (copies, ...) `matrix @ uploads`; a copy without participants stays unchanged.

    Written as the first upload of a row plus weighted differences from it: the mean of equal models is that model, and
    nothing of clients that have no part in a row reaches it.
    """
    rows = uploads.reshape(len(uploads), -1)
    result = before.reshape(len(before), -1).clone()
    for row, weights in enumerate(matrix):
        support = torch.nonzero(weights)[:, 0]
        if len(support):
            chosen = rows if len(support) == len(rows) else rows[on_device(support, rows.device)]
            first = chosen[:1]
            shares = on_device(weights[support][None].to(rows.dtype), rows.device)
            result[row] = (first + shares @ (chosen - first))[0]
    return result.view_as(before)


def checked_matrix(whose: str, name: str, matrix: Tensor, shape: tuple[int, int]) -> Tensor:
    """Check a method's own mixing matrix, and return it on the host."""
    matrix = matrix.detach().double().cpu()
    sums = matrix.sum(1) if matrix.dim() == 2 else matrix
    if matrix.shape != shape or not (((sums - 1).abs() < 1e-6) | (matrix == 0).all(1)).all():
        raise ConfigError(
            f"{whose} gives '{name}' a mixing matrix {tuple(matrix.shape)} with rows that sum to "
            f"{short(str([round(each, 6) for each in sums.flatten().tolist()]))}; it must be {shape} (copies, "
            "participants), each row summing to 1 or all zeros"
        )
    return matrix


def stepped_towards(method: Method, copies: Copies, mean: Tensor, matrix: Tensor) -> Copies:
    """Return the copies after the server's step towards what was mixed; copies without participants stay."""
    rate, momentum = optim.SERVER_STEP[method.server_optimizer]
    rate = rate if method.server_learning_rate is None else method.server_learning_rate
    momentum = momentum if method.server_momentum is None else method.server_momentum
    if (method.server_optimizer, rate, momentum) == ("sgd", 1, 0):
        return replace(copies, values=mean)
    state = copies.optimizer_state or optim.initial_server_state(method.server_optimizer, momentum, copies.values)
    after = optim.server_step(method.server_optimizer, copies.values, mean, state, rate, momentum)
    taken = on_device(matrix.any(1), mean.device).view(-1, *[1] * (mean.dim() - 1))
    values, state = tree_map(lambda new, old: torch.where(taken, new, old), after, (copies.values, state))
    return Copies(values, copies.row, state)
