"""One client after another: the reference that every other engine must equal."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from partwise.engines.engine import Engine
from partwise.rounds.client import Caller, ClientProgram, JobBatches, JobPlan, OneClient, client_job
from partwise.rounds.messages import Request
from partwise.rounds.state import ClientState, Common, Outcome


class Loop(Engine):
    """Clients one at a time, their mini-batches as they are, without padding."""

    def __init__(self, program: ClientProgram, *arguments: Any, caller: Caller | None = None, **keywords: Any):
        super().__init__(program, *arguments, **keywords)
        coloured = self.x.dim() == 4 and self.x.shape[1] > 1
        pixel_by_pixel = coloured and self.device.type == "cpu" and program.dtype is torch.float32
        self.program = replace(program, channels_last=pixel_by_pixel)
        self.caller = OneClient() if caller is None else caller

    def blocks(self, request: Request, batches: dict[int, JobBatches]) -> Iterable[list[int]]:
        return ([client] for client in request.clients)

    def execute(self, request: Request, client: ClientState, common: Common, batches: list[JobBatches]) -> Outcome:
        [own] = batches
        return one_client(self.program, client, common, self.job_plan(request), own, self.caller)


def one_client(
    program: ClientProgram, client: ClientState, common: Common, plan: JobPlan, batches: JobBatches, caller: Caller
) -> Outcome:
    """Carry out the job of one client; `client` and the outcome have a single row."""
    alone = tree_map(lambda tensor: tensor[0], client)
    outcome = client_job(program, alone, common, plan, [batches], caller)
    return tree_map(lambda tensor: tensor[None], outcome)._replace(logits=outcome.logits)
