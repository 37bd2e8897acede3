"""Refusals: one clear line that says what is wrong, what is allowed, and the nearest name."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from typing import Any

MANY = 30  # names that nobody reads through where the nearest one is given
LONG = 100  # letters of a name or a value that a line has room for
MOST = 50  # problems that are told; whoever has more has handed in something else


class PartwiseError(Exception):
    """Something that a person can mend; the command line prints it as one line and exits with `exit_code`."""

    exit_code = 1


class ConfigError(PartwiseError):
    """Settings, names or combinations of them that cannot be run: a line for each problem."""

    exit_code = 2

    @property
    def problems(self) -> list[str]:
        return list(map(str, self.args))

    def __str__(self) -> str:
        return "\n".join(self.problems)


class DataError(PartwiseError):
    """Data that are missing, broken or do not fit."""

    exit_code = 3


class Diverged(PartwiseError):
    """Too few usable updates came back to go on."""

    exit_code = 4


class Problems(list[str]):
    """Refusals that are collected, so that all of them are told at once."""

    def add(self, *problems: str) -> None:
        """Note what is new of these."""
        self += [problem for problem in problems if problem not in self]
        if len(self) > MOST:
            raise ConfigError(*self[:MOST], "... and more")

    @contextmanager
    def collect(self, place: str | None = None) -> Iterator[None]:
        """Go on behind the `with` block that was refused; `place` says where the setting was written."""
        try:
            yield
        except ConfigError as error:
            self.add(*(f"{place}: {problem}" if place else problem for problem in error.problems))

    def tell(self) -> None:
        if self:
            raise ConfigError(*self)


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """The line for a name that is not known: `unknown method 'fedct'; did you mean 'fedtc'? known: ...`."""
    known = list(known)
    spelled = {each.lower().lstrip("-"): each for each in known}
    near = get_close_matches(name.lower().lstrip("-"), spelled, n=1, cutoff=0.5)
    hint = f"; did you mean '{spelled[near[0]]}'?" if near else ";"
    names = "" if near and len(known) > MANY else f" known: {', '.join(known)}"
    return f"unknown {kind} {short(repr(name))}{hint}{names}"


def short(text: str) -> str:
    """A text that fits into a line with others."""
    return text if len(text) <= LONG else f"{text[:LONG]}..."


def one_line(what: object) -> str:
    """What an error or a message says, without the breaks between its lines."""
    return " ".join(str(what).split()) or type(what).__name__


def needed(module: str, extra: str) -> Any:
    """A module of an optional package, imported where it is used, or how to get it."""
    try:
        return import_module(module)
    except (ImportError, RuntimeError) as error:  # a torchvision for another torch fails with the latter
        package = module.partition(".")[0]
        why = "" if isinstance(error, ModuleNotFoundError) else f" ({one_line(error)})"
        raise DataError(f"{package} is needed, but not installed: pip install 'partwise[{extra}]'{why}") from None
