"""The largest answer that a node may send, from the request and from the method's output on made-up samples."""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from partwise.engines.laying_out import ClientLayout
from partwise.engines.purity_inputs import REAL_ROWS, mini_batch
from partwise.errors import ConfigError, one_line
from partwise.network.view import Extras
from partwise.records.codec import Limit
from partwise.records.messages import Hop
from partwise.rounds.batches import Drawing, JobBatches
from partwise.rounds.client import ClientProgram
from partwise.rounds.messages import Request

# Bytes
ANSWER_LABEL_BYTES = 1 << 16  # of text that every answer may have, ...
LABEL_BYTES_PER_CLIENT = 1 << 11  # ... what it may have more for each client: numbers, scores, ...
LABELS_OF_TENSOR = 1 << 9  # ... and for each tensor: its name, type and shape, in JSON and in safetensors
COLUMN_BYTES = 8 * 8  # of a client's samples, steps, loss and the like
SPARE = 1 << 16  # of a client's extras, beside twice those that stand-ins make
UNKNOWN_EXTRAS = 16  # times a client's network, where stand-ins make none

log = logging.getLogger(__name__)


class AnswerLimits:
    """The limits of answers in one run."""

    def __init__(self, program: ClientProgram, drawing: Drawing, layout: ClientLayout):
        self.program, self.drawing, self.layout = program, drawing, layout
        self.extra_sizes: dict[tuple[str, int], list[int]] = {}  # by job and stage: bytes of each extra of a client

    def of(self, request: Request, hops: Sequence[Hop]) -> Limit:
        """Return the limit of a node's answer: what its clients send, and what it may answer ahead."""
        first = self.of_clients(request, len(request.clients))
        ahead = [self.of_clients(request, len(hop)) for hop in hops]
        return Limit(
            first.labels + LABELS_OF_TENSOR * len(ahead), first.tensors + sum(limit.message for limit in ahead)
        )

    def of_clients(self, request: Request, clients: int) -> Limit:
        """Return the limit of what some clients send: their parts as the plan has them, their extras, their scores."""
        sent = request.plan.up if request.job == "train" else ()
        parts = [self.layout.store.initial[name].values[0].nbytes for name in sent]
        extras = self.sizes_of_extras(request)
        return Limit(
            ANSWER_LABEL_BYTES + LABEL_BYTES_PER_CLIENT * clients + LABELS_OF_TENSOR * (len(parts) + len(extras)),
            clients * (COLUMN_BYTES + sum(parts) + 2 * sum(extras) + SPARE),
        )

    def sizes_of_extras(self, request: Request) -> list[int]:
        """Return the bytes of each extra that a client sends: of those that the method makes of stand-ins."""
        subject = request.job, request.plan.number
        if subject not in self.extra_sizes:
            try:
                with torch.no_grad():
                    extras = self.extras_of_stand_ins(request)
                sizes = [leaf.nbytes for leaf in tree_leaves(extras) if isinstance(leaf, Tensor)]
            except ConfigError:  # the labels have no bins, or are no classes: no node could answer
                raise
            except Exception as error:  # a method may need what only a real client has
                log.debug("no extras of stand-ins: %s", one_line(error))
                sizes = [UNKNOWN_EXTRAS * copies.values[0].nbytes for copies in self.layout.store.initial.values()]
            self.extra_sizes[subject] = sizes
        return self.extra_sizes[subject]

    def extras_of_stand_ins(self, request: Request) -> list[Extras]:
        """Return what `describe`, `report` and `finish` make of samples that the server has made up."""
        program, rows = self.program, mini_batch(REAL_ROWS, 0, 1)
        if request.job == "describe":
            return [program.describe(rows, self.layout.x, self.layout.y)]
        batches = JobBatches([], [], None, None)
        several, common = self.layout(request, request.clients[:1], [batches])
        client = tree_map(lambda tensor: tensor[0], several)
        made = []
        if self.drawing.reports(request):
            made.append(program.report(client, rows, common))
        if request.job == "train" and program.has("finish"):
            if program.has("start"):
                client = client.overwritten(program.start(client, common))
            made.append(program.finish(client, common)[1])
        return made
