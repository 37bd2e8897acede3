"""Refusals: one clear line that says what is wrong, what is allowed, and the nearest name."""

from collections.abc import Iterable
from difflib import get_close_matches


class PartwiseError(Exception):
    """Something that a person can mend; the command line prints it as one line and exits with `exit_code`."""

    exit_code = 1


class ConfigError(PartwiseError):
    """A setting, a name or a combination of them that cannot be run."""

    exit_code = 2


class DataError(PartwiseError):
    """Data that are missing, broken or do not fit."""

    exit_code = 3


class Diverged(PartwiseError):
    """Too few usable updates came back to go on."""

    exit_code = 4


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """The line for a name that is not known: `unknown method 'fedct'; did you mean 'fedtc'? known: ...`."""
    known = list(known)
    near = get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean '{near[0]}'?" if near else ";"
    return f"unknown {kind} '{name}'{hint} known: {', '.join(known)}"
