"""The pages of the methods say what the code does: their lines, options, commands, bytes and links."""

import re
import shlex
from pathlib import Path

import pytest

from partwise.cli import main
from partwise.methods import find, names
from partwise.network import models
from partwise.options import convert
from partwise.reporting.methods import own_fields

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "methods"
INDEX = (FOLDER / "README.md").read_text(encoding="utf-8")
PAPERS = {
    "fed3p2p": ["fed3p2p"],
    "fedtc": ["fedtc"],
    "dualfed": ["dualfed"],
    "fedfcd": ["fedfcd"],
    "scheduling": ["vanilla", "anti"],
}
# A section each, of one page.
SIMPLE = ["fedavg", "fedprox", "fedper", "fedrep", "lg_fedavg", "fedbabu", "fedbn", "local", "central"]
OWN_PAGE = [name for name in names() if name not in PAPERS and (FOLDER / f"{name}.md").is_file()]
METHODS = PAPERS | {"simple": SIMPLE} | {name: [name] for name in OWN_PAGE}
PAGES = {name: (FOLDER / f"{name}.md").read_text(encoding="utf-8") for name in METHODS}
# Six clients, because fed3p2p makes five groups of them.
SMALL = ["--data", "made", "--rounds", "2", "--clients", "6", "--train-samples", "20", "--quiet"]
every_page = pytest.mark.parametrize("page", PAGES)
every_method = pytest.mark.parametrize(("page", "method"), [(page, name) for page in METHODS for name in METHODS[page]])


def blocks(page, kind):
    return re.findall(rf"```{kind}\n(.*?)```", PAGES[page], re.DOTALL)


def said_of(method, page):
    """The section that has the method's name, where its page has sections of methods; otherwise the page."""
    found = re.search(rf"^## `{method}`\n(.*?)(?=^## |\Z)", PAGES[page], re.DOTALL | re.MULTILINE)
    return found[1] if found else PAGES[page]


def rows(text):
    """The cells of every row of every table."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def lines(text):
    return "\n".join(["", *(line.strip() for line in text.splitlines()), ""])


def occurs(quoted, source):
    """Whether these lines follow one another in the source, however far they are indented."""
    return lines(quoted) in lines(source)


def test_a_line_that_differs_does_not_occur():
    assert occurs("b = 2\nc = 3", "a = 1\n    b = 2\n    c = 3\n")
    assert not occurs("b = 2", "b = 20") and not occurs("a = 1\nc = 3", "a = 1\nb = 2\nc = 3")


@every_page
def test_quoted_lines_stand_in_the_source(page):
    quotations = blocks(page, "python")
    assert quotations
    for block in quotations:
        path, _, quoted = block.removeprefix("# ").partition("\n")
        source = (ROOT / path).read_text(encoding="utf-8")
        for passage in quoted.strip().split("\n\n"):
            assert occurs(passage, source), f"{path} does not hold:\n{passage}"


@every_method
def test_every_method_has_its_equations_beside_its_own_lines(page, method):
    said = said_of(method, page)
    if page != "scheduling":  # whose methods are made elsewhere
        assert f"```python\n# partwise/methods/{method}.py\n" in said
    assert re.search(r"```math\n.+?```", said, re.DOTALL)


@every_method
def test_options_are_all_told_with_their_defaults(page, method):
    told = {}
    for cells in rows(said_of(method, page)):
        found = re.findall(r"`--([a-z0-9-]+)`", cells[0])
        defaults = cells[1].split(", ") if found else []
        told |= dict(zip(found, defaults * len(found) if len(defaults) == 1 else defaults, strict=True))
    fields = {field.name.replace("_", "-"): field for field in own_fields(find(method))}
    assert set(told) == set(fields)
    for name, field in fields.items():
        value = {"yes": True, "no": False, "unset": None}.get(told[name], told[name])
        assert convert(field, value) == field.default, name


@pytest.mark.parametrize("page", PAGES)
def test_commands_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = [line for block in blocks(page, "sh") for line in block.splitlines()]
    assert commands and all(line.startswith(("partwise run ", "partwise compare ")) for line in commands)
    assert {name for line in commands for name in shlex.split(line)} >= set(METHODS[page])
    for line in commands:
        short = ["--eval-at", "1"] if "--eval-at" in line else []
        short += ["--rounds-1", "1", "--rounds-2", "1"] if "--rounds-1" in line else []  # they would set aside --rounds
        assert main([*shlex.split(line)[1:], *SMALL, *short]) == 0, line


def floats(model, shape, classes, *selected):
    """Parameters of a network's parts or layers."""
    tensors = models.build(model, shape, classes).tensors()
    return sum(value.numel() for name, value in tensors.items() if name.startswith(selected) and "running" not in name)


