"""What local training costs: floating-point operations, counted by torch on one client (under vmap it over-counts)."""

import torch
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from partwise.engines.client_engine import ClientEngine
from partwise.rounds.batches import bounds, number_of_samples
from partwise.rounds.messages import Request
from partwise.rounds.state import BatchRows


def flops_per_sample(engine: ClientEngine, request: Request) -> list[float]:
    """Count the operations per sample in each phase of a client's round: forward and necessary backward."""
    client = request.clients[0]
    layout, common = engine.layout(request, [client], [engine.drawing.draw(request, client)])
    alone = tree_map(lambda tensor: tensor[0], layout)
    index = torch.from_numpy(engine.train[client][:1]).to(engine.device)
    zero = torch.tensor(0, device=engine.device)
    result, rows_of_batch = [], max(2, engine.drawing.batch)  # its real size: losses over pairs grow with its square
    for phase in engine.drawing.phases(request):
        samples = index.repeat(phase.batches, rows_of_batch)
        rows = BatchRows(samples, zero + rows_of_batch, zero, torch.zeros(*samples.shape, 0, device=engine.device))
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            engine.program.step(phase, alone, rows, common)
        result.append(counter.get_total_flops() / (rows_of_batch * phase.batches))
    return result


def training_flops(engine: ClientEngine, request: Request, per_sample: list[float]) -> float:
    """Count the operations of a round: those per sample times the samples that clients use, phase by phase."""
    return sum(
        cost
        * number_of_samples(
            end - begin,
            engine.drawing.recipe(phase, client, request.times.get(client, 0)),
        )
        for client in request.clients
        for phase, cost in zip(engine.drawing.phases(request), per_sample, strict=True)
        for begin, end in [bounds(len(engine.train[client]), phase.sample_range)]
    )
