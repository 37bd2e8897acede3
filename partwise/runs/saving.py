"""A run's models as files that describe themselves.

`model.json` says how the models of a run are built and fed; `models/client-003.safetensors` is the state dict of client
3's network, under the network's own names; `client-003.extra.safetensors` stands beside it where a prediction needs
more: parts that the method added, what the client received or remembers. `global.safetensors` is the global model.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from partwise.code_files import file_digest, file_of, network_file_of
from partwise.data import CATALOGUE, Federation
from partwise.data.transforms import ImageTransform, NamedTransform, TableTransform, TextTransform
from partwise.method import Method
from partwise.network.view import ClassCounts, ClassRows
from partwise.records.codec import Encoder, Unstorable
from partwise.records.files import METHOD, MODEL, MODELS_FOLDER, NETWORK_COPY
from partwise.records.formats import as_json, as_safetensors
from partwise.records.manifest import (
    ArrayInput,
    FileHeader,
    ImageInput,
    ManifestMethod,
    ManifestNetwork,
    ManifestTask,
    ModelManifest,
    NamedInput,
    Scaling,
    TableInput,
    TextInput,
)
from partwise.rounds.plan import Plan
from partwise.runs.config import HANDED_IN, Config
from partwise.runs.prepare import network_name
from partwise.runs.result import PersonalModel
from partwise.runs.settings import Data
from partwise.runs.simulation import Simulation
from partwise.trees import chosen
from partwise.version import __version__
from partwise.writing import make_folder, write

RECEIVABLE = (ClassRows, ClassCounts)  # what a client may receive beside plain values
GLOBAL_STEM = "global"
ENDING, EXTRA = ".safetensors", ".extra.safetensors"
COUNTS = "counts"  # the tensor of a client's label counts
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
        write(self.folder / MODEL, as_json(manifest_of(self.simulation, self.sums, beside).as_json()))

    def write(self, client: int, model: PersonalModel, moment: str) -> None:
        """Write one client's model."""
        name = self.simulation.federation.names[client]
        self.put(f"client-{client:0{self.width}}", model, self.header(model, moment, client, name))

    def write_global(self) -> None:
        """Write the global model, where the method has one."""
        if (model := global_model(self.simulation)) is not None:
            self.put(GLOBAL_STEM, model, self.header(model, GLOBAL_STEM))

    def header(
        self, model: PersonalModel, moment: str, client: int | None = None, name: str | None = None
    ) -> FileHeader:
        """Return what a model's files say of themselves."""
        return FileHeader(moment, self.simulation.config.name, model.stage, client, name)

    def put(self, stem: str, model: PersonalModel, header: FileHeader) -> None:
        """Write a model's files, and note their SHA-256."""
        make_folder(self.folder / MODELS_FOLDER)
        network, extra, needed = taken_apart(model, self.simulation, header)
        files = {stem + ENDING: (network, header)}
        if extra or needed != header:
            files[stem + EXTRA] = extra, needed
        for name, (tensors, own) in files.items():
            content = as_safetensors(tensors, own.as_texts())
            write(self.folder / MODELS_FOLDER / name, content)
            self.sums[name] = hashlib.sha256(content).hexdigest()


def global_model(simulation: Simulation) -> PersonalModel | None:
    """Return the global model as a function from samples to what the network gives; None if the method has none."""
    program, method = simulation.program, simulation.config.method
    if method.predict_global is None:
        return None
    tensors = {name: value.detach().cpu() for name, value in simulation.evaluation.global_tensors().items()}
    plan = of_global(simulation.server.plan, method)
    return PersonalModel(program, plan, tensors, {}, torch.zeros(program.task.bins, dtype=program.dtype), 0.0, 0)


def of_global(plan: Plan, method: Method) -> Plan:
    """Return a stage in which every prediction uses the global model."""
    return replace(plan, predict=lambda net, x, _: method.predict_global(net, x))


def taken_apart(
    model: PersonalModel, simulation: Simulation, header: FileHeader
) -> tuple[dict[str, Tensor], dict[str, Tensor], FileHeader]:
    """Return the network's state dict, and what else predictions need: tensors, and a header that says the rest."""
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
    if {"random", "normal", "draws"} & asked:
        header = replace(header, key=model.key)
    if "lr" in asked:
        header = replace(header, lr=model.lr)
    if {"bins", "counts", "samples"} & asked:
        extra[COUNTS] = model.counts
    encoder = Encoder(RECEIVABLE)
    try:
        if "got" in asked and model.extras:
            header = replace(header, extras=json.dumps(encoder.encode(model.extras, "extras")))
        if changed := simulation.held_first.changed(vars(simulation.config.method)):
            header = replace(header, held=json.dumps(encoder.encode(changed, "held")))
    except Unstorable as error:  # loading the model says so
        header = replace(header, lacks=str(error))
    extra |= {TREE + name: value for name, value in encoder.written().items()}
    return plain_memory(network), plain_memory(extra), header


