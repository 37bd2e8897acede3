"""Refusals: one clear line that says what is wrong, what is allowed, and the nearest name."""

import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from types import TracebackType
from typing import Any

MANY = 30  # names that nobody reads through where the nearest one is given
LONG = 100  # letters of a name or a value that a line has room for
MOST = 50  # problems that are told; whoever has more has handed in something else
PACKAGE = os.path.dirname(__file__)
METHODS = {os.path.join(PACKAGE, "methods", "")}  # folders and files whose code is a method's, although it is installed
LIBRARIES = (PACKAGE, sysconfig.get_path("stdlib"), "<")
INSTALLED = ("site-packages", "dist-packages")


class PartwiseError(Exception):
    """Something that a person can mend: a line for each problem. The command line exits with `exit_code`."""

    exit_code = 1

    @property
    def problems(self) -> list[str]:
        return list(map(str, self.args))

    def __str__(self) -> str:
        return "\n".join(self.problems)


class ConfigError(PartwiseError):
    """Settings, names or combinations of them that cannot be run."""

    exit_code = 2


class DataError(PartwiseError):
    """Data that are missing, broken or do not fit."""

    exit_code = 3


class Diverged(PartwiseError):
    """Too few usable updates came back to go on."""

    exit_code = 4


class DiskFull(PartwiseError):
    """There is no room for what is to be written."""

    exit_code = 5


class Interrupted(PartwiseError):
    """A signal asked the run to end, and it did, with a checkpoint where it can have any."""

    def __init__(self, when: str, signal: int, then: str = "--resume goes on from there"):
        super().__init__(f"interrupted {when}; {then}")
        self.when, self.signal, self.exit_code = when, signal, 128 + signal


class MethodError(ConfigError):
    """A mistake in code that a user brought: the line of it, what is wrong, and where in the run, innermost first."""

    def __init__(self, line: str, problem: str, *places: str):
        super().__init__(line, problem, *places)

    @property
    def problems(self) -> list[str]:
        line, problem, *places = (str(each) for each in self.args if each)
        return [f"{line} ({', '.join(reversed(places))}): {problem}" if places else f"{line}: {problem}"]


class located:
    """Say where an error of a method's own code happened: its line, and this place in the run.

    A class, not a generator: it stands around every step.
    """

    def __init__(self, place: str):
        self.place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, MethodError):
            if self.place not in error.args:
                error.args = (*error.args, self.place)
        elif isinstance(error, Exception | SystemExit) and is_a_mistake(error, trace) and (line := own_line(trace)):
            kind = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
            raise MethodError(line, kind + one_line(error), self.place) from error


class blamed:
    """An error in the library, in a run of a method that is not its own, is most likely that method's."""

    def __init__(self, method: Any):
        self.name, module = type(method).__name__, type(method).__module__
        self.own = module.startswith("partwise.")
        self.file = os.path.basename(getattr(sys.modules.get(module), "__file__", None) or module)

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        known = isinstance(error, PartwiseError | OSError | MemoryError) or type(error).__name__ == "OutOfMemoryError"
        if isinstance(error, Exception) and not (known or self.own or own_line(trace)):
            kind = f"{type(error).__name__}: {one_line(error)}"
            why = f"perhaps {self.name} says or returns something that does not fit (--debug shows where)"
            raise MethodError(self.file, f"{kind}; {why}") from error


def is_a_mistake(error: BaseException, trace: TracebackType | None) -> bool:
    """Whether code is to blame: not data, nor numbers that diverged, nor too little memory, nor what it refuses."""
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which is not imported here
        return False
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if isinstance(error, ConfigError):
        return not own_line(trace)
    return not isinstance(error, PartwiseError)


def own_line(trace: TracebackType | None) -> str:
    """`pulled.py:12 in Pulled.loss`: the innermost line of a traceback that is no library's; empty: there is none."""
    found = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        file = code.co_filename
        librarys = file.startswith(LIBRARIES) or any(folder in file.split(os.sep) for folder in INSTALLED)
        if not librarys or file.startswith(tuple(METHODS)):
            found = f"{os.path.basename(file)}:{trace.tb_lineno} in {code.co_qualname}"
        trace = trace.tb_next
    return found


def first_line(function: Any) -> str:
    """`pulled.py:12: `, where a function begins; nothing for what is none."""
    code = getattr(function, "__code__", None)
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}: " if code else ""


def called(method: Any, name: str) -> str:
    """`pulled.py:12: Pulled.finish`, for a line about what a function returned."""
    return f"{first_line(getattr(method, name, None))}{type(method).__name__}.{name}"


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
    return printable(" ".join(str(what).split())) or type(what).__name__


def printable(text: str) -> str:
    """A text of one line that does nothing to a terminal: names come from other people's files."""
    if text.isprintable():
        return text
    letters = (" " if letter.isspace() else letter for letter in text)
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in letters)


def needed(module: str, extra: str) -> Any:
    """A module of an optional package, imported where it is used, or how to get it."""
    try:
        return import_module(module)
    except (ImportError, RuntimeError) as error:  # a torchvision for another torch fails with the latter
        package = module.partition(".")[0]
        why = "" if isinstance(error, ModuleNotFoundError) else f" ({one_line(error)})"
        raise DataError(f"{package} is needed, but not installed: pip install 'partwise[{extra}]'{why}") from None
