"""What model.json says of a run: how its models are built and fed."""

import hashlib
from collections.abc import Mapping, Sequence

from partwise.data import CATALOGUE, Federation
from partwise.data.transforms import ImageTransform, TableTransform
from partwise.method import Method
from partwise.records.files import METHOD
from partwise.records.manifest import (
    ArrayInput,
    ImageInput,
    ManifestMethod,
    ManifestNetwork,
    ModelManifest,
    Scaling,
    TableInput,
)
from partwise.runs.config import HANDED_IN, Config, Data, file_of
from partwise.runs.prepare import network_name
from partwise.runs.simulation import Simulation
from partwise.version import __version__


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
        list(source.class_names) or list(map(str, range(source.classes))),
        list(federation.names),
        dict(files),
    )


def used_method(config: Config) -> ManifestMethod:
    """Return the method of a run, with those of its settings that are set."""
    file, tables = file_of(config.name), config.as_tables()
    settings = {name: value for table in ("method", "train") for name, value in tables[table].items()}
    return ManifestMethod(
        config.name,
        f"{type(config.method).__module__}:{type(config.method).__qualname__}",
        METHOD if file else None,
        hashlib.sha256(file.read_bytes()).hexdigest() if file else None,
        {name: value for name, value in settings.items() if value is not None},
    )


def used_network(config: Config, simulation: Simulation) -> ManifestNetwork:
    """Return the network of a run: its name, or the class that was handed in."""
    model, own = config.model, config.model.model.startswith(HANDED_IN)
    return ManifestNetwork(
        None if own else network_name(config, simulation.federation.source),
        simulation.program.parts.made_of if own else None,
        model.batch_norm,
        model.dropout,
        model.projector,
        config.run.dtype,
    )


def predicts_plainly(simulation: Simulation) -> bool:
    """Return whether clients predict by their network alone in the last stage: its state dict is the whole model."""
    plan = simulation.server.plans[-1]
    return getattr(plan.predict, "__func__", None) is Method.predict


def input_of(data: Data, federation: Federation, beside: Sequence[str]) -> TableInput | ImageInput | ArrayInput:
    """Return what the models take: the transform of the run's samples, and what else is accepted by its settings."""
    source, shape = federation.source, list(federation.source.x.shape[1:])
    transform = source.transform
    if isinstance(transform, TableTransform):
        dropped = [name.strip() for name in data.drop.split(",")] if data.drop else []
        return TableInput(
            shape=shape,
            features=list(transform.features),
            columns=list(transform.columns),
            beside=list(dict.fromkeys([data.label, *dropped, *source.columns, *beside])),
            missing=data.missing,
            nonfinite=data.allow_nonfinite_data,
            other_texts="zeros" if federation.holds == "some" else "refuse",
        )
    if isinstance(transform, ImageTransform):
        usual = CATALOGUE[data.data].image_size if data.data in CATALOGUE else None
        resize = data.image_size is not None or usual is not None
        return ImageInput(shape=shape, white=transform.white, resize=resize)
    return ArrayInput(shape=shape)
