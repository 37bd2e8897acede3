"""The page of what a method's functions are handed is what the docstrings say, and its examples hold."""

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_what_its_script_makes():
    made = runpy.run_path(str(DOCS / "make_api.py"))["page"]()
    assert (DOCS / "api.md").read_text(encoding="utf-8") == made, "make it again: python docs/make_api.py"
