"""Numbers as people read them, and texts in columns."""

import math
from collections.abc import Sequence

UNITS = ("", "k", "M", "G", "T", "P", "E")
DIGITS = 4  # significant ones of a number that is no share
FIXED = (-4, 9)  # powers of ten between which a number is written without an exponent


def existing(value: float | None) -> float:
    """Return a number; NaN where there is none."""
    return math.nan if value is None else value


def decimals(value: float | None, factor: float = 1.0, digits: int = 2) -> str:
    """Return a number with `digits` decimals; `-` where there is none."""
    return "-" if value is None or not math.isfinite(value) else f"{factor * value:.{digits}f}"


def measured(value: float | None, percent: bool = True, beside: float | None = None, digits: int = 2) -> str:
    """Return a share in percent with `digits` decimals, another number with four significant digits; `-` for none.

    A deviation has as many decimals as the number that it stands `beside`.
    """
    if value is None or not math.isfinite(value):
        return "-"
    if percent:
        return decimals(value, 100, digits)
    shown = value if beside is None else beside
    size = math.floor(math.log10(abs(shown))) if shown else 0
    return decimals(value, 1, max(0, DIGITS - 1 - size)) if size in range(*FIXED) else f"{value:.{DIGITS - 1}e}"


def with_unit(quantity: str, percent: bool) -> str:
    """Return the title of an axis."""
    return f"{quantity} (%)" if percent else quantity


def amount(value: float, unit: str = "B") -> str:
    """Return `1.5 MB` or `32 GFLOP`."""
    value = float(f"{value:.3g}")  # first: 999.6 kB are 1 MB
    size = min(len(UNITS) - 1, max(0, int(math.log10(value) // 3))) if value >= 1 else 0
    return f"{value / 1000**size:.3g} {UNITS[size]}{unit}".strip()


def in_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for every row, its cells below those of the row before."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