def needs(model: PersonalModel, simulation: Simulation) -> set[str]:
    """Return what a client's prediction reads of `me`."""
    asked: set[str] = set()
    with torch.no_grad():
        model.logits(model.standardised(chosen(simulation.federation.source.x, slice(1))), asked)
    return asked


def plain_memory(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors for safetensors, which takes no views and no duplicates."""
    return {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()}


def code_copies(config: Config) -> dict[str, bytes]:
    """Return the content of the user's own files that a run executes, by the names of their copies in its folder."""
    files = {METHOD: file_of(config.name), NETWORK_COPY: network_file_of(config.model.model)}
    return {name: file.read_bytes() for name, file in files.items() if file}


# ---- what model.json says


def manifest_of(simulation: Simulation, files: Mapping[str, str], beside: Sequence[str] = ()) -> ModelManifest:
    """Return how the models of a run are built and fed; `files` are theirs with their SHA-256.

    `beside`: columns that a table may have and that are no features, beside those of this run's own.
    """
    config, federation, parts = simulation.config, simulation.federation, simulation.program.parts
    source = federation.source
    return ModelManifest(
        __version__,
        used_method(config),
        used_network(config, simulation),
        {part: parts.layers(part) for part in parts.modules},
        predicts_plainly(simulation),
        source.name,
        input_of(config.data, federation, beside),
        Scaling(list(source.centre), list(source.scale)),
        list(source.labels) if source.task.of_classes else [],
        list(federation.names),
        dict(files),
        None if source.task.of_classes else ManifestTask.of(source.task, source.y.shape[1:]),
    )


def used_method(config: Config) -> ManifestMethod:
    """Return the method of a run, with those of its settings that are set."""
    file, tables = file_of(config.name), config.as_tables()
    settings = {name: value for table in ("method", "train") for name, value in tables[table].items()}
    return ManifestMethod(
        config.name,
        f"{type(config.method).__module__}:{type(config.method).__qualname__}",
        METHOD if file else None,
        file_digest(file),
        {name: value for name, value in settings.items() if value is not None},
    )


def used_network(config: Config, simulation: Simulation) -> ManifestNetwork:
    """Return the network of a run: its name, with the file that it is in, or the class that was handed in."""
    model, own = config.model, config.model.model.startswith(HANDED_IN)
    file = network_file_of(model.model)
    return ManifestNetwork(
        None if own else network_name(config, simulation.federation.source),
        simulation.program.parts.made_of if own else None,
        model.batch_norm,
        model.dropout,
        model.projector,
        config.run.dtype,
        NETWORK_COPY if file else None,
        file_digest(file),
    )


def predicts_plainly(simulation: Simulation) -> bool:
    """Return whether clients predict by their network alone in the last stage: its state dict is the whole model."""
    plan = simulation.server.plans[-1]
    return getattr(plan.predict, "__func__", None) is Method.predict


def input_of(
    data: Data, federation: Federation, beside: Sequence[str]
) -> TableInput | ImageInput | ArrayInput | NamedInput:
    """Return what the models take: the transform of the run's samples, and what else is accepted by its settings."""
    source, transform = federation.source, federation.source.transform
    if isinstance(transform, NamedTransform):
        shapes = {name: list(own) for name, own in transform.shapes.items()}
        return NamedInput(shape=[], shapes=shapes, types=transform.types)
    if isinstance(transform, TableTransform | TextTransform):
        dropped = [name.strip() for name in data.drop.split(",")] if data.drop else []
        return TableInput(
            shape=[] if isinstance(source.x, dict) else list(source.x.shape[1:]),
            features=list(source.table.features if source.table else ()),
            columns=list(source.table.columns if source.table else ()),
            beside=list(dict.fromkeys([*(source.no_features or (data.label, *dropped)), *source.columns, *beside])),
            missing=data.missing,
            nonfinite=data.allow_nonfinite_data,
            other_texts="zeros" if federation.holds == "some" or source.code_sizes else "refuse",
            codes=bool(source.code_sizes),
            text=text_input(transform) if isinstance(transform, TextTransform) else None,
        )
    shape = list(transform.shape)
    if isinstance(transform, ImageTransform):
        usual = CATALOGUE[data.data].image_size if data.data in CATALOGUE else None
        resize = data.image_size is not None or usual is not None
        return ImageInput(shape=shape, white=transform.white, resize=resize)
    return ArrayInput(shape=shape, whole=transform.whole, vocabulary=source.vocabulary)


def text_input(transform: TextTransform) -> TextInput:
    """Return what models know of the column of texts."""
    return TextInput(transform.column, transform.tokens, list(transform.vocabulary), transform.length)
