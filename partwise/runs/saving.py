"""A run's models as files that describe themselves.

`model.json` says how the models of a run are built and fed; `models/client-003.safetensors` is the state dict of client
3's network, under the network's own names; `client-003.extra.safetensors` stands beside it where a prediction needs
more: parts that the method added, what the client received or remembers. `global.safetensors` is the global model.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from partwise.method import Method
from partwise.network.view import ClassCounts, ClassRows
from partwise.records.codec import Encoder, Unstorable
from partwise.records.files import MODEL, MODELS
from partwise.records.formats import as_json, as_safetensors
from partwise.rounds.plan import Plan
from partwise.runs.description import FORMAT, VERSION, description, digest
from partwise.runs.result import PersonalModel
from partwise.runs.simulation import Simulation
from partwise.version import __version__
from partwise.writing import make_folder, write

KNOWN = (ClassRows, ClassCounts)  # what a client may receive beside plain values
GLOBAL = "global"
ENDING, EXTRA = ".safetensors", ".extra.safetensors"
TREE = "tree."  # begins the names of tensors that texts beside them put together


class ModelFiles:
    """The models of a run, and what describes them, in its folder."""

    def __init__(self, folder: Path, simulation: Simulation):
        self.folder, self.simulation = folder, simulation
        self.sums: dict[str, str] = {}  # SHA-256 of files
        clients = simulation.clients
        self.width = max(3, len(str(clients[-1]))) if clients else 3

    def describe(self, beside: Sequence[str] = ()) -> None:
        """Write how models are built and fed, which is known before the first round; later also what they hash to.

        `beside`: columns that a table may have and that are no features, beside those of this one.
        """
        content = {**description(self.simulation, beside), "files": self.sums}
        write(self.folder / MODEL, as_json({**content, "sha256": digest(content)}))

    def write(self, client: int, model: PersonalModel, moment: str) -> None:
        """Write one client's model."""
        name = self.simulation.federation.names[client]
        self.put(f"client-{client:0{self.width}}", model, {"client": str(client), "name": name, "moment": moment})

    def write_global(self) -> None:
        """Write the global model, where the method has one."""
        if (model := global_model(self.simulation)) is not None:
            self.put(GLOBAL, model, {"moment": GLOBAL})

    def put(self, stem: str, model: PersonalModel, about: dict[str, str]) -> None:
        make_folder(self.folder / MODELS)
        simulation = self.simulation
        network, extra, told = taken_apart(model, simulation)
        about |= {"format": FORMAT, "version": str(VERSION), "partwise": __version__}
        about |= {"method": simulation.config.name, "stage": str(model.stage)}
        files = {stem + ENDING: (network, {}), **({stem + EXTRA: (extra, told)} if extra or told else {})}
        for name, (tensors, more) in files.items():
            content = as_safetensors(tensors, {**about, **more})
            write(self.folder / MODELS / name, content)
            self.sums[name] = hashlib.sha256(content).hexdigest()


def global_model(simulation: Simulation) -> PersonalModel | None:
    """Return the global model as a function from samples to logits; None if the method has none."""
    program, method = simulation.program, simulation.config.method
    if method.predict_global is None:
        return None
    tensors = {name: value.detach().cpu() for name, value in simulation.evaluation.global_tensors().items()}
    plan = of_global(simulation.server.plan, method)
    return PersonalModel(program, plan, tensors, {}, torch.zeros(program.classes, dtype=program.dtype), 0.0, 0)


def of_global(plan: Plan, method: Method) -> Plan:
    """Return a stage in which every prediction uses the global model."""
    return replace(plan, predict=lambda net, x, me: method.predict_global(net, x))


def taken_apart(model: PersonalModel, simulation: Simulation) -> tuple[dict[str, Tensor], dict[str, Tensor], dict]:
    """Return the network's state dict, and what else predictions need, as tensors and as texts."""
    parts, tensors = model.parts, model.tensors
    network = {own: tensors[name] for own, name in parts.names.items() if name in tensors}
    network |= parts.constants
    held = set(parts.names.values())
    asked = needs(model, simulation)
    prefixes = tuple(f"{kind}." for kind in ("got", "keep") if kind in asked)
    extra = {
        name: value
        for name, value in tensors.items()
        if (name.startswith(prefixes) if name in model.beside else name not in held)
    }
    told: dict[str, str] = {}
    if {"random", "normal", "draws"} & asked:
        told["key"] = str(model.key)
    if "lr" in asked:
        told["lr"] = repr(model.lr)
    if {"counts", "samples"} & asked:
        extra["counts"] = model.counts
    encoder = Encoder(KNOWN)
    beside = {"extras": model.extras if "got" in asked else {}}
    beside["held"] = simulation.held_first.changed(vars(simulation.config.method))
    for name, tree in beside.items():
        if tree:
            try:
                told[name] = json.dumps(encoder.encode(tree, name))
            except Unstorable as error:  # loading the model says so
                told["lacks"] = str(error)
    extra |= {TREE + name: value for name, value in encoder.written().items()}
    return plain_memory(network), plain_memory(extra), told


def needs(model: PersonalModel, simulation: Simulation) -> set[str]:
    """Return what a client's prediction reads of `me`."""
    asked: set[str] = set()
    with torch.no_grad():
        model.logits(torch.zeros(1, *simulation.federation.source.x.shape[1:], dtype=model.dtype), asked)
    return asked


def plain_memory(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors for safetensors, which takes no views and no duplicates."""
    return {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}
