"""Methods and data sets that other installed packages publish, by entry points. Listing them imports none."""

import ast
import hashlib
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from partwise.errors import ConfigError, one_line

GROUPS = {"method": "partwise.methods", "data set": "partwise.datasets"}
OTHERS = "Published by other packages"
PUBLISHED_NAME = re.compile("[a-z][a-z0-9_-]*")  # used as a folder's name and on command lines

PublishedKind = Literal["method", "data set"]


@dataclass(frozen=True)
class Published:
    """A name under which a package publishes a method or a data set."""

    kind: PublishedKind
    entry: EntryPoint

    @property
    def package(self) -> str:
        """Return the name of the package, as pip knows it."""
        return self.entry.dist.name if self.entry.dist else self.entry.module

    @property
    def version(self) -> str:
        """Return the version of the package."""
        return self.entry.dist.version if self.entry.dist else "unknown"

    def __str__(self) -> str:
        return f"{self.kind} '{self.entry.name}' of {self.package} {self.version}"

    def imported(self) -> Any:
        """Import what the entry point names: a class, a function or a module."""
        try:
            return self.entry.load()
        except ConfigError:
            raise
        except (Exception, SystemExit) as error:
            raise ConfigError(f"{self} cannot be imported: {type(error).__name__}: {one_line(error)}") from error

    def headline(self) -> str:
        """Return the first line of the docstring of a method's file or class, or of a data set's function."""
        try:
            tree = ast.parse(Path(str(self.specs()[-1].origin)).read_bytes())
        except (OSError, ValueError, SyntaxError) as error:
            raise ConfigError(f"{self} cannot be read: {one_line(error)}") from None
        inner = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
        named = [node for node in inner if self.entry.attr in (None, node.name)]
        order = (tree, *named) if self.kind == "method" else (*named, tree)
        texts = [ast.get_docstring(node) for node in order]
        return next((text.partition("\n")[0] for text in texts if text), "")

    def digest(self) -> str:
        """Return the SHA-256 of the package's Python files: a method may use those beside its own."""
        outer = next(spec for spec in self.specs() if spec.origin)  # what lies above has no code
        own = Path(str(outer.origin))
        files = sorted(own.parent.rglob("*.py")) if outer.submodule_search_locations else [own]
        known = hashlib.sha256()
        for file in files:
            known.update(f"{file.relative_to(own.parent).as_posix()}\0{file.stat().st_size}\0".encode())
            known.update(file.read_bytes())
        return known.hexdigest()

    def specs(self) -> list[ModuleSpec]:
        """Return the specs of the module and of the packages around it, outermost first, without importing any."""
        try:
            outer, *inner = self.entry.module.split(".")
            found = [find_spec(outer)]
        except (AssertionError, AttributeError, ValueError):  # as each version of Python says that it is no module
            raise ConfigError(f"{self} cannot be imported: it names no module: {self.entry.value}") from None
        for name in inner:
            around = found[-1]
            places = around.submodule_search_locations if around else None
            found.append(PathFinder.find_spec(f"{around.name}.{name}", places) if around and places else None)
        specs = [spec for spec in found if spec]
        if len(specs) < len(found) or not (specs[-1].origin or "").endswith(".py"):
            raise ConfigError(f"{self} cannot be imported: there is no Python file of {self.entry.module}")
        return specs


def published(kind: PublishedKind) -> Mapping[str, tuple[Published, ...]]:
    """Return the published methods or data sets by name; two packages may publish the same name."""
    return _published(kind, tuple(sys.path))


@cache  # some hundred files are read; a package that is installed now is found by the next process
def _published(kind: PublishedKind, path: tuple[str, ...]) -> Mapping[str, tuple[Published, ...]]:
    found = dict[str, tuple[Published, ...]]()
    for entry in sorted(entry_points(group=GROUPS[kind]), key=lambda entry: entry.name):
        found[entry.name] = (*found.get(entry.name, ()), Published(kind, entry))
    return MappingProxyType(found)


def find_published(kind: PublishedKind, name: str, built_in: Collection[str]) -> Published | None:
    """Return what a package publishes under this name, or None; refuse a name that two packages publish."""
    found = published(kind).get(name, ())
    owners = [*(["partwise"] if name in built_in else []), *(f"{each.package} {each.version}" for each in found)]
    if found and len(owners) > 1:
        raise ConfigError(
            f"the {kind} '{name}' is published by {' and by '.join(owners)}: uninstall {found[-1].package}, or rename "
            f"its entry point in the group {GROUPS[kind]}"
        )
    if found and not PUBLISHED_NAME.fullmatch(name):
        raise ConfigError(f"{found[0]}: a name is a small letter, then small letters, digits, _ and - as you like")
    return found[0] if found else None


def summaries(kind: PublishedKind, built_in: Collection[str]) -> list[tuple[str, str]]:
    """Return each published name with its summary and package, or with the reason why it cannot be used."""
    return [(name, _summary(kind, name, built_in)) for name in published(kind)]


def _summary(kind: PublishedKind, name: str, built_in: Collection[str]) -> str:
    try:
        known = find_published(kind, name, built_in)
        return f"{known.headline()} [{known.package} {known.version}]" if known else ""
    except ConfigError as error:
        return str(error)
