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

MOST_LISTED = 30  # names too many to list where a near one is suggested
NEAR = 0.75  # smallest similarity, by difflib, of a name that is suggested: `los` and `loss` have 0.86
SHORTEST = 3  # letters that a name must have to be suggested as the beginning of another
LINE_LETTERS = 100  # letters of a name or a value that a line has room for
MOST_PROBLEMS = 50  # problems to report; with more, the input is of another kind
PACKAGE = os.path.dirname(__file__)
METHODS = {os.path.join(PACKAGE, "methods", "")}  # folders and files whose code is a method's, although it is installed
LIBRARIES = (PACKAGE, sysconfig.get_path("stdlib"), "<")
INSTALLED = ("site-packages", "dist-packages")


class PartwiseError(Exception):
    """A problem that a user can solve: one line each. The command line exits with `exit_code`."""

    exit_code = 1

    @property
    def problems(self) -> list[str]:
        """Return the problems, a line each."""
        return list(map(str, self.args))

    def __str__(self) -> str:
        return "\n".join(self.problems)


class ConfigError(PartwiseError):
    """Settings, names or combinations of them that are not allowed."""

    exit_code = 2


class DataError(PartwiseError):
    """Data that are missing, broken or do not fit."""

    exit_code = 3


class Diverged(PartwiseError):
    """Too few usable updates came back to go on."""

    exit_code = 4


class DiskFull(PartwiseError):
    """No space is left for a file."""

    exit_code = 5


class Interrupted(PartwiseError):
    """A signal ended the run, which wrote a checkpoint if it has any."""

    def __init__(self, when: str, signal: int, then: str = "continue with --resume"):
        super().__init__(f"interrupted {when}; {then}")
        self.when, self.signal, self.exit_code = when, signal, 128 + signal


class MethodError(ConfigError):
    """A mistake in a user's code: its line, the problem, and the places in the run, innermost first."""

    def __init__(self, line: str, problem: str, *places: str):
        super().__init__(line, problem, *places)

    @property
    def problems(self) -> list[str]:
        """Return one line: where in the code, the places in the run from the outside in, and the problem."""
        line, problem, *places = (str(each) for each in self.args if each)
        return [f"{line} ({', '.join(reversed(places))}): {problem}" if places else f"{line}: {problem}"]


class located:
    """Add the line and this place in the run to an error in a method's code.

    A class, not a generator, because it surrounds every step and must be fast.
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
    """Blame the method for an unexpected error in the library, unless the method is built in."""

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
            why = f"perhaps {self.name} declares or returns something of the wrong form (--debug shows where)"
            raise MethodError(self.file, f"{kind}; {why}") from error


def is_a_mistake(error: BaseException, trace: TracebackType | None) -> bool:
    """Return whether code is to blame, not data, divergence, too little memory or a deliberate refusal."""
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which is not imported here
        return False
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if isinstance(error, ConfigError):
        return not own_line(trace)
    return not isinstance(error, PartwiseError)


def own_line(trace: TracebackType | None) -> str:
    """Return the innermost line of a traceback outside libraries, as `pulled.py:12 in Pulled.loss`; or ''."""
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
    """Return where a function begins, as `pulled.py:12: `; '' for anything but a function."""
    code = getattr(function, "__code__", None)
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}: " if code else ""


def called(method: Any, name: str) -> str:
    """Return a method's function by its place, as `pulled.py:12: Pulled.finish`, for a message about its result."""
    return f"{first_line(getattr(method, name, None))}{type(method).__name__}.{name}"


class Problems(list[str]):
    """Problems that are collected, to report all of them in one error."""

    def add(self, *problems: str) -> None:
        """Add the problems that are not in the list yet."""
        self += [problem for problem in problems if problem not in self]
        if len(self) > MOST_PROBLEMS:
            raise ConfigError(*self[:MOST_PROBLEMS], "... and more")

    @contextmanager
    def collect(self, place: str | None = None) -> Iterator[None]:
        """Collect a ConfigError raised in the block and continue after it; `place` is where the setting was written."""
        try:
            yield
        except ConfigError as error:
            self.add(*(f"{place}: {problem}" if place else problem for problem in error.problems))

    def tell(self) -> None:
        """Raise a ConfigError with all problems, if there are any."""
        if self:
            raise ConfigError(*self)


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the line for an unknown name: `unknown method 'fedct'; did you mean 'fedtc'? known: ...`."""
    known = list(known)
    near = nearest(name, known)
    hint = f"; did you mean '{near}'?" if near else ";"
    names = f" known: {', '.join(known)}"
    if len(known) > MOST_LISTED and (near or kind == "option"):
        names = "" if near else " --help lists the options"
    return f"unknown {kind} {short(repr(name))}{hint}{names}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known name that was likely meant; '' where none is near.

    That is a similar name, one of the same letters, or the only one that begins like it.
    """
    typed = name.lower().lstrip("-")
    spelled = {each.lower().lstrip("-"): each for each in known}
    near = get_close_matches(typed, spelled, n=1, cutoff=NEAR)
    near += [each for each in spelled if sorted(each) == sorted(typed)]
    begun = [
        each
        for each in spelled
        if min(len(each), len(typed)) >= SHORTEST and (each.startswith(typed) or typed.startswith(each))
    ]
    near += begun if len(begun) == 1 else []
    return spelled[near[0]] if near else ""


def short(text: str) -> str:
    """Return a text, cut to a length that fits into a line."""
    return text if len(text) <= LINE_LETTERS else f"{text[:LINE_LETTERS]}..."


def one_line(what: object) -> str:
    """Return an error or a message as one line; several problems are separated by semicolons."""
    what = "; ".join(what.problems) if isinstance(what, PartwiseError) else what
    return printable(" ".join(str(what).split())) or type(what).__name__


def printable(text: str) -> str:
    """Return a text of one line without control characters: names come from other people's files."""
    if text.isprintable():
        return text
    letters = (" " if letter.isspace() else letter for letter in text)
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in letters)


def needed(module: str, extra: str) -> Any:
    """Import a module of an optional package where it is used; refuse with the command that installs it."""
    try:
        return import_module(module)
    except (ImportError, RuntimeError) as error:  # a torchvision for another torch fails with the latter
        package = module.partition(".")[0]
        why = "" if isinstance(error, ModuleNotFoundError) else f" ({one_line(error)})"
        raise DataError(f"{package} is needed, but not installed: pip install 'partwise[{extra}]'{why}") from None
