"""The folder of a run's models: its model.json, and the files whose SHA-256 stand there."""

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from partwise.errors import ConfigError, DataError, one_line, unknown
from partwise.records.files import METHOD, MODEL, MODELS_FOLDER, NETWORK_COPY
from partwise.records.manifest import FileHeader, ModelManifest
from partwise.runs.saving import ENDING, GLOBAL_STEM

CLIENT_FILE = re.compile(r"client-(\d+)\.safetensors")
METADATA = "__metadata__"  # of safetensors


class RunModels:
    """The models of a run: how they are built and fed, and where they lie."""

    def __init__(self, run: str | Path):
        self.run = Path(os.path.expanduser(run))
        self.manifest = read_manifest(self.run)
        named = (CLIENT_FILE.fullmatch(name) for name in self.manifest.files)
        self.stems = {int(found[1]): found[0].removesuffix(ENDING) for found in named if found}  # by client

    @property
    def has_global(self) -> bool:
        """Return whether there is a global model."""
        return GLOBAL_STEM + ENDING in self.manifest.files

    def stem(self, client: int | str | None) -> str:
        """Return how the files of a client, given by its number or its name, or of the global model are called."""
        self.check_some()
        if client is None:
            if not self.has_global:
                why = f"{self.manifest.method.name} has no global model; name one of the clients: {self.few}"
                raise ConfigError(why)
            return GLOBAL_STEM
        number = self.number(client)
        if number not in self.stems:
            why = "it had no training samples, its model diverged, or another silo has it"
            raise ConfigError(f"client {client} has no model here: {why}")
        return self.stems[number]

    def check_some(self) -> None:
        """Refuse a run without models."""
        if not self.manifest.files:
            why = "it is not finished, was run with --no-save-models, or its clients' nodes keep them"
            raise DataError(f"'{self.run}' holds no models: {why}")

    def number(self, client: int | str) -> int:
        """Return the number of a client; of a text that is both a name and a number, the name counts."""
        names = self.manifest.clients
        if isinstance(client, str) and client in names:
            return names.index(client)
        number = int(client) if not isinstance(client, str) or client.isdecimal() else -1
        if not 0 <= number < len(names):
            why = unknown("client", str(client), filter(None, names))  # of an export, others' names are empty
            raise ConfigError(f"{why}; clients are called by name or by number, 0 to {len(names) - 1}")
        return number

    def number_of(self, stem: str) -> int:
        """Return the number of the client whose files are called so."""
        return int(stem.removeprefix("client-"))

    def title(self, stem: str) -> str:
        """Return the name of a model in a sentence."""
        if stem == GLOBAL_STEM:
            return "the global model"
        number = self.number_of(stem)
        name = self.manifest.clients[number]
        return f"client {number}" if name == str(number) else f"client {number}, {name}"

    @property
    def few(self) -> str:
        """Return the names of some clients that have a model."""
        names = [self.manifest.clients[number] for number in sorted(self.stems)]
        return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")

    def file(self, name: str) -> "ModelFile":
        """Return a file of a model, compared with its SHA-256."""
        path = self.run / MODELS_FOLDER / name
        return read_model_file(path, sound(path, self.manifest.files[name]))

    def method_file(self) -> Path:
        """Return the method file of the run's own, compared with its SHA-256 and not executed yet."""
        path = self.run / METHOD
        sound(path, self.manifest.method.sha256)
        return path

    def network_file(self) -> Path:
        """Return the run's own copy of the file that its network is in, compared and not executed, too."""
        path = self.run / NETWORK_COPY
        sound(path, self.manifest.network.sha256)
        return path


def read_manifest(run: Path) -> ModelManifest:
    """Return the manifest in a run's model.json."""
    path = run / MODEL
    if not os.path.isfile(path):
        raise DataError(f"'{run}' has no {MODEL}: it is not the folder of a run, or the run is too old")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"'{path}' is damaged: {one_line(error)}") from None
    return ModelManifest.from_json(content, path)


@dataclass(frozen=True)
class ModelFile:
    """The tensors of a safetensors file, and its header."""

    path: Path
    tensors: dict[str, Tensor]
    header: FileHeader


def read_model_file(path: Path, content: bytes) -> ModelFile:
    """Return the tensors and the header in the bytes of a file."""
    try:
        tensors = load(content)
        about = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])[METADATA]
        return ModelFile(path, tensors, FileHeader.from_texts(about))
    except (SafetensorError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"'{path}' is not a model file: {one_line(error)}") from None


def sound(path: Path, expected: str | None) -> bytes:
    """Return the content of a file; refuse one with another SHA-256."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror}") from None
    if hashlib.sha256(content).hexdigest() != expected:
        raise DataError(f"'{path}' is damaged or another file: it does not have the SHA-256 that {MODEL} states")
    return content
