"""What a run's files are made of: the same bytes for the same values, and nothing that does harm where it is opened."""

import csv
import io
import json
import math
from typing import Any

from torch import Tensor

from partwise.errors import printable


def as_safetensors(tensors: dict[str, Tensor], about: dict[str, str]) -> bytes:
    """Return a safetensors file, the same bytes for the same tensors; safetensors itself orders `about` anyhow."""
    from safetensors.torch import save  # a run that writes no model does without

    raw = save(tensors, about)
    length = int.from_bytes(raw[:8], "little")
    header = {**json.loads(raw[8 : 8 + length]), "__metadata__": dict(sorted(about.items()))}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    return len(text).to_bytes(8, "little") + text + raw[8 + length :]


def as_json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    """Return CSV: a line of names and a line for every row; None is an empty cell."""
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows({key: harmless(value) for key, value in row.items()} for row in rows)
    return text.getvalue().encode()


def harmless(value: Any) -> Any:
    """Make a cell safe for terminals and spreadsheets: an apostrophe marks it as text, not a formula."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(tuple("=+-@")) and not is_number(text) else text


def is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
