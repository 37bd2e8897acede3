"""Settings as typed dataclass fields: the sentence beside a field is its help text, its limits are checked at once."""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from partwise.errors import ConfigError, Problems, short, unknown

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
LIST_TYPES = (tuple[int, ...], tuple[float, ...])


def option(
    default: Any,
    sentence: str,
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    below: float | None = None,
    up_to_clients: bool = False,
    check: Callable[[Any], object] | None = None,
    read: Callable[[Any], Any] | None = None,
    when: str | None = None,
) -> Any:
    """Return a field with its default, the sentence that explains it, and the range of allowed values.

    `up_to_clients` limits a number of groups to the number of clients (`Method.check`). `check` raises a ConfigError
    for a value of the right type and range that makes no sense. `read` makes the value of what a user gives, such as a
    file or a mapping, and of the value itself. `when` names the settings with which the option has an effect; with
    others, only its default is allowed: `align` (it is on), `not align`, `guide=global`, `engine=auto|vector`,
    `not depth=1`; several are joined by `and` or `or`.
    """
    limits = {"minimum": minimum, "above": above, "maximum": maximum, "below": below, "up_to_clients": up_to_clients}
    return dataclasses.field(
        default=default, metadata={"help": sentence, **limits, "check": check, "read": read, "when": when}
    )


def field_type(field: dataclasses.Field) -> tuple[Any, bool]:
    """Return the plain type of a field (or its Literal) and whether it may be left unset (None)."""
    declared = field.type
    if isinstance(declared, types.UnionType) or typing.get_origin(declared) is typing.Union:
        members = [member for member in typing.get_args(declared) if member is not type(None)]
        return members[0], True
    return declared, False


def allowed(field: dataclasses.Field) -> str:
    """Return the allowed values of a field in words: `a number above 0`."""
    plain, optional = field_type(field)
    if typing.get_origin(plain) is typing.Literal:
        words = "one of " + ", ".join(map(str, typing.get_args(plain)))
    elif typing.get_origin(plain) is tuple:
        words = f"{'whole ' * (typing.get_args(plain)[0] is int)}numbers separated by commas"
    else:
        words = WORDS[plain]
    signs = {"minimum": "at least", "above": "above", "maximum": "at most", "below": "below"}
    limits = [
        f"{sign} {field.metadata[name]:g}" for name, sign in signs.items() if field.metadata.get(name) is not None
    ]
    return " ".join(filter(None, [words, " and ".join(limits), "(or unset)" if optional else ""]))


def convert(field: dataclasses.Field, value: Any) -> Any:
    """Convert `value` to the field's type, from Python, TOML or the command line; refuse it in one line otherwise."""
    plain, optional = field_type(field)
    if value is None and optional:
        return None
    if read := field.metadata.get("read"):
        value = read(value)
    if typing.get_origin(plain) is typing.Literal and isinstance(value, str) and value not in typing.get_args(plain):
        raise ConfigError(unknown(field.name, value, map(str, typing.get_args(plain))))
    try:
        result = fitting(field, value)
    except (KeyError, OverflowError, TypeError, ValueError):
        takes = allowed(field)
        raise ConfigError(f"{field.name} = {short_repr(value)} is not allowed: {field.name} takes {takes}") from None
    if field.metadata.get("check"):
        field.metadata["check"](result)
    return result


def fitting(field: dataclasses.Field, value: Any) -> Any:
    """Convert `value` to the field's type and check its limits; raise any of Python's errors where it does not fit."""
    plain = field_type(field)[0]
    if typing.get_origin(plain) is typing.Literal:
        typing.get_args(plain).index(value)
        return value
    if typing.get_origin(plain) is tuple:
        items = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
        result = numbers = tuple(parse_plain(typing.get_args(plain)[0], item) for item in items)
    else:
        result = parse_plain(plain, value)
        numbers = (result,) if plain in (int, float) else ()
    if result == () or not all(in_range(field, number) for number in numbers):
        raise ValueError
    return result


def short_repr(value: Any) -> str:
    """Return a value as Python writes it, cut to fit into a line."""
    try:
        return short(repr(value))
    except ValueError:  # Python writes no number of thousands of digits
        return "a number of too many digits"


def parse_plain(plain: type, value: Any) -> Any:
    """Return a value as a plain type; unlike in Python, a bool is never a number and `"False"` is never true."""
    if plain is bool:
        if isinstance(value, bool):
            return value
        return {"true": True, "false": False}[str(value).lower()]
    if isinstance(value, bool | bytes) or (plain is not str and isinstance(value, str) and "_" in value):
        raise TypeError
    if plain is int and isinstance(value, float) and not value.is_integer():
        raise ValueError
    if plain is str and not isinstance(value, str):
        raise TypeError
    if plain is str:
        value.encode()  # refuses half a surrogate, which no file can hold
    return plain(value)


