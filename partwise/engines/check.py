"""Check an engine (`--check`): retrain one client a round alone in float64, and once more from a perturbed model.

The first shows whether the engine equals the loop. The second shows how much rounding matters: where a perturbation
grows tenfold in every round, two machines will not agree on the run's numbers.
"""

import math
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from partwise.engines.purity_probes import held_on_host, on_host
from partwise.errors import ConfigError, located
from partwise.network.keyed import Draws
from partwise.rounds.client import OneClient, client_job
from partwise.rounds.messages import Request, Updates
from partwise.rounds.state import Common

if TYPE_CHECKING:
    from partwise.engines.engine import Engine

EXACT = 1e-9  # of a client's parameters: a difference that no precision explains must be larger
ROUNDING_MARGIN = 1e4  # times what one rounding error becomes: an engine rounds at every step
NUDGE = 1e-8  # of every number of a model: far above the rounding of float64, so that its growth can be seen
MANY_ROUNDS = 1000  # rounding errors that show later than this do not matter
FORGOTTEN_GROWTH = 1e-12  # of growth: a method that forgets what it began with
NOTICED = 1e-2  # of a model: a rounding error that has grown so far is seen in a run's results


ClientVectors = dict[str, Tensor]  # parameters, memory and extras


class Check:
    """Compares an engine with the loop, a client a round."""

    def __init__(self, engine: "Engine"):
        self.engine = engine
        self.rounding = torch.finfo(engine.program.compute or engine.program.dtype).eps
        self.clients, self.difference = 0, 0.0  # that were compared; the largest seen
        self.growth: list[float] = []  # of a nudge, in every round

    def expected(self, request: Request) -> tuple[int, ClientVectors, ClientVectors]:
        """Return a client of a training request, its expected result, and its result from a perturbed start."""
        client = request.clients[request.round % len(request.clients)]
        batches = replace(self.engine.drawing.draw(request, client), predict=None)
        layout, common = self.engine.layout(request, [client], [batches])
        begun, inputs = on_host((layout, common.round))
        source, program = self.engine.federation.source, self.engine.purity.inputs.on_host()
        common, plan = Common(on_host(source.x), source.y.cpu(), inputs), self.engine.drawing.job_plan(request)

        def trained(nudge: float) -> ClientVectors:
            draws = Draws(torch.tensor(request.round), torch.float64)
            factors = {name: 1 + nudge * draws.normal(value.shape[1:]) for name, value in begun.trained.own.items()}
            own = {name: value * factors[name] for name, value in begun.trained.own.items()}
            with torch.no_grad(), held_on_host(program.method):
                outcome = client_job(program, begun.overwritten(own), common, plan, [batches], OneClient())
            parameters = {name: outcome.trained.own[name] for name in (*request.plan.up, *request.plan.own)}
            return client_vectors(parameters, outcome.keep, outcome.extras)

        with located(request.when), located(f"client {client}"):
            return client, trained(0), trained(NUDGE)

    def compare(self, request: Request, updates: Updates, expected: tuple[int, ClientVectors, ClientVectors]) -> None:
        """Refuse an engine's result for the client if it differs by more than rounding explains."""
        client, loop, nudged = expected
        row = updates.clients.index(client)
        store = self.engine.store
        own, keep = store.stacked([client], request.plan.own), store.remembered([client])
        uploads = {name: updates.parts[name][row : row + 1] for name in request.plan.up}
        extras = tree_map(lambda rows: rows[row : row + 1], updates.extras)
        made = client_vectors(uploads | own, keep, extras)
        difference = max((relative_distance(made[what], loop[what]) for what in loop), default=0.0)
        growth = max((relative_distance(nudged[what], loop[what]) for what in loop), default=0.0) / NUDGE
        if not (math.isfinite(difference) and math.isfinite(growth)):
            return  # a client that diverged is refused by the server, who says so
        self.clients += 1
        self.difference = max(self.difference, difference)
        self.growth.append(growth)
        if difference > max(EXACT, ROUNDING_MARGIN * self.rounding * max(1, growth)):
            raise ConfigError(
                f"check: client {client} differs from the loop engine after {request.when} by {difference:.1e} of its "
                f"numbers' norm; rounding explains {self.rounding * growth:.1e}. The method or the engine has a bug: "
                "compare with --engine loop"
            )

    def __str__(self) -> str:
        if not self.clients:
            return "check: no client could be compared with the loop engine"
        growth = statistics.geometric_mean(max(each, FORGOTTEN_GROWTH) for each in self.growth)
        rounds = math.log(NOTICED / self.rounding) / math.log(growth) if growth > 1 else math.inf
        pace = "rounding errors do not grow"
        if rounds < MANY_ROUNDS:
            pace = f"at this pace rounding errors show in results after {rounds:.0f} rounds"
        if rounds < len(self.growth):
            pace += ", so other machines will get different numbers; lower lr, or set clip_norm"
        return (
            f"check: {self.clients} clients retrained by the loop engine in float64 differ by at most "
            f"{self.difference:.1e} of their numbers' norm; a perturbation grew {growth:.2g} times per round, "
            f"{max(self.growth):.2g} times at most: {pace}"
        )


def client_vectors(parameters: Any, keep: Any, extras: Any) -> ClientVectors:
    """Return a client's parameters, memory and extras, each as one vector, in float64 on the CPU."""
    every = {"parameters": parameters, "memory": keep, "extras": extras}
    leaves = {
        what: [leaf[0].detach().cpu().double().flatten() for leaf in tree_leaves(tree)] for what, tree in every.items()
    }
    return {what: torch.cat(found) for what, found in leaves.items() if found}


def relative_distance(one: Tensor, two: Tensor) -> float:
    """Return the distance of one tensor from another, relative to the other's norm."""
    return float((one - two).norm() / two.norm().clamp(min=1e-300))
