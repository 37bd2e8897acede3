"""Blocks and tables of the documentation."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"^(?P<mark><!-- not run: [^\n]+ -->\n)?```(?P<kind>python|py|sh)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
TABLE = re.compile(r"^\|(?P<head>.*)\|\n\|[-|: ]+\|\n(?P<rows>(?:\|.*\|\n)+)", re.MULTILINE)


def blocks(page: str) -> list[re.Match[str]]:
    return list(BLOCK.finditer((ROOT / page).read_text(encoding="utf-8")))


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip().strip("|").split("|")]
