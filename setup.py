"""Write the description of the package: README.md, whose links work on a package index too.

There a relative link leads nowhere and a relative picture is not shown. With a `Repository` among the `urls` of
pyproject.toml both become absolute; without one a link keeps its text and a picture is left out.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:)([^)]+)\)")


def description(readme: str, repository: str | None) -> str:
    """Return a README whose relative links and pictures are absolute, or text."""

    def absolute(link: re.Match[str]) -> str:
        picture, text, target = link.groups()
        if not repository:
            return "" if picture else text
        return f"{picture}[{text}]({repository}/{'raw' if picture else 'blob'}/HEAD/{target})"

    return LINK.sub(absolute, readme)


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    setup(
        long_description=description(
            (ROOT / "README.md").read_text(encoding="utf-8"), project.get("urls", {}).get("Repository")
        ),
        long_description_content_type="text/markdown",
    )
