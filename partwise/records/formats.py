"""Write the files of a run: the same bytes for the same values, and nothing that harms a spreadsheet or terminal."""

import csv
import io
import json
import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from partwise.errors import printable
from partwise.records.record import Json


def as_safetensors(tensors: dict[str, Tensor], about: dict[str, str]) -> bytes:
    """Return a safetensors file, the same bytes for the same tensors; safetensors writes `about` in any order."""
    from safetensors.torch import save  # a run that writes no model does without

    raw = save(tensors, about)
    length = int.from_bytes(raw[:8], "little")
    header = {**json.loads(raw[8 : 8 + length]), "__metadata__": dict(sorted(about.items()))}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    return len(text).to_bytes(8, "little") + text + raw[8 + length :]


def as_json(value: Any) -> bytes:
    """Return a JSON file."""
    return (json.dumps(value, indent=2) + "\n").encode()


def as_csv(rows: Sequence[Json]) -> bytes:
    """Return CSV: a line of names and a line for every row; None is an empty cell."""
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writerow({key: safe_cell(key) for key in rows[0]})
    table.writerows({key: safe_cell(value) for key, value in row.items()} for row in rows)
    return text.getvalue().encode()


def safe_cell(value: Any) -> Any:
    """Make a cell safe for terminals and spreadsheets: an apostrophe marks it as text, not a formula."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(tuple("=+-@")) and not is_numeric_text(text) else text


def is_numeric_text(text: str) -> bool:
    """Return whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
