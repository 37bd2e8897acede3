"""Lay out the tensors of clients at the start of a job: a row for each client, and the tensors they share."""

from collections.abc import Sequence

import torch
from torch.utils._pytree import tree_map

from partwise.data.source import Federation
from partwise.devices import on_device
from partwise.engines.norm_average import NormAverage
from partwise.engines.store import Store
from partwise.method import FROZEN
from partwise.network.view import Extras, PerClient, Tensors
from partwise.rounds import optim
from partwise.rounds.batches import Drawing, JobBatches
from partwise.rounds.client import ClientProgram
from partwise.rounds.messages import ADAPTING, Request
from partwise.rounds.state import ClientState, Common, OptimizerState, RoundInputs, Trained


class ClientLayout:
    """Lays out clients on a device: the data set, what they keep, what they received."""

    def __init__(
        self, program: ClientProgram, federation: Federation, store: Store, drawing: Drawing, device: torch.device
    ):
        self.program, self.store, self.drawing, self.device = program, store, drawing, device
        self.x = tree_map(lambda tensor: tensor.to(device), federation.source.x)
        self.y = federation.source.y.to(device)
        self.counts = federation.class_counts().to(program.dtype)  # on the host: a request needs those of its clients
        self.norm_average = NormAverage(program.parts, store, drawing.train)

    def __call__(
        self, request: Request, clients: list[int], batches: Sequence[JobBatches]
    ) -> tuple[ClientState, Common]:
        """Return what some clients hold after download (a row for each), and what they have in common."""
        own: Tensors = self.held(request, clients)
        frozen: Tensors = {}
        got: Tensors = {}
        got_in_common: Tensors = {}
        for name, share in request.plan.share.items():
            if share == FROZEN and request.copies[name].row is None and request.job not in ADAPTING:
                frozen[name] = request.copies[name].values[0]
            elif share.adopt:
                own[name] = request.copies[name].of(clients)
            if share.sent and request.copies[name].row is None:
                got_in_common[name] = request.copies[name].values[0]
            elif share.sent:
                got[name] = request.copies[name].of(clients)
        extras: Extras = {}
        extras_in_common: Extras = {}
        for name, value in request.extras.items():
            if isinstance(value, PerClient):
                extras[name] = value.of(request.clients, clients, self.device)
            else:
                extras_in_common[name] = tree_map(lambda tensor: on_device(tensor, self.device), value)
        dtype, counts = self.program.dtype, on_device(self.counts[clients], self.device)
        client = ClientState(
            Trained(
                own,
                self.optimizer_state(request, clients, own),
                torch.zeros(len(clients), device=self.device, dtype=dtype),
            ),
            {},
            got,
            extras,
            self.store.remembered(clients),
            counts,
            counts.sum(1),
            on_device(torch.tensor([each.steps for each in batches], dtype=dtype), self.device),
            on_device(torch.tensor([self.drawing.key(request, client) for client in clients]), self.device),
        )
        rate = torch.full((), request.rate, device=self.device, dtype=dtype)
        return client, Common(self.x, self.y, RoundInputs(frozen, got_in_common, extras_in_common, rate))

    def held(self, request: Request, clients: list[int]) -> Tensors:
        """Return the own tensors of some clients. One that never trained is tested with the others' running values."""
        own = self.store.stacked(clients, request.plan.own)
        newcomers = torch.from_numpy(~self.store.stepped(clients))
        if request.job in ("predict", *ADAPTING) and newcomers.any():
            newcomers = on_device(newcomers, self.device)
            for name, value in self.norm_average(request.plan).items():
                own[name][newcomers] = value
        return own

    def optimizer_state(self, request: Request, clients: list[int], own: Tensors) -> OptimizerState:
        """Return what the optimiser remembers as a round begins, a row for each client: nothing, unless it persists."""
        method, result = self.program.method, OptimizerState()
        for move in (move for phase in self.drawing.phases(request) for move in phase.moves if not move.update):
            for name in move.names:
                state = optim.initial_state(method.optimizer, move.momentum[name], own[name])
                if state:
                    result[name] = state
        if method.persist_optimizer_state and request.job == "train":
            result = self.store.optimizer_state(clients, result)
        return result
