"""The description that a package index shows has no link that leads nowhere there."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from setup import description

ROOT = Path(__file__).parents[2]
TEXT = "See [the guide](docs/guide.md), [PFLlib](https://example.org) and ![a page](docs/page.png)."


def test_without_a_url_links_are_text_and_pictures_are_left_out():
    assert description(TEXT, None) == "See the guide, [PFLlib](https://example.org) and ."


def test_with_a_url_links_and_pictures_are_absolute():
    assert description(TEXT, "https://host/p") == (
        "See [the guide](https://host/p/blob/HEAD/docs/guide.md), [PFLlib](https://example.org) and "
        "![a page](https://host/p/raw/HEAD/docs/page.png)."
    )


def test_the_wheel_holds_the_description(tmp_path):
    build = "from setuptools.build_meta import prepare_metadata_for_build_wheel as p; p('built')"
    (tmp_path / "built").mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "partwise/__init__.py", "partwise/version.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, check=True, capture_output=True)
    [metadata] = tmp_path.glob("built/*.dist-info/METADATA")
    text = metadata.read_text(encoding="utf-8")
    assert "Description-Content-Type: text/markdown" in text and "personalised federated models" in text
    assert not re.search(r"\]\((?!https?:)", text)


def test_links_of_the_readme_lead_somewhere():
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / "README.md").read_text(encoding="utf-8")):
        assert (ROOT / link).exists(), link
