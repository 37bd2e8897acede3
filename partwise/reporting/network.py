"""A run that is ready and not begun: its network, who shares what, and what a round will cost."""

from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from partwise.engines.flops import flops_per_sample, training_flops
from partwise.engines.vector import Vector
from partwise.network.view import Net
from partwise.reporting.methods import explain_share
from partwise.reporting.tables import NOTHING, Cells
from partwise.rounds.cohort import Participation
from partwise.rounds.messages import Request
from partwise.rounds.plan import Plan
from partwise.runs.config import label
from partwise.runs.simulation import Simulation
from partwise.trees import chosen, shape_text, tensors_of

# Hooks that send what only a round can tell.
UNFORESEEN = {
    "begin": "what it asks of clients before round 0",
    "down": "extras that it sends down",
    "finish": "extras that clients send up after training",
    "report": "extras that clients report",
    "round": "what its own kind of round sends beside one request to the cohort",
    "end": "what it asks of clients after the last round",
}


def pages(simulation: Simulation) -> list[Cells]:
    """Return everything that is known before round 0."""
    return [network(simulation), round_costs(simulation), memory(simulation)]


# --------------------------------------------------------------------------------------------- the network


def network(simulation: Simulation) -> Cells:
    """Return parts and their layers: how many parameters, and who shares them in every stage."""
    parts, plans = simulation.program.parts, simulation.server.plans
    names = list(parts.tensors())
    rows = []
    for part in parts.modules:
        rows.append(network_row(simulation, part, [name for name in names if name.startswith(f"{part}.")]))
        for layer in parts.layers(part):
            inside = [name for name in names if name.startswith(f"{part}.{layer}.")]
            rows += [network_row(simulation, f"  {layer}", inside)] if inside else []
    rows.append([*network_row(simulation, "total", names)[:3], *[""] * len(plans)])
    beside = [part for part in parts.modules if part not in parts.chain]
    chain = " > ".join(["samples", *parts.chain, simulation.program.task.output_word])
    notes = [chain + (f"; beside it: {', '.join(beside)}" if beside else "")]
    if parts.buffers:
        notes.append("bytes: with the running values of normalisation layers, which are no parameters")
    notes += [
        f"{share}: {explain_share(share)}" for share in dict.fromkeys(s for plan in plans for s in plan.share.values())
    ]
    header = ["part", "parameters", "bytes", *stage_names(plans, "share")]
    return Cells(f"{label(simulation.config.name)} on {problem(simulation)}", header, rows, notes)


def network_row(simulation: Simulation, title: str, names: list[str]) -> list[str]:
    """Return parameters, bytes and shares of some tensors."""
    tensors, parts = simulation.program.parts.tensors(), simulation.program.parts
    parameters = sum(tensors[name].numel() for name in names if name not in parts.buffers)
    shares = [dict.fromkeys(str(plan.share[name]) for name in names) for plan in simulation.server.plans]
    return [title, f"{parameters:,}", f"{tensor_bytes([tensors[name] for name in names]):,}", *map(", ".join, shares)]


def problem(simulation: Simulation) -> str:
    """Return data and clients in a line."""
    federation = simulation.federation
    samples = [len(index) for index in federation.train]
    shape = shape_text(federation.source.shape)
    return (
        f"{federation.source.name} ({shape}, {federation.source.task.wanted}), {federation.clients} clients, "
        f"{federation.rule}, {min(samples):,} to {max(samples):,} training samples, the median {median(samples):,g}"
    )


def stage_names(plans: list[Plan], alone: str) -> list[str]:
    """Return a column's name for every stage."""
    if len(plans) == 1:
        return [alone]
    return [f"rounds {plan.first_round + 1}-{plan.first_round + plan.rounds}" for plan in plans]


