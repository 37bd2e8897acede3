"""One file a method; the name of the file is the name on the command line."""

import importlib
import importlib.util
import inspect
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

from partwise.errors import ConfigError, unknown
from partwise.method import Method
from partwise.streams import key


def names() -> list[str]:
    """Every method that partwise brings."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def find(name: str) -> type[Method]:
    """A method by its name, or from a file of the user's: `path/to/mine.py`."""
    if name.endswith(".py"):
        module = load_file(Path(name))
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
    """Import a user's file under a name of its own."""
    if not path.is_file():
        raise ConfigError(f"there is no method file '{path}'")
    name = f"partwise_method_{path.stem}_{key(0, str(path.resolve())):x}"  # two files may have the same name
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # postponed annotations and docstrings are looked up there
    try:
        spec.loader.exec_module(module)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"'{path}' cannot be imported: {type(error).__name__}: {error}") from error
    return module
