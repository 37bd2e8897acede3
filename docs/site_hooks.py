"""What the site's build does with pages that are written for GitHub (`make docs`; mkdocs calls the functions by name).

There a link such as ../partwise/methods/fedprox.py shows the file: here it leads to a copy in the site. There formulas
stand in blocks of `math`: here they become MathML, which browsers draw without any script.
"""

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
COPIES = "source/"  # the folder of the site for files outside docs/
LINK = re.compile(r"(?<=\]\()[^)\s#:]+")
FORMULA = re.compile(r"^```math\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Every file outside docs/ to which a page leads gets a page of its own."""
    for page in list(files.documentation_pages()):
        for link in LINK.findall(page.content_string):
            target = leads_to(link, page)
            if target.startswith("docs/") or not (ROOT / target).is_file() or in_site(target) in files.src_uris:
                continue
            content = (ROOT / target).read_text(encoding="utf-8")
            if not target.endswith(".md"):
                content = f"# `{target}`\n\n```{PurePosixPath(target).suffix[1:]}\n{content}```\n"
            files.append(File.generated(config, in_site(target), content=content, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links that leave docs/ lead to the copies, and formulas are drawn."""
    here = str(PurePosixPath(page.file.src_uri).parent)

    def turned(link: re.Match[str]) -> str:
        target = leads_to(link[0], page.file)
        return link[0] if target.startswith("docs/") else relpath(in_site(target), here)

    return FORMULA.sub(drawn, LINK.sub(turned, markdown))


def leads_to(link: str, page: File) -> str:
    """The file of the repository to which a link leads that stands on a page of docs/."""
    return normpath(str(PurePosixPath("docs", page.src_uri).parent / link))


def in_site(target: str) -> str:
    """Where the copy of a file lies."""
    return COPIES + target + ("" if target.endswith(".md") else ".md")


def drawn(formula: re.Match[str]) -> str:
    """A formula as MathML; a wide one scrolls."""
    drawing = convert(formula[1].replace(r"\arg", r"\operatorname{arg}"), display="block")
    if unknown := re.search(r"\\(\w+|.)", drawing):
        raise PluginError(f"latex2mathml does not know {unknown[0]}, in the formula {formula[1].strip()}")
    return f'<div style="overflow-x: auto">{drawing}</div>\n'
