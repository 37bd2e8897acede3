"""The reference is what the docstrings say, its examples hold, and it has every public name."""

import re
import runpy
from pathlib import Path

import partwise

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_what_its_script_makes():
    made = runpy.run_path(str(DOCS / "make_api.py"))["page"]()
    assert (DOCS / "api.md").read_text(encoding="utf-8") == made, "make it again: python docs/make_api.py"


def test_every_public_name_stands_on_the_page():
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    assert {*partwise.__all__} <= {*re.findall(r"\w+", page)}
