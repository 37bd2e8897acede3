"""Epochs and batch of single clients, in place of the run's: `--per-client FILE.csv`, or a mapping in Python."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from partwise.errors import ConfigError, Problems, short, unknown

NUMBERS = ("epochs", "batch")
LONGEST_NUMBER = 9  # of a number in a file
EXAMPLE = '{"Graz": {"epochs": 2, "batch": 16}}'


@dataclass(frozen=True)
class ClientSettings:
    """A client's own numbers; None: the run's."""

    epochs: int | None = None
    batch: int | None = None


def read_per_client(given: Any) -> str:
    """Return epochs and batch by client as JSON, from a mapping, from JSON, or from a CSV file."""
    if isinstance(given, str) and not names_file(given):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            raise ConfigError(f"per_client = {short(given)} is no JSON; write {EXAMPLE}") from None
    elif isinstance(given, str | Path):
        given = read_csv(Path(given).expanduser())
    if not isinstance(given, Mapping) or not given:
        raise ConfigError(f"per_client takes a CSV file or numbers by client, as {EXAMPLE}, not {short(repr(given))}")
    problems = Problems()
    checked: dict[str, dict[str, int]] = {}
    for client, own in given.items():
        with problems.collect():
            checked[str(client)] = checked_numbers(client, own)
    problems.tell()
    return json.dumps(checked, ensure_ascii=False)


def names_file(text: str) -> bool:
    """Return whether a setting names a file, which a node must not read for a server; other texts are JSON."""
    return not text.lstrip().startswith("{")


def checked_numbers(client: Any, own: Any) -> dict[str, int]:
    """Return a client's numbers; refuse others than whole numbers from 1."""
    if not isinstance(own, Mapping) or not own:
        raise ConfigError(f"per_client: client {client} has {short(repr(own))}; write {EXAMPLE}")
    for name, value in own.items():
        if name not in NUMBERS:
            raise ConfigError(f"per_client: client {client}: {unknown('setting', str(name), NUMBERS)}")
        if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
            raise ConfigError(f"per_client: client {client}: {name} = {value!r} is not a whole number of at least 1")
    return {name: int(own[name]) for name in NUMBERS if name in own}


def read_csv(file: Path) -> dict[str, dict[str, int]]:
    """Read a CSV file with the columns client, and epochs, batch or both; an empty cell is the run's own number."""
    try:
        with open(file, encoding="utf-8-sig", newline="") as lines:
            rows = [[cell.strip() for cell in row] for row in csv.reader(lines)]
    except (OSError, UnicodeError, csv.Error) as error:
        raise ConfigError(f"per_client: cannot read '{file}': {getattr(error, 'strerror', None) or error}") from None
    header = rows[0] if rows else []
    if len(set(header)) < max(2, len(header)) or "client" not in header or not set(header) <= {"client", *NUMBERS}:
        raise ConfigError(f"'{file}' line 1: per_client needs the line client,epochs,batch, or one of the two numbers")
    result: dict[str, dict[str, int]] = {}
    for line, row in enumerate(rows[1:], start=2):
        if not any(row):
            continue
        cells = dict(zip(header, row, strict=False))
        numbers = {name: cells[name] for name in NUMBERS if cells.get(name)}
        whole = all(value.isdecimal() and len(value) <= LONGEST_NUMBER and int(value) for value in numbers.values())
        if len(row) != len(header) or not cells["client"] or not whole:
            raise ConfigError(f"'{file}' line {line}: {short(','.join(row))} is not a client and whole numbers from 1")
        if cells["client"] in result:
            raise ConfigError(f"'{file}' line {line}: client {cells['client']} occurs twice")
        result[cells["client"]] = {name: int(value) for name, value in numbers.items()}
    return {client: numbers for client, numbers in result.items() if numbers}


def settings_by_name(per_client: str | None) -> dict[str, ClientSettings]:
    """Return the settings of the clients that have their own, by name."""
    own = {} if per_client is None else json.loads(per_client)
    return {client: ClientSettings(**numbers) for client, numbers in own.items()}


def client_settings(per_client: str | None, names: Sequence[str]) -> list[ClientSettings]:
    """Return the settings of each client, (clients,), by the clients' names."""
    own, usual = settings_by_name(per_client), ClientSettings()
    return [own.get(name, usual) for name in names]


def check_names(per_client: str | None, names: Sequence[str]) -> None:
    """Refuse settings of a client that does not exist."""
    for name in settings_by_name(per_client).keys() - set(names):
        raise ConfigError(f"per_client: {unknown('client', name, names)}")
