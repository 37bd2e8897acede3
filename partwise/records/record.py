"""Frozen dataclasses that are stored and sent as dicts of their fields.

A `Record` is read with every type checked: content of other types is refused in one line. A `JsonObject` may be of
another version: it is read with the fields that it has.
"""

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Self, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from partwise.errors import PartwiseError

TYPES_IN_WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "ndarray": "an array",
    "Tensor": "a tensor",
}

Json = dict[str, Any]  # what a JSON object holds
AnyRecord = TypeVar("AnyRecord", bound="Record")


class WrongForm(PartwiseError):
    """Content that does not have the form of a record."""


class Record:
    """A dataclass that is stored as a dict of its fields."""


@dataclass(frozen=True)
class JsonObject:
    """A record that is a JSON object with a key for every field; files of other versions may lack or add some."""

    def as_json(self) -> Json:
        """Return the record as JSON has it."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Json) -> Self:
        """Read a record; a key that it does not know is passed over."""
        known = [entry.name for entry in fields(cls)]
        return cls(**{name: values[name] for name in known if name in values})


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name."""
    return {spec.name: getattr(value, spec.name) for spec in fields(value)}


def read_record(kind: type[AnyRecord], content: Any, what: str) -> AnyRecord:
    """Return the record whose fields a dict holds; `what` is its name in an error."""
    return cast("AnyRecord", typed(kind, content, what))


def typed(kind: Any, value: Any, place: str) -> Any:
    """Return a value checked against its annotation `kind`, with records made from their dicts."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        rest = [each for each in inner if each is not NoneType]
        return None if value is None and len(rest) < len(inner) else typed(one_of(rest, value), value, place)
    if origin is Literal:
        if type(value) is not str or value not in inner:
            raise WrongForm(f"{place} is none of {', '.join(map(str, inner))}")
        return value
    if is_dataclass(kind):
        return typed_fields(cast("type", kind), value, place)
    check_type(origin or kind, value, place)
    if origin is list:
        return [typed(inner[0], each, f"{place}[{number}]") for number, each in enumerate(value)]
    if origin is set:
        return {typed(inner[0], each, place) for each in value}
    if origin is tuple:
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        if len(kinds) != len(value):
            raise WrongForm(f"{place} has {len(value)} values, not {len(kinds)}")
        return tuple(typed(each, own, place) for each, own in zip(kinds, value, strict=True))
    if origin is dict:
        named, held = inner
        pairs = {typed(named, k, f"a name in {place}"): typed(held, v, f"{place}[{k!r:.40}]") for k, v in value.items()}
        return type(value)(pairs)  # a Counter stays one
    return value


def one_of(kinds: list[Any], value: Any) -> Any:
    """Return the type of a value: among several dataclasses, the one whose `kind` it names."""
    named = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
    return next((each for each in kinds if getattr(each, "kind", None) == named), kinds[0])


def check_type(kind: type, value: Any, place: str) -> None:
    """Refuse a value of another type; true and false are no numbers, whole numbers are numbers."""
    exact = (int, float) if kind is float else (kind,)
    known = type(value) in exact if kind in (int, float, str, bool) else isinstance(value, kind)
    if not known:
        raise WrongForm(f"{place} is not {TYPES_IN_WORDS.get(kind.__name__, f'a {kind.__name__}')}")


def typed_fields(kind: type, value: Any, place: str) -> Any:
    """Return a dataclass from its fields, or with its fields checked where it is one already."""
    if isinstance(value, kind):
        value = fields_of(value)
    elif not isinstance(value, Mapping):
        raise WrongForm(f"{place} is not a {kind.__name__}")
    hints, missing = hints_of(kind)
    if unknown := [name for name in value if name not in hints]:
        raise WrongForm(f"{place} has a field that no {kind.__name__} has, {str(unknown[0])[:40]!r}")
    if lacking := missing - value.keys():
        raise WrongForm(f"{place} lacks its field '{min(lacking)}'")
    return kind(**{name: typed(hints[name], own, f"{place}.{name}") for name, own in value.items()})


@cache
def hints_of(kind: type) -> tuple[dict[str, object], frozenset[str]]:
    """Return the types of a dataclass's fields by name, and the names of those that have no default."""
    specs, hints = fields(cast("Any", kind)), get_type_hints(kind)
    needed = frozenset(spec.name for spec in specs if spec.default is spec.default_factory is MISSING)
    return {spec.name: hints[spec.name] for spec in specs}, needed
