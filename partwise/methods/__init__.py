"""One file a method; the name of the file is the name on the command line."""

import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from partwise.errors import ConfigError, unknown
from partwise.method import Method


def names() -> list[str]:
    """Every method that partwise brings."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def source(name: str) -> str:
    """The text of the file of a method that partwise brings."""
    return Path(__path__[0], f"{name}.py").read_text(encoding="utf-8")


def find(name: str) -> type[Method]:
    """A method by its name, or from a file of the user's: `path/to/mine.py`."""
    if name.endswith(".py"):
        module = load_file(Path(os.path.expanduser(name)))
    elif name in names():
        module = importlib.import_module(f"{__name__}.{name}")
    else:
        raise ConfigError(unknown("method", name, names()))
    found = [value for value in vars(module).values() if inspect.isclass(value) and issubclass(value, Method)]
    found = [value for value in found if value.__module__ == module.__name__]
    if len(found) != 1:
        raise ConfigError(f"'{name}' must define one subclass of partwise.Method, it defines {len(found)}")
    return found[0]


def load_file(path: Path) -> ModuleType:
    """Import a user's file under a name of its own; it may import the files beside it."""
    if not path.is_file():
        raise ConfigError(f"there is no method file '{path}'")
    from partwise.streams import key  # needs torch; the names of methods do not

    name = f"partwise_method_{path.stem}_{key(0, str(path.resolve())):x}"  # two files may have the same name
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
    """Let imports find the files of a folder first, and forget them afterwards: another may have files so named."""
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
    """Whether a module of this name was imported from a folder already, by the user's own script perhaps."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and folder in Path(file).resolve().parents