GREY, COLOUR = (1, 28, 28), (3, 32, 32)


@pytest.mark.parametrize(
    ("page", "model", "shape", "classes", "selected"),
    [
        ("fed3p2p", "convnet-f", GREY, 10, [("body.", "head."), ("body.fc1.",)]),
        ("fed3p2p", "convnet-c", COLOUR, 10, [("body.", "head."), ("body.fc1.",)]),
        ("fed3p2p", "convnet-c", COLOUR, 100, [("body.", "head.")]),
        ("fedtc", "cnn-5x5", COLOUR, 10, [("body.", "head."), ("body.",), ("head.",)]),
        ("fedtc", "resnet18", COLOUR, 100, [("body.", "head."), ("body.",), ("head.",)]),
        ("dualfed", "resnet18", COLOUR, 7, [("body.", "head.")]),
        ("scheduling", "cnn-5x5", GREY, 10, [("body.conv1.",), ("body.conv1.", "body.conv2."), ("body.", "head.")]),
        ("scheduling", "cnn-5x5", GREY, 10, [("body.fc1.",), ("body.conv2.", "body.fc1."), ("body.",)]),
    ],
)
def test_what_is_sent_is_as_large_as_the_network(page, model, shape, classes, selected):
    for parts in selected:
        number = floats(model, shape, classes, *parts)
        assert re.search(rf"\b{number:,}\b(?!,)", PAGES[page]), f"{number:,}"


@pytest.mark.parametrize("page", ["fedtc", "dualfed"])
def test_bytes_are_four_times_the_floats(page):
    _, table = PAGES[page].split("| floats, each way | bytes, each way |\n|---|---|---|\n")
    for _, sent, size in rows(table.split("\n\n")[0]):
        assert int(size.replace(",", "")) == 4 * int(sent.replace(",", ""))


@pytest.mark.parametrize(
    ("model", "shape", "classes", "held"),
    [("mlp-100", GREY, 10, 2), ("cnn-5x5", COLOUR, 10, 2), ("cnn-5x5", COLOUR, 100, 10)],
)
def test_fedfcd_sends_class_means_and_receives_a_classifier_and_all_means(model, shape, classes, held):
    head = floats(model, shape, classes, "head.")
    size = head // classes - 1  # of a feature
    up, down = held * (4 * size + 4 + 4), 4 * (head + classes * size)
    assert f"| {up:,} | {down:,} |" in PAGES["fedfcd"]


@pytest.mark.parametrize("page", PAPERS)
def test_tables_that_can_be_run_again_are_there(page):
    named = re.findall(r"`partwise reproduce ([^` ]*)(?: --recorded)?`", PAGES[page])
    assert named
    for name in named:
        assert (ROOT / "partwise" / "papers" / f"{name}.toml").is_file(), name


@pytest.mark.parametrize("text", [*PAGES.values(), INDEX], ids=[*PAGES, "index"])
def test_links_lead_somewhere(text):
    for link in re.findall(r"\[[^\]]*\]\(([^)#]+)[^)]*\)", text):
        assert (FOLDER / link).is_file(), link


def test_every_method_has_a_page_or_a_section():
    assert sorted(method for methods in METHODS.values() for method in methods) == names()


def test_the_index_has_every_method_once_and_its_links_lead_there():
    listed = [re.search(r"`(\w+)`", cells[0]) for cells in rows(INDEX)]
    assert sorted(match[1] for match in listed if match) == names()
    for page, methods in METHODS.items():
        for method in methods:
            section = f"#{method}" if page == "simple" else ""
            assert f"| [`{method}`]({page}.md{section}) |" in INDEX
            assert not section or f"## `{method}`\n" in PAGES[page]
