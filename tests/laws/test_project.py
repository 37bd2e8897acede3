"""The files by which others join the project agree with the code: versions, targets, contacts."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from partwise.version import __version__

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def test_the_citation_names_this_version_and_no_invented_person():
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["version"] == __version__
    assert citation["authors"] == PROJECT["authors"] == [{"name": "The partwise authors"}]
    assert len(citation["references"]) == 5 and all(paper["authors"] for paper in citation["references"])


def test_workflows_pages_and_the_script_call_targets_that_the_makefile_has():
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    called = {"tests.yml": "test", "docs.yml": "docs", "publish.yml": "test-dist"}
    assert {path.name for path in WORKFLOWS} == set(called)
    for path in WORKFLOWS:
        steps = [
            step.get("run", "") for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]
        ]
        assert f"make {called[path.name]}" in [step.partition(" #")[0] for step in steps]
    tiers = yaml.safe_load(read(".github/workflows/tests.yml"))["jobs"]["tiers"]["strategy"]["matrix"]["tier"]
    pages = read("CONTRIBUTING.md") + read("docs/releasing.md")
    named = re.findall(r"`make ([a-z -]+)[`A-Z]", pages) + re.findall(r"^make (\S+)$", read(".ci/run"), re.MULTILINE)
    words = {word for line in [*named, *tiers] for word in line.split()}
    assert len(words) > 8 and words <= targets


def test_every_supported_python_is_tested():
    supported = [line.split()[-1] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    [tested] = [
        job["strategy"]["matrix"]["python"]
        for job in yaml.safe_load(read(".github/workflows/tests.yml"))["jobs"].values()
        if "python" in job.get("strategy", {}).get("matrix", {})
    ]
    assert tested == supported and PROJECT["requires-python"] == f">={supported[0]}"
    assert re.search(r"FROM python:(3\.\d+)-slim", read("Dockerfile"))[1] in supported


@pytest.mark.parametrize("page", ["SECURITY.md", "CODE_OF_CONDUCT.md"])
def test_reports_go_through_the_repositorys_host(page):
    text = read(page)
    assert "Report a vulnerability" in text and not re.search(r"\w@\w|https?://", text)


def test_the_links_of_the_pages_lead_to_files():
    for page in ("CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"):
        links = [link for link in re.findall(r"\]\(([^)#]+)", read(page)) if not link.startswith("https:")]
        assert all((ROOT / link).is_file() for link in links), page
