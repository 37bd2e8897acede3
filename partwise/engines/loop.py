"""One client after another: the reference that every other engine must equal."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from partwise.engines.engine import Engine, JobBatches, cut
from partwise.rounds.client import Client, ClientProgram, Common, JobInputs, Outcome, client_job, step_by_step
from partwise.rounds.messages import Job, Request
from partwise.rounds.plan import ResolvedPhase


class Loop(Engine):
    """Clients one at a time, their mini-batches as they are, without padding."""

    walk: Callable = staticmethod(step_by_step)

    def __init__(self, *arguments: Any, **keywords: Any):
        super().__init__(*arguments, **keywords)
        coloured = self.x.dim() == 4 and self.x.shape[1] > 1
        self.program.channels_last = coloured and self.device.type == "cpu" and self.program.dtype is torch.float32

    def blocks(self, request: Request, tables: dict[int, JobBatches]) -> Iterable[list[int]]:
        return ([client] for client in request.clients)

    def execute(self, request: Request, client: Client, common: Common, tables: list[JobBatches]) -> Outcome:
        alone, (table,) = tree_map(lambda tensor: tensor[0], client), tables
        phases, predict = self.phases(request), request.plan.predict
        return carried_out(self.program, phases, request.job, predict, alone, common, table, self.walk)


def carried_out(
    program: ClientProgram,
    phases: Sequence[ResolvedPhase],
    job: Job,
    predict: Callable,
    client: Client,
    common: Common,
    table: JobBatches,
    walk: Callable = step_by_step,
) -> Outcome:
    """The job of one client; everything in the outcome has a row for it."""
    device = common["x"].device
    work = JobInputs(
        [(phase, cut(rows, device)) for phase, rows in zip(phases, table.phases, strict=True)],
        job == "train",
        cut(table.report, device) if table.report else (),
        cut(table.predict, device) if table.predict else (),
        predict,
    )
    outcome = client_job(program, client, common, work, walk=walk)
    logits = [torch.cat(outcome.logits)] if outcome.logits else []
    return Outcome(**tree_map(lambda tensor: tensor[None], {**vars(outcome), "logits": logits}))
