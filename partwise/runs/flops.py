"""What local training costs: floating-point operations, counted by torch on one client (under vmap it over-counts)."""

import torch
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from partwise.engines.engine import Engine
from partwise.updates import Order

ROWS = 2  # a mini-batch of this size is enough: every operation that is counted grows in proportion to it


def flops_per_sample(engine: Engine, order: Order) -> float:
    """Operations for one sample in an epoch of every phase of a client's round: forward, and the backward it needs."""
    client = order.clients[0]
    layout, common = engine.layout(order, [client], {client: engine.tables(order, client)})
    alone = tree_map(lambda tensor: tensor[0], layout)
    index = torch.from_numpy(engine.train[client][:1]).to(engine.device)
    zero = torch.tensor(0, device=engine.device)
    total = 0.0
    for phase in order.plan.phases:
        rows = {"index": index.repeat(phase.batches, ROWS), "count": zero + ROWS, "key": zero}
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            engine.kernel.step(phase, alone, rows, common)
        total += counter.get_total_flops() / (ROWS * phase.batches) * (phase.epochs if phase.steps is None else 1)
    return total
