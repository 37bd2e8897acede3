"""A partition as a file: written once, read back by `file:PATH`, sample for sample.

The file is JSON. It identifies its data set by name, number of samples and labels, and has the SHA-256 of its own
content: partitions of other data, and damaged or edited ones, are refused.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from partwise.data.room import check_plain_file, check_room
from partwise.data.source import Federation, Source
from partwise.errors import DataError
from partwise.writing import write

BYTES_OF_NUMBER = 16  # bytes of memory for a byte of the file: a list of small numbers takes most
PARTITION_FORMAT, PARTITION_VERSION = "partwise partition", 1


def save(federation: Federation, path: str | Path) -> None:
    """Write which samples every client trains, validates and tests on."""
    _check_once(federation)
    sets = zip(federation.names, federation.train, federation.validation, federation.test, strict=True)
    content = {
        "format": PARTITION_FORMAT,
        "version": PARTITION_VERSION,
        **_identity(federation.source),
        "rule": federation.rule,
        "clients": [
            {"name": name, "train": train.tolist(), "validation": validation.tolist(), "test": test.tolist()}
            for name, train, validation, test in sets
        ],
        "global_test": federation.global_test.tolist(),
    }
    content["sha256"] = json_digest(content)
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
    write(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())


def read_partition(path: str | Path, source: Source) -> Federation:
    """Read a saved federation for the same source; its rule is the one that divided the samples."""
    content = _content(path)
    try:
        return _federation(content, source)
    except DataError as error:
        raise DataError(f"partition '{path}': {error}") from None


def saved_rule(path: str | Path) -> str:
    """Return the rule that divided the samples; a table's column that it names is not a feature."""
    return str(_content(path).get("rule"))


def _content(path: str | Path) -> dict[str, Any]:
    """Return a file's content; refuse one that is not a saved partition or was changed."""
    file = Path(os.path.expanduser(path))
    check_plain_file(file)
    try:
        check_room(f"partition '{path}'", BYTES_OF_NUMBER * file.stat().st_size)
        content = json.loads(file.read_text(encoding="utf-8"))
        sound = isinstance(content, dict) and content.pop("sha256", None) == json_digest(content)
    except OSError as error:
        raise DataError(f"cannot read the partition '{path}': {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"partition '{path}' is damaged or not JSON: {error}") from None
    if not isinstance(content, dict) or content.get("format") != PARTITION_FORMAT:
        raise DataError(f"'{path}' is not a saved partition; `partwise partition --save` writes one")
    if content.get("version") != PARTITION_VERSION:
        raise DataError(
            f"partition '{path}' is of version {content.get('version')!r}, and this partwise reads version "
            f"{PARTITION_VERSION}"
        )
    if not sound:
        raise DataError(f"partition '{path}' is damaged or was edited: its content does not have the SHA-256 it states")
    return content


def _federation(content: dict[str, Any], source: Source) -> Federation:
    """Return the content of a file as a federation; check everything in it."""
    for key, here in _identity(source).items():
        if content.get(key) != here:
            raise DataError(f"it belongs to another data set: {key} is {content.get(key)!r} there and {here!r} here")
    try:
        rule, clients, names = content["rule"], content["clients"], [client["name"] for client in content["clients"]]
        train, validation, test = (
            [_indices(f"{key} of client {number}", client[key], source) for number, client in enumerate(clients)]
            for key in ("train", "validation", "test")
        )
        global_test = _indices("global_test", content["global_test"], source)
    except (KeyError, TypeError) as error:
        raise DataError(f"not laid out as a saved partition: {error}") from None
    if not all(isinstance(text, str) for text in (rule, *names)):
        raise DataError("the rule and the names of clients must be texts")
    federation = Federation(source, train, test, global_test, validation, rule, tuple(names))
    _check_once(federation)
    return federation


def _identity(source: Source) -> dict[str, str | int]:
    """Return what identifies a data set."""
    labels = hashlib.sha256(source.y.numpy().astype("<i8").tobytes()).hexdigest()
    columns = hashlib.sha256()
    for name, column in sorted(source.columns.items()):
        columns.update(json.dumps([name, column.names]).encode() + column.code.numpy().astype("<i8").tobytes())
    numbers = {"labels_sha256": labels, "columns_sha256": columns.hexdigest()}
    return {"data": source.name, "samples": len(source.y), **numbers}


def _indices(what: str, numbers: Any, source: Source) -> Tensor:
    if not isinstance(numbers, list):
        raise DataError(f"{what} must be a list of indices")
    for number in numbers:
        if type(number) is not int or not 0 <= number < len(source.y):
            raise DataError(f"{what}: {number!r} is not the index of a sample, 0 to {len(source.y) - 1}")
    return torch.tensor(numbers, dtype=torch.int64)


def _check_once(federation: Federation) -> None:
    """Refuse a partition that gives a sample to two places."""
    given_out = torch.cat([*federation.train, *federation.validation, *federation.test])
    for what, index in {"the clients' sets": given_out, "global_test": federation.global_test}.items():
        twice = (index.bincount() > 1).nonzero()
        if len(twice):
            raise DataError(f"sample {int(twice[0])} occurs twice in {what}; a sample belongs to one place only")


def json_digest(content: Mapping[str, object]) -> str:
    """Return a checksum that shows whether a JSON object was changed."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