def tensor_bytes(tensors: Any) -> int:
    """Return the bytes of a tree of tensors."""
    leaves = [leaf for leaf in tree_leaves(tensors) if isinstance(leaf, Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in leaves)


# ------------------------------------------------------------------------------------------------- a round


def round_costs(simulation: Simulation) -> Cells:
    """Return the bytes and operations of a round, for every stage."""
    plans, notes = simulation.server.plans, list(simulation.notes)
    sent, computed = [traffic(simulation, plan) for plan in plans], [flops(simulation, plan) for plan in plans]
    rows = [
        ["rounds", *(f"{plan.rounds:,}" for plan in plans)],
        ["participants", *[f"{participants(simulation):,}"] * len(plans)],
        ["bytes down, one participant", *(f"{down:,}" for down, _ in sent)],
        ["bytes up, one participant", *(f"{up:,}" for _, up in sent)],
        ["training FLOPs, one sample", *(" + ".join(map(whole_number, phases)) or NOTHING for phases, _ in computed)],
        ["training FLOPs, all participants", *(whole_number(every) for _, every in computed)],
    ]
    if any(len(phases) > 1 for phases, _ in computed):
        notes.append("FLOPs of a sample: a number for every phase of local training")
    if participants(simulation) < len(simulation.server.eligible):
        notes.append("FLOPs of all participants: on average, their training sets differ")
    hidden = [what for hook, what in UNFORESEEN.items() if simulation.program.has(hook)]
    if hidden:
        notes.append(f"not counted, because only a round can tell: {'; '.join(hidden)}")
    return Cells("A round", ["", *stage_names(plans, "every round")], rows, notes)


def traffic(simulation: Simulation, plan: Plan) -> tuple[int, int]:
    """Return the bytes that one participant receives and sends in a round; extras are not among them."""
    if simulation.config.method.pooled:
        return 0, 0
    sizes = simulation.server.ledger.sizes
    return sum(sizes[name] for name in plan.down), sum(sizes[name] for name in plan.up)


def flops(simulation: Simulation, plan: Plan) -> tuple[list[float], float | None]:
    """Return training FLOPs of a sample in every phase, and of a round; nothing where a loss may need extras."""
    if simulation.program.has("down"):
        return [], None
    everyone = request(simulation, plan, simulation.server.eligible.tolist())
    sample = flops_per_sample(simulation.engine, everyone)
    share = participants(simulation) / len(everyone.clients)
    return sample, share * training_flops(simulation.engine, everyone, sample)


def participants(simulation: Simulation) -> int:
    """Return the number of participants in a round; where groups are drawn, their expected number."""
    server = simulation.server
    return min(len(server.eligible), Participation.of(server.method, server.clients).among(server.clients))


def request(simulation: Simulation, plan: Plan, clients: list[int]) -> Request:
    """Return the request to train that a stage begins with, on the copies that the server holds now."""
    shares = plan.share
    copies = {name: c for name, c in simulation.server.copies.items() if shares[name].adopt or shares[name].sent}
    return Request("train", plan, plan.first_round, clients, copies)


def whole_number(value: float | None) -> str:
    """Return a whole number as text."""
    return NOTHING if value is None else f"{value:,.0f}"


# -------------------------------------------------------------------------------------------------- memory


def memory(simulation: Simulation) -> Cells:
    """Return the device memory of a round: counted, but for activations, which are an estimate."""
    engine, cohort = simulation.engine, participants(simulation)
    at_once = min(engine.caller.block or cohort, cohort) if isinstance(engine, Vector) else 1
    state = max(client_state(simulation, plan) for plan in simulation.server.plans)
    rows = {
        "data": tensor_bytes([*tensors_of(engine.x), engine.y]),
        "one client's network": tensor_bytes(simulation.program.parts.tensors()),
        f"state of clients that train at once ({at_once:,})": at_once * state,
        "activations of their mini-batches, about": at_once * engine.drawing.batch * activations(simulation),
    }
    notes = [
        "state: what a client holds, its gradients and what its optimiser remembers",
        "activations: outputs of all layers that hold no others, for mini-batches of "
        f"{engine.drawing.batch:,}, were all clients to step at once; what torch keeps beside them depends on the "
        "device",
    ]
    return Cells(
        f"Memory on {engine.device}", ["", "bytes"], [[title, f"{value:,}"] for title, value in rows.items()], notes
    )


def client_state(simulation: Simulation, plan: Plan) -> int:
    """Return the bytes that a client's round needs beside its mini-batch."""
    client = int(simulation.server.eligible[0])
    wanted, sizes = request(simulation, plan, [client]), simulation.server.ledger.sizes
    held, _ = simulation.engine.layout(wanted, [client], [simulation.engine.drawing.draw(wanted, client)])
    moves = [move for phase in plan.phases for move in phase.moves]
    return tensor_bytes(held) + max((sum(sizes[name] for name in move.names) for move in moves), default=0)


def activations(simulation: Simulation) -> int:
    """Return the bytes that the layers of the chain hand on for one sample."""
    program, outputs = simulation.program, list[int]()

    def note(layer: nn.Module, inputs: Any, output: Any) -> None:
        outputs.append(tensor_bytes(output))

    layers = [layer for part in program.parts.modules.values() for layer in part.modules() if not any(layer.children())]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    tensors = {name: value.detach() for name, value in program.parts.tensors().items()}
    x = program.normalised(chosen(simulation.engine.x, slice(1)))
    try:
        with torch.no_grad():
            Net(program.parts, program.scope, tensors, compute=program.compute)(x)
    finally:
        for hook in hooks:
            hook.remove()
    return sum(outputs)
