"""The results of a job: the rows that clients keep, and the models that they predict with."""

from torch import Tensor

from partwise.engines.store import Key
from partwise.network.view import Tensors
from partwise.rounds.messages import Request
from partwise.rounds.plan import Plan
from partwise.rounds.state import Outcome


def kept_rows(plan: Plan, outcome: Outcome, persists: bool) -> dict[Key, Tensor]:
    """Return what clients keep of a round, (clients, ...) by its key in the store.

    `persists`: the optimiser's state is kept too.
    """
    kept: dict[Key, Tensor] = {("own", name): outcome.trained.own[name] for name in plan.own}
    kept |= {("keep", name): value for name, value in outcome.keep.items()}
    states = outcome.trained.optimizer_state.items() if persists else ()
    return kept | {("optimizer_state", name, key): value for name, state in states for key, value in state.items()}


def model_of(request: Request, client: int, outcome: Outcome, row: int) -> Tensors:
    """Return a client's tensors for prediction: its network, `got.` what it only received, `keep.` its memory."""
    tensors = {name: value[row] for name, value in outcome.trained.own.items()}
    tensors |= {name: request.copies[name].of([client])[0] for name in request.plan.share if name not in tensors}
    guides = [name for name, share in request.plan.share.items() if share.sent and not share.adopt]
    tensors |= {f"got.{name}": request.copies[name].of([client])[0] for name in guides}
    tensors |= {f"keep.{name}": value[row] for name, value in outcome.keep.items()}
    return {name: value.detach().cpu().clone() for name, value in tensors.items()}
