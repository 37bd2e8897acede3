"""The built-in methods, a file each, called as the file is; and how methods are found."""

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
        return only_method(f"'{name}'", load_file(Path(os.path.expanduser(name))))
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


def load_file(path: Path) -> ModuleType:
    """Import a user's file under a name of its own; it may import the files beside it."""
    if not path.is_file():
        raise ConfigError(f"there is no method file '{path}'")
    from partwise.streams import stream_key  # needs torch; the names of methods do not

    name = f"partwise_method_{path.stem}_{stream_key(0, str(path.resolve())):x}"  # two files may have the same name
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
