"""What a run's model.json says, and the files that it vouches for."""

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from partwise.errors import ConfigError, DataError, one_line, unknown
from partwise.records.files import METHOD, MODEL, MODELS
from partwise.runs.description import FORMAT, VERSION, digest
from partwise.runs.saving import ENDING, GLOBAL

CLIENT = re.compile(r"client-(\d+)\.safetensors")


class Described:
    """The models of a run: how they are built and fed, and where they lie."""

    def __init__(self, run: str | Path):
        self.run = Path(os.path.expanduser(run))
        self.content = self.read()
        named = (CLIENT.fullmatch(name) for name in self.content["files"])
        self.stems = {int(found[1]): found[0].removesuffix(ENDING) for found in named if found}  # by client

    def __getitem__(self, key: str) -> Any:
        return self.content[key]

    def read(self) -> dict[str, Any]:
        """Return the content of model.json, as it was written."""
        path = self.run / MODEL
        if not os.path.isfile(path):
            raise DataError(f"'{self.run}' has no {MODEL}: it is not the folder of a run, or the run is too old")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            known = isinstance(content, dict) and content.get("format") == FORMAT
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"'{path}' is damaged: {one_line(error)}") from None
        if not known:
            raise DataError(f"'{path}' does not describe models of partwise")
        if content.get("version") != VERSION:
            raise DataError(
                f"'{path}' is of version {content.get('version')!r}, made by partwise {content.get('partwise')}; this "
                f"partwise reads version {VERSION}"
            )
        if content.pop("sha256", None) != digest(content):
            raise DataError(f"'{path}' is damaged or was edited: its content does not have the SHA-256 it states")
        return content

    def stem(self, client: int | str | None) -> str:
        """Return how the files of a client, given by its number or its name, or of the global model are called."""
        self.check_some()
        if client is None:
            if GLOBAL + ENDING not in self["files"]:
                raise ConfigError(f"{self['method']['name']} has no global model; name one of the clients: {self.few}")
            return GLOBAL
        number = self.number(client)
        if number not in self.stems:
            why = "it had no training samples, its model diverged, or another silo has it"
            raise ConfigError(f"client {client} has no model here: {why}")
        return self.stems[number]

    def check_some(self) -> None:
        """Refuse a run without models."""
        if not self["files"]:
            why = "it is not finished, was run with --no-save-models, or its clients' nodes keep them"
            raise DataError(f"'{self.run}' holds no models: {why}")

    def number(self, client: int | str) -> int:
        """Return the number of a client; of a text that is both a name and a number, the name counts."""
        names = self["clients"]
        if isinstance(client, str) and client in names:
            return names.index(client)
        number = int(client) if not isinstance(client, str) or client.isdecimal() else -1
        if not 0 <= number < len(names):
            why = unknown("client", str(client), filter(None, names))  # of an export, others' names are empty
            raise ConfigError(f"{why}; clients are called by name or by number, 0 to {len(names) - 1}")
        return number

    def title(self, stem: str) -> str:
        """What a model is called in a sentence."""
        if stem == GLOBAL:
            return "the global model"
        number = int(stem.removeprefix("client-"))
        name = self["clients"][number]
        return f"client {number}" if name == str(number) else f"client {number}, {name}"

    @property
    def few(self) -> str:
        """Some of the clients that have a model."""
        names = [self["clients"][number] for number in sorted(self.stems)]
        return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")

    def file(self, name: str) -> "TensorFile":
        """Return a file of models, compared with its SHA-256; empty where there is none of this name."""
        path = self.run / MODELS / name
        return TensorFile(path, sound(path, self["files"][name])) if name in self["files"] else TensorFile(path)

    def method_file(self) -> Path:
        """Return the method file of the run's own, compared with its SHA-256 and not executed yet."""
        path = self.run / METHOD
        sound(path, self["method"]["sha256"])
        return path


class TensorFile:
    """The tensors of a safetensors file, and what it says about itself."""

    def __init__(self, path: Path, content: bytes | None = None):
        self.path, self.tensors, self.about = path, dict[str, Tensor](), dict[str, str]()
        if content is not None:
            try:
                self.tensors = load(content)
                self.about = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
            except (SafetensorError, LookupError, ValueError) as error:
                raise DataError(f"'{path}' is not a model file: {one_line(error)}") from None


def sound(path: Path, expected: str) -> bytes:
    """What a file holds, if it is what was written."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read '{path}': {error.strerror}") from None
    if hashlib.sha256(content).hexdigest() != expected:
        raise DataError(f"'{path}' is damaged or another file: it does not have the SHA-256 that {MODEL} states")
    return content
