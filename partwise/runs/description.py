"""What model.json says: how the models of a run are built and fed, so that nothing else is needed to use them."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import torch

from partwise.data import CATALOGUE
from partwise.method import Method
from partwise.records.files import METHOD
from partwise.runs.config import HANDED_IN, Config, file_of
from partwise.runs.prepare import network_name
from partwise.runs.simulation import Simulation
from partwise.version import __version__

FORMAT, VERSION = "partwise models", 1


def digest(content: dict[str, Any]) -> str:
    """Return a checksum that shows whether a description was changed."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def description(simulation: Simulation, beside: Sequence[str] = ()) -> dict[str, Any]:
    """Describe how the models of a run are built and what input they take."""
    config, federation, parts = simulation.config, simulation.federation, simulation.program.parts
    source, tables, model, file = federation.source, config.as_tables(), config.model, file_of(config.name)
    settings, own = {**tables["method"], **tables["train"]}, model.model.startswith(HANDED_IN)
    return {
        "format": FORMAT,
        "version": VERSION,
        "partwise": __version__,
        "method": {
            "name": config.name,
            "class": f"{type(config.method).__module__}:{type(config.method).__qualname__}",
            "file": METHOD if file else None,
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest() if file else None,
            "settings": {name: value for name, value in settings.items() if value is not None},
        },
        "network": {
            "name": None if own else network_name(config, source),
            "class": parts.made_of if own else None,
            "batch_norm": model.batch_norm,
            "dropout": model.dropout,
            "projector": model.projector,
            "dtype": config.run.dtype,
        },
        "parts": {part: parts.layers(part) for part in parts.modules},
        "plain": is_plain(simulation),
        "data": source.name,
        "input": inputs(config, simulation, beside),
        "standardise": {"centre": list(source.centre), "scale": list(source.scale)},
        "classes": list(source.class_names) or list(map(str, range(source.classes))),
        "clients": list(federation.names),
    }


def is_plain(simulation: Simulation) -> bool:
    """Return whether clients predict by their network alone in the last stage: its state dict is the whole model."""
    plan = simulation.server.plans[-1]
    return getattr(plan.predict, "__func__", None) is Method.predict


def inputs(config: Config, simulation: Simulation, beside: Sequence[str]) -> dict[str, Any]:
    """Describe samples as the reader of the data set made them."""
    source, data = simulation.federation.source, config.data
    shape = list(source.x.shape[1:])
    if source.feature_names:
        dropped = [name.strip() for name in data.drop.split(",")] if data.drop else []
        return {
            "kind": "table",
            "shape": shape,
            "features": list(source.feature_names),
            "columns": list(source.feature_columns or source.feature_names),
            "beside": list(dict.fromkeys([data.label, *dropped, *source.columns, *beside])),
            "missing": data.missing,
            "nonfinite": data.allow_nonfinite_data,
            "other_texts": "zeros" if simulation.federation.holds == "some" else "refuse",
        }
    if source.x.dtype == torch.uint8:
        usual = CATALOGUE[data.data].image_size if data.data in CATALOGUE else None
        return {
            "kind": "images",
            "shape": shape,
            "white": source.white,
            "resize": data.image_size is not None or usual is not None,
        }
    return {"kind": "arrays", "shape": shape}
