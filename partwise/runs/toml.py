"""Settings in a TOML file, with the line of each."""

import dataclasses
import os
import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from partwise.code_files import split_network
from partwise.errors import ConfigError, Problems, unknown
from partwise.options import short_repr
from partwise.runs.settings import SECTIONS, Settings

LARGEST_TOML = 1_000_000  # bytes of a file
DEEPEST_TOML = 16  # levels of tables and lists: Python's reader takes time in proportion to their square, or gives up
LONGEST_WORD = 1000  # letters of a word without quotes: Python does not read longer numbers

TOKEN = re.compile(
    r"""
    \"{3}(?:\\.|[^\\])*?(?:\"{3,5}|\Z) | '{3}.*?(?:'{3,5}|\Z)  # texts of several lines
    | "(?:\\.|[^"\\\n])*+"? | '[^'\n]*+'?                      # texts
    | \#[^\n]*+                                                # comments
    | [^\s"'\#\[\]{}=.,]++                                     # words
    | [^\S\n]++ | .                                            # blanks; signs and ends of lines
    """,
    re.VERBOSE | re.DOTALL,
)

Lines = dict[tuple[str, ...], int]  # the line of every table and key, by its path; of the file itself: 1


class Written(NamedTuple):
    """The content of a settings file: the method, the flat settings, and the place of each."""

    method: str | None
    settings: Settings
    places: dict[str, str]

    @property
    def files(self) -> list[str]:
        """Return the settings that name Python files, which are code: its method, a schedule's host, the network."""
        names = self.method, self.settings.get("host"), self.settings.get("model")
        return [name for name in names if isinstance(name, str) and split_network(name)]

    def overridden(self, options: Settings) -> "Written":
        """Return the settings after options on the command line override the file's."""
        given = {name: value for name, value in options.items() if value is not None}
        places = {name: place for name, place in self.places.items() if name not in given}
        return Written(self.method, self.settings | given, places)


def read_settings(path: Path, problems: Problems) -> Written:
    """Read settings, in their table or before the first one; unknown or repeated ones become problems."""
    content, lines = parse_toml(path)
    name, settings, places = None, Settings(), dict[str, str]()

    def place(*keys: str) -> str:
        known = next(keys[:length] for length in range(len(keys), -1, -1) if keys[:length] in lines)
        return f"'{path}' line {lines[known]}"

    def put(value: Any, *keys: str) -> None:
        if keys[-1] in settings:
            problems.add(f"{place(*keys)}: {keys[-1]} is set twice, also in {places[keys[-1]]}")
        else:
            settings[keys[-1]], places[keys[-1]] = value, place(*keys)

    for table, value in content.items():
        entries = value if isinstance(value, dict) else {"name": value}
        if table == "method":
            name = entries.pop("name", None)
            if name is not None and not isinstance(name, str):
                problems.add(f"{place(table, 'name')}: the method's name must be a text, not {short_repr(name)}")
            for key, entry in entries.items():
                put(entry, table, key)
        elif not isinstance(value, dict):
            put(value, table)
        elif table not in SECTIONS:
            problems.add(f"{place(table)}: {unknown('table', table, ['method', *SECTIONS])}")
        else:
            known = [f"{table}.{spec.name}" for spec in dataclasses.fields(SECTIONS[table])]
            for key, entry in entries.items():
                if f"{table}.{key}" in known:
                    put(entry, table, key)
                else:
                    problems.add(f"{place(table, key)}: {unknown('setting', f'{table}.{key}', known)}")
    return Written(name if isinstance(name, str) else None, settings, places)


def parse_toml(path: Path) -> tuple[Settings, Lines]:
    """Return the content of a file; refuse what is not TOML, with the line."""
    try:
        with open(os.path.expanduser(path), "rb") as file:
            content = file.read(LARGEST_TOML + 1)
    except OSError as error:
        raise ConfigError(f"cannot read '{path}': {error.strerror}") from None
    if len(content) > LARGEST_TOML:
        line = content.count(b"\n") + 1
        raise ConfigError(
            f"'{path}' line {line}: the file is longer than {LARGEST_TOML} bytes, too long for a configuration"
        )
    try:
        text = content.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"'{path}' line {line}: not UTF-8, the encoding of TOML files; save the file as UTF-8"
        ) from None
    lines, twice = key_lines(path, text)
    try:
        return tomllib.loads(text), lines
    except tomllib.TOMLDecodeError as error:
        message, _, found = str(error).rpartition(" (at ")
        number = re.match(r"line (\d+)", found)
        line = int(number[1]) if number else max(1, len(text.splitlines()))
        raise ConfigError(*twice or [f"'{path}' line {line}: {message or error}"]) from None


def key_lines(path: Path, text: str) -> tuple[Lines, Problems]:
    """Return the lines of keys and tables, and what occurs twice; refuse deep nesting.

    Python's reader does not tell lines. Of a text that it reads, this one sees the same keys.
    """
    lines: Lines = {(): 1}
    table: tuple[str, ...] = ()
    key, twice = list[str](), Problems()
    line, depth, dots, in_value = 1, 0, 0, False

    def note(keys: tuple[str, ...]) -> None:
        if keys and keys in lines:
            twice.add(f"'{path}' line {line}: {'.'.join(keys)} is set twice, first in line {lines[keys]}")
        lines.setdefault(keys, line)

    for token in TOKEN.findall(text):
        depth += (token in ("[", "{")) - (token in ("]", "}"))
        dots = dots + 1 if token == "." else 0 if token in "[]{}=,\n" else dots
        if max(depth, dots) > DEEPEST_TOML:
            raise ConfigError(f"'{path}' line {line}: nested more than {DEEPEST_TOML} levels deep; no configuration is")
        if len(token) > LONGEST_WORD and token[0] not in "\"'#" and not token.isspace():
            raise ConfigError(f"'{path}' line {line}: a word of {len(token)} letters; put texts in quotes")
        if token == "\n" and (depth <= 0 or not in_value):
            key, depth, in_value = [], 0, False
        elif token == "]" and key and not in_value:
            table = tuple(key)
            note(table)
            key = []
        elif token == "=" and not in_value:
            note((*table, *key))
            in_value = True
        elif not in_value and token[0] not in "[].#" and not token.isspace():
            key.append(token[1:-1] if token[0] in "\"'" else token)
        line += token.count("\n")
    return lines, twice
