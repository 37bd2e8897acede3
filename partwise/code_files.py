"""Python files of a user's own, which are code: how settings name them, and how they are imported."""

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import ModuleType

from partwise.errors import ConfigError

METHOD_MODULES, NETWORK_MODULES = "partwise_method_", "partwise_network_"  # begin the names of imported files
import_numbers = count()  # of network files that were imported


def split_network(name: str) -> tuple[str, str] | None:
    """Return the file and the name in it of `nets.py:Net`, the latter '' where none is given; None for other names."""
    file, _, called = name.rpartition(":")
    if file.endswith(".py"):
        return file, called
    return (name, "") if name.endswith(".py") else None


def file_of(method: str) -> Path | None:
    """Return the path of a method file; None for a built-in method."""
    return path_of_file(method) if method.endswith(".py") else None


def network_file_of(model: str) -> Path | None:
    """Return the path of the file that `nets.py:Net` names; None for other networks."""
    named = split_network(model)
    return path_of_file(named[0]) if named else None


def path_of_file(file: str) -> Path | None:
    """Return the path of a file; None where there is no such file."""
    path = Path(os.path.expanduser(file))
    return path if path.is_file() else None


def file_digest(file: Path | None) -> str | None:
    """Return the SHA-256 of a file; None where there is no file."""
    return None if file is None else hashlib.sha256(file.read_bytes()).hexdigest()


def load_method_file(path: Path) -> ModuleType:
    """Import a method file under a name of its own; it may import the files beside it."""
    if not path.is_file():
        raise ConfigError(f"there is no method file '{path}'")
    from partwise.streams import stream_key  # needs torch; the names of methods do not

    key = stream_key(0, str(path.resolve()))  # two files may have the same name
    return load_file(path, f"{METHOD_MODULES}{path.stem}_{key:x}")


def load_network_file(path: Path) -> ModuleType:
    """Import a network file under a new name: models of an earlier import keep their classes, also in workers."""
    return load_file(path, f"{NETWORK_MODULES}{next(import_numbers)}_{path.stem}")


def network_files_in(pickled: bytes) -> dict[str, Path]:
    """Return the network files that define something in a pickle, by the names of their modules."""
    modules = {name: each for name, each in sys.modules.items() if name.startswith(NETWORK_MODULES)}
    return {name: Path(str(each.__file__)) for name, each in modules.items() if name.encode() in pickled}


def load_file(path: Path, name: str) -> ModuleType:
    """Import a user's file as a module of this name; it may import the files beside it."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # postponed annotations and docstrings are looked up there
    try:
        with neighbours(path.resolve().parent):
            spec.loader.exec_module(module)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"'{path}' cannot be imported: {type(error).__name__}: {error}") from error
    return module


@contextmanager
def neighbours(folder: Path) -> Iterator[None]:
    """Let imports find a folder's files first, and forget them afterwards: other folders may use the same names."""
    beside = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    beside -= {name for name in beside if name in sys.stdlib_module_names or is_from(folder, name)}
    others = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in beside}
    for name in others:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] in beside]:
            del sys.modules[name]
        sys.modules.update(others)


def is_from(folder: Path, name: str) -> bool:
    """Return whether a module of this name was imported from a folder before, as by the user's own script."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and folder in Path(file).resolve().parents
