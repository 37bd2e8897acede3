"""Types that engines hand to a client's functions and get back: trees of tensors, which vmap and tracing take apart.

Shapes are those of one client. An engine that runs clients side by side has one dimension more in front, the clients',
in `ClientState`, `BatchRows` and `Outcome`; `Common` is the same for all of them.
"""

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from partwise.network.view import Extras, Tensors
from partwise.trees import Samples

OptimizerState: TypeAlias = dict[str, Tensors]  # by tensor: what its optimiser remembers, by name


class Trained(NamedTuple):
    """What a step changes."""

    own: Tensors  # the tensors that are not frozen, by full name
    optimizer_state: OptimizerState
    loss: Tensor  # () summed over the steps


class ClientState(NamedTuple):
    """What belongs to one client in one job."""

    trained: Trained
    frozen: Tensors  # empty, but where several runs share a block: else they are in `Common.round.frozen`
    got: Tensors  # what it received beside its own tensors, by full name, where clients received different things
    extras: Extras  # the extras that are its own
    keep: Tensors  # what it remembers, by the method's names
    counts: Tensor  # (bins,) training samples of each class, or of each bin of other labels
    samples: Tensor  # () training samples
    steps: Tensor  # () of this job
    key: Tensor  # () names the job, for what its method draws outside of steps

    def after(self, trained: Trained) -> "ClientState":
        """Return the client after a step."""
        return self._replace(trained=trained)

    def with_new_optimizer(self) -> "ClientState":
        """Return the client with an optimiser that remembers nothing."""
        return self.after(
            self.trained._replace(optimizer_state=tree_map(torch.zeros_like, self.trained.optimizer_state))
        )

    def overwritten(self, changes: Tensors) -> "ClientState":
        """Return the client with other values of some of its own tensors."""
        return self.after(self.trained._replace(own={**self.trained.own, **changes}))


class RoundInputs(NamedTuple):
    """What all clients have in common and every round renews."""

    frozen: Tensors
    got: Tensors  # what every client received, beside its own tensors
    extras: Extras  # that every client received
    rate: Tensor  # () the schedule's factor on every learning rate


class Common(NamedTuple):
    """What all clients have in common."""

    x: Samples  # (samples, ...) the data set, as it is stored
    y: Tensor  # (samples, ...) their labels
    round: RoundInputs


class BatchRows(NamedTuple):
    """The rows of the data set that make the mini-batches of one step."""

    samples: Tensor  # (batches, rows) their numbers in the data set; padding repeats one
    real: Tensor  # () how many rows are real, the first ones
    key: Tensor  # () names the step, for dropout and what a method draws
    change: Tensor  # (batches, rows, 5) how each image is augmented; (batches, rows, 0): not at all


class Outcome(NamedTuple):
    """What clients hold after a job, a row for each."""

    trained: Trained
    keep: Tensors
    extras: Extras  # what `finish` and `report` return
    logits: list[Tensor]  # of each client (samples, ...), what its model gives, where it predicts