def in_range(field: dataclasses.Field, number: float) -> bool:
    """Return whether a number is finite and within its field's limits."""
    limits = field.metadata
    try:
        finite = math.isfinite(number)
    except OverflowError:  # a whole number that no float can hold
        return False
    return (
        finite
        and (limits.get("minimum") is None or number >= limits["minimum"])
        and (limits.get("above") is None or number > limits["above"])
        and (limits.get("maximum") is None or number <= limits["maximum"])
        and (limits.get("below") is None or number < limits["below"])
    )


# ------------------------------------------------------------------------------ when an option has an effect


@dataclass(frozen=True)
class Clause:
    """A condition on one setting: that it is on or, where values are named, that it has one of them."""

    name: str
    values: tuple[str, ...]
    negated: bool

    def holds(self, value: Any) -> bool:
        """Return whether a value of the setting meets the condition."""
        return (any(means(text, value) for text in self.values) if self.values else bool(value)) != self.negated

    def __str__(self) -> str:
        if not self.values:
            return f"{'without' if self.negated else 'with'} {self.name}"
        return f"{'unless' if self.negated else 'with'} {self.name} = {' or '.join(self.values)}"


def clauses(field: dataclasses.Field) -> list[list[Clause]]:
    """Return the alternatives of a field's `when`, each a list of clauses that must all hold; [] without `when`."""
    when = field.metadata.get("when")
    return [list(map(clause, each.split(" and "))) for each in when.split(" or ")] if when else []


def clause(text: str) -> Clause:
    """Return the condition that a text states: `not guide=global|local`."""
    name, _, values = text.removeprefix("not ").partition("=")
    return Clause(name, tuple(values.split("|")) if values else (), text.startswith("not "))


def condition(field: dataclasses.Field) -> str:
    """Return a field's `when` in words: `with two_phase and with type_a`; '' without `when`."""
    return " or ".join(" and ".join(map(str, each)) for each in clauses(field))


def obstacle(field: dataclasses.Field, values: Mapping[str, object]) -> str:
    """Return the settings that leave an option without effect, as `align = no`; '' if it has an effect."""
    failed = [[each for each in together if not each.holds(values[each.name])] for together in clauses(field)]
    if not all(failed):
        return ""
    every = (f"{each.name} = {as_written(values[each.name])}" for together in failed for each in together)
    return " and ".join(dict.fromkeys(every))


def with_effect(fields: Mapping[str, dataclasses.Field], settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings that have an effect beside the others."""
    values = {name: field.default for name, field in fields.items()} | dict(settings)
    return {name: value for name, value in settings.items() if not obstacle(fields[name], values)}


def as_written(value: Any) -> str:
    """Return a value as users write it: `unset`, `yes`, `0.1`, `1,2`."""
    if value is None or isinstance(value, bool):
        return {None: "unset", True: "yes", False: "no"}[value]
    if isinstance(value, list | tuple):
        return ",".join(map(as_written, value))
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def means(text: str, value: Any) -> bool:
    """Return whether a condition's text means this value: `1e-5` and `0.00001`, `yes` and `true` are the same."""
    if isinstance(value, bool):
        return text in (("yes", "true") if value else ("no", "false"))
    if isinstance(value, int | float):
        with suppress(ValueError):
            return float(text) == value
    return text == as_written(value)


def check_conditions(cls: type) -> None:
    """Refuse a `when` that names no field of its class of settings, or a value that the field cannot have."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for field in fields.values():
        for each in (each for together in clauses(field) for each in together):
            if each.name not in fields:
                raise ConfigError(f"{cls.__name__}.{field.name}, when: {unknown('setting', each.name, fields)}")
            for value in each.values:
                convert(fields[each.name], {"yes": True, "no": False}.get(value, value))


def check_option_types(cls: type) -> None:
    """Refuse a field of a class of settings whose type no option can have."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        field.type = hints[field.name]  # real types, also where a file postpones its annotations
        plain = field_type(field)[0]
        if field.default is dataclasses.MISSING:
            raise ConfigError(f"{cls.__name__}.{field.name} needs a default: option(1.0, 'A sentence.')")
        if plain not in WORDS and plain not in LIST_TYPES and typing.get_origin(plain) is not typing.Literal:
            raise ConfigError(
                f"{cls.__name__}.{field.name} cannot be an option: its type is {plain}, not int, float, bool, str, a "
                "Literal, tuple[int, ...] or tuple[float, ...]; remove the annotation if it is not an option"
            )
    check_conditions(cls)


class Checked:
    """A base for dataclasses of options: every value is converted and checked when an object is made."""

    def __post_init__(self) -> None:
        problems = Problems()
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        for field in fields:
            with problems.collect():
                setattr(self, field.name, convert(field, getattr(self, field.name)))
        problems.tell()
        for field in fields:
            value, without = getattr(self, field.name), obstacle(field, vars(self))
            if without and value != convert(field, field.default):
                problems.add(f"{field.name} = {as_written(value)} has no effect with {without}")
        problems.tell()
