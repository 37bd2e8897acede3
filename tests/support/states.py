"""What a run leaves, tensor by tensor, and how far two runs are apart."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from partwise.runs.result import Models
from partwise.runs.simulation import Simulation
from partwise.trees import chosen

if TYPE_CHECKING:
    from partwise.engines.engine import Engine


def state(simulation: Simulation) -> dict[str, Tensor]:
    """Every tensor that a run leaves: the server's, the clients' own, what they remember, their models, the metrics."""
    engine: Engine = simulation.engine
    result = {f"server/{name}": copies.values for name, copies in simulation.server.copies.items()}
    for name, value in simulation.server.memory.items():
        leaves = enumerate(tree_leaves(value))
        result.update({f"memory/{name}/{number}": leaf for number, leaf in leaves if isinstance(leaf, Tensor)})
    for client in range(simulation.federation.clients):
        held = engine.store.own(client, simulation.server.plan.own)
        result.update({f"client {client}/{name}": value for name, value in held.items()})
        kept = engine.store.remembered([client])
        result.update({f"client {client}/keep/{name}": value[0] for name, value in kept.items()})
        for path, sheet in engine.store.sheets.items():
            if path[0] == "optimizer_state" and engine.store.filled(path, [client])[0]:
                result[f"client {client}/{'/'.join(path)}"] = sheet.values[engine.store.row[client]]
    source = simulation.federation.source
    for client, model in Models(simulation).some(simulation.server.eligible.tolist()).items():
        result.update({f"model {client}/{name}": value for name, value in model.tensors.items()})
        result[f"model {client}/logits"] = model(chosen(source.x, simulation.federation.test[client])).detach()
    for row in simulation.history.rows:
        told = {key: value for key, value in row.items() if key not in ("seconds", "groups")}  # a relay may be FedAvg
        result.update(numbers(f"round {row['round']}", told))
    return {name: value.cpu() for name, value in result.items()}


def numbers(prefix: str, value: Any) -> dict[str, Tensor]:
    """The numbers of a row of metrics, by their path."""
    if isinstance(value, dict):
        return {
            key: number for name, inner in value.items() for key, number in numbers(f"{prefix}/{name}", inner).items()
        }
    return {} if value is None else {prefix: torch.as_tensor(value, dtype=torch.float64)}


def distance(one: Simulation, two: Simulation) -> float:
    """The largest difference between two runs over everything that they leave."""
    return apart(state(one), state(two))


def apart(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    """The largest difference between two states."""
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert value.shape == second[name].shape, name
        assert torch.isfinite(value).all() and torch.isfinite(second[name]).all(), name
    return max(
        float((first[name].double() - second[name].double()).abs().max()) for name in first if first[name].numel()
    )
