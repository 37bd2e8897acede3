"""What local training costs: floating-point operations, counted by torch on one client (under vmap it over-counts)."""

import torch
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from partwise.engines.engine import Engine
from partwise.method import FROZEN
from partwise.plan import Plan
from partwise.updates import Copies, Order

ROWS = 2  # a mini-batch of this size is enough: every operation that is counted grows in proportion to it


def flops_per_sample(engine: Engine, plan: Plan) -> float:
    """Operations for one sample of a client's round: forward and the backward that its moves need, all epochs."""
    kernel = engine.kernel
    client = max(range(engine.federation.clients), key=lambda number: len(engine.train[number]))
    tensors = kernel.parts.tensors()
    copies = {name: Copies(value.detach()[None]) for name, value in tensors.items()}
    order = Order("train", plan, 0, [client], {name: copies[name] for name in tensors})
    total = 0.0
    layout, common = engine.layout(order, [client], {client: engine.tables(order, client)})
    alone = tree_map(lambda tensor: tensor[0], layout)
    assert all(name in alone["own"] or plan.share[name] is FROZEN for name in tensors)
    index = torch.from_numpy(engine.train[client][:1]).to(engine.device).repeat(ROWS)
    for phase in plan.phases:
        zero = torch.tensor(0, device=engine.device)
        rows = {"index": index.expand(phase.batches, ROWS), "count": zero + ROWS, "key": zero}
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            kernel.step(phase, alone, rows, common)
        total += counter.get_total_flops() / (ROWS * phase.batches) * (phase.epochs if phase.steps is None else 1)
    return total
