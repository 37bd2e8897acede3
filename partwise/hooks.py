"""Mistakes in a method's class that Python accepts: hooks that are misspelt, or that take other arguments."""

import inspect
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from types import CodeType, FunctionType
from typing import Any

from partwise.errors import NEAR, ConfigError, first_line, short

MAY_BE_NONE = (None, "predict_global")  # the one hook that may be None


@cache
def check_hooks(method: type, base: type) -> None:
    """Refuse names that nothing uses and that are nearly those of the base class, and hooks with other arguments."""
    classes = method.__mro__[: method.__mro__.index(base)]
    own = {name: value for cls in reversed(classes) for name, value in vars(cls).items() if not name.startswith("_")}
    known = {name for name in dir(base) if not name.startswith("_")}
    options = {name for cls in classes for name in inspect.get_annotations(cls)}
    used = {word for cls in classes for value in vars(cls).values() for word in names_and_texts(value)}
    problems = []
    for name, value in own.items():
        near = get_close_matches(name, known, n=1, cutoff=NEAR)
        if near and name not in known | options | used:
            problems.append(
                f"{first_line(value)}{method.__name__}.{name} is not used by partwise; did you mean '{near[0]}'?"
            )
        expected = getattr(base, name, None)
        if isinstance(value, FunctionType) and isinstance(expected, FunctionType) and not fits(value, expected):
            wanted = ", ".join(list(inspect.signature(expected).parameters))
            problems.append(f"{first_line(value)}{method.__name__}.{name} must take ({wanted})")
        if isinstance(expected, FunctionType) and not is_function(value) and (value, name) != MAY_BE_NONE:
            problems.append(f"{method.__name__}.{name} must be a function, not {short(repr(value))}")
    if problems:
        raise ConfigError(*problems)


def is_function(value: Any) -> bool:
    """Return whether an attribute is a function, a property or a class's method."""
    return callable(value) or isinstance(value, property | classmethod | staticmethod)


def fits(function: FunctionType, expected: FunctionType) -> bool:
    """Return whether a function can be called with the arguments of another."""
    try:
        inspect.signature(function).bind(*inspect.signature(expected).parameters)
    except TypeError:
        return False
    return True


def names_and_texts(value: Any) -> Iterator[str]:
    """Return every name and text in a class attribute: in a function's code, a property or a dict."""
    if isinstance(value, str):
        yield from value.split()
    elif isinstance(value, CodeType):
        yield from value.co_names
        for constant in value.co_consts:
            yield from names_and_texts(constant)
    elif isinstance(value, FunctionType):
        yield from names_and_texts(value.__code__)
    elif isinstance(value, property | classmethod | staticmethod):
        yield from names_and_texts(value.fget if isinstance(value, property) else value.__func__)
    elif isinstance(value, tuple | list | frozenset | dict):
        for each in value:
            yield from names_and_texts(each)
