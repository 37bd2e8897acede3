"""The built-in methods, a file each, called as the file is; and how methods are found."""

import importlib
import inspect
import os
import pkgutil
from pathlib import Path
from types import ModuleType

from partwise.code_files import load_method_file
from partwise.errors import METHODS, ConfigError, unknown
from partwise.method import Method
from partwise.published import Published, find_published, published


def names() -> list[str]:
    """Return the names of the built-in methods."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def installed_names() -> list[str]:
    """Return the names of all installed methods: the built-in ones, then those that other packages publish."""
    own = names()
    return [*own, *(name for name in published("method") if name not in own)]


def published_method(name: str) -> Published | None:
    """Return the method that a package publishes under this name, None where none does."""
    return find_published("method", name, names())


def source(name: str) -> str:
    """Return the text of the file of a built-in method."""
    return Path(__path__[0], f"{name}.py").read_text(encoding="utf-8")


def find(name: str) -> type[Method]:
    """Return a method by its name, or from a user's file: `path/to/mine.py`."""
    if name.endswith(".py"):
        return only_method(f"'{name}'", load_method_file(Path(os.path.expanduser(name))))
    if known := published_method(name):
        return imported_method(known)
    if name in names():
        return only_method(f"'{name}'", importlib.import_module(f"{__name__}.{name}"))
    raise ConfigError(unknown("method", name, installed_names()))


def imported_method(known: Published) -> type[Method]:
    """Import a method that a package publishes: a class, or a module that defines one."""
    found = known.imported()
    if isinstance(found, ModuleType):
        found = only_method(str(known), found)
    if not (inspect.isclass(found) and issubclass(found, Method)):
        raise ConfigError(f"{known} must be a subclass of partwise.Method or a module with one: {known.entry.value}")
    METHODS.add(inspect.getfile(found))
    return found


def only_method(what: str, module: ModuleType) -> type[Method]:
    """Return the one method that a module defines."""
    found = [value for value in vars(module).values() if inspect.isclass(value) and issubclass(value, Method)]
    found = [value for value in found if value.__module__ == module.__name__]
    if len(found) != 1:
        raise ConfigError(f"{what} must define one subclass of partwise.Method, it defines {len(found)}")
    return found[0]
