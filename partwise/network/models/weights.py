"""Weights from a file: a state dict in the usual naming of its network, or a model that a client of a run left."""

import os
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from partwise.errors import ConfigError, DataError
from partwise.network.parts import Parts

ENDINGS = (".safetensors", ".pth", ".pt")
WRAPPERS = ("state_dict", "model_state_dict", "model")  # where the checkpoints of training scripts keep a state dict
PREFIXES = ("module.", "_orig_mod.", "network.")  # of DataParallel, of torch.compile, of a client's model here
CLASSIFIERS = ("head", "fc", "classifier", "head.fc")  # where networks keep what is the head here
NOT_OF_THE_NETWORK = re.compile(r"(got|keep)[./]")  # what a client's model holds beside its network
SHOWN = 3  # troubles that a refusal spells out


def with_weights(parts: Parts, path: str | Path) -> Parts:
    """Load all values of a file into the parts; a head or projector that the file lacks stays as it is."""
    found, result = read_weights(Path(os.path.expanduser(path))), parts.duplicate()
    tensors, added = result.tensors(), others(found, result.chain)
    stored = {f"{part}.{name}" for part, module in result.modules.items() for name in module.state_dict()}
    own = {ours: name for name, ours in result.names.items()}
    taken: dict[str, str] = {}
    trouble: dict[str, str] = {}
    for name, value in tensors.items():
        here, there = tuple(value.shape), located_tensor(name, own.get(name, name), result.chain, added, found)
        if there is not None:
            taken[name] = there
            if tuple(found[there].shape) != here:
                trouble[name] = f"{there} is {tuple(found[there].shape)} there and {here} here"
        elif name in stored:
            trouble[name] = f"{name} {here} is not there"
    for layer in (*result.chain[1:][-1:], "body.projector"):
        names = [name for name in tensors if name.startswith(f"{layer}.")]
        reasons = [trouble.pop(name) for name in names if name in trouble]
        if reasons:
            taken = {name: there for name, there in taken.items() if name not in names}
            result.notes += (f"weights: {layer} does not come from '{path}': {reasons[0]}",)
    ignored = tuple(f"{layer}." for layer in (*CLASSIFIERS, *added))
    used = {
        *taken.values(),
        *(each for name, ours in result.names.items() if ours in taken for each in spellings(name)),
    }
    for name, value in found.items():
        if name not in used and not name.startswith(ignored):
            trouble[name] = f"{name} {tuple(value.shape)} is not in the network"
    if trouble:
        more = f"; and {len(trouble) - SHOWN} more" if len(trouble) > SHOWN else ""
        raise ConfigError(f"'{path}' does not fit the network: {'; '.join(list(trouble.values())[:SHOWN])}{more}")
    with torch.no_grad():
        for name, there in taken.items():
            tensors[name].copy_(found[there])
            if not torch.isfinite(tensors[name]).all():
                raise DataError(f"'{path}': {there} holds numbers that are not finite")
    result.origin = None  # its values have changed
    return result


def others(found: dict[str, Tensor], chain: tuple[str, ...]) -> list[str]:
    """Return the parts of a client's model that the network lacks, because a method added or cut them."""
    parts = dict.fromkeys(name.split(".")[0] for name in found)
    return [part for part in parts if part not in chain] if chain[0] in parts else []


def located_tensor(
    name: str, own: str, chain: tuple[str, ...], added: list[str], found: dict[str, Tensor]
) -> str | None:
    """Return the name in the file of a tensor, which is called `own` in the network's state dict; None without one."""
    part, _, rest = without_backbone(name).partition(".")
    if part == chain[-1] and len(chain) > 1:
        candidates = [f"{layer}.{rest}" for layer in (part, *CLASSIFIERS)]
    else:
        candidates = [f"{part}.{rest}", rest, *(f"{other}.{rest}" for other in added)]
    return next((candidate for candidate in (*spellings(own), *candidates) if candidate in found), None)


def spellings(name: str) -> tuple[str, str]:
    """Return a name as it is, and without the prefixes that may be left out of a file."""
    short = name
    while prefix := next((prefix for prefix in PREFIXES if short.startswith(prefix)), ""):
        short = short.removeprefix(prefix)
    return name, short


def without_backbone(name: str) -> str:
    """Return a name without the projector or dropout after a body that is not a sequence (`Parts.append`)."""
    return name.replace("body.backbone.", "body.", 1)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the floating tensors of a file by name, without wrappings; others count batches, or are constants."""
    if os.path.isdir(path):
        raise DataError(f"'{path}' is a folder; weights must be a file: {', '.join(ENDINGS)}")
    if path.suffix.lower() not in ENDINGS:
        raise DataError(f"'{path}' is not a file of weights; readable are {', '.join(ENDINGS)}")
    if not os.path.isfile(path):
        raise DataError(f"there is no file of weights '{path}'")
    content = open_weights(path)
    while isinstance(content, dict) and (inner := [content[key] for key in WRAPPERS if is_dict(content.get(key))]):
        content = inner[0]
    if not is_dict(content) or not all(isinstance(value, Tensor) for value in content.values()):
        holds = ", ".join(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise DataError(f"'{path}' holds {holds[:100] or 'nothing'}, not a state dict (names and tensors)")
    tensors = {
        name: value
        for name, value in content.items()
        if value.is_floating_point() and not NOT_OF_THE_NETWORK.match(name)
    }
    while prefix := next((prefix for prefix in PREFIXES if tensors and all(n.startswith(prefix) for n in tensors)), ""):
        tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    return {without_backbone(name): value for name, value in tensors.items()}


def is_dict(value: Any) -> bool:
    """Return whether a value is a dictionary with names, and not empty."""
    return isinstance(value, dict) and len(value) > 0 and all(isinstance(key, str) for key in value)


def open_weights(path: Path) -> Any:
    """Return a file's content; nothing in it is executed."""
    try:
        if path.suffix.lower() == ".safetensors":
            from safetensors.torch import load_file  # a run without weights does not need it

            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about files of kinds that are refused anyway
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror}") from None
    except pickle.UnpicklingError:
        raise DataError(
            f"'{path}' holds more than tensors, or is damaged; objects are never loaded: save only net.state_dict()"
        ) from None
    except Exception:  # a damaged file fails in a dozen ways
        raise DataError(f"'{path}' is damaged, or not a file of weights") from None
