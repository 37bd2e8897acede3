"""One client after another: the reference that every other engine must equal."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from partwise.data.source import Federation
from partwise.engines.engine import Engine
from partwise.engines.store import Store
from partwise.rounds.batches import JobBatches
from partwise.rounds.client import Caller, ClientProgram, OneClient
from partwise.rounds.messages import Request
from partwise.trees import sample_shape


class Loop(Engine):
    """Clients one at a time, their mini-batches as they are, without padding."""

    def __init__(
        self,
        program: ClientProgram,
        federation: Federation,
        store: Store,
        seed: int,
        device: torch.device,
        *arguments: Any,
        caller: Caller | None = None,
    ):
        shape = sample_shape(federation.source.x)
        coloured = len(shape) == 3 and not isinstance(shape, dict) and shape[0] > 1
        pixel_by_pixel = coloured and device.type == "cpu" and program.dtype is torch.float32
        super().__init__(replace(program, channels_last=pixel_by_pixel), federation, store, seed, device, *arguments)
        self.caller = OneClient() if caller is None else caller

    def blocks(self, request: Request, batches: dict[int, JobBatches]) -> Iterable[list[int]]:
        """Return every client as a group of its own."""
        return ([client] for client in request.clients)
