"""Fault 79: names with markup are shown letter by letter: in the card of a model, in a report, on the terminal."""

import html
import re
from html.parser import HTMLParser

import pytest

from partwise.inference.card import as_code, markdown_text
from partwise.reporting.tables import Cells, print_table
from tests.support.commands import succeed

EVIL = "<script>alert(1)</script>"
CLIENTS = ("![x](http://there.example/x.png)", f"{EVIL} &amp;")  # in the order of their numbers
CLASSES = (f"sick {EVIL}", "well `|` <img src=x onerror=alert(1)>")
COLUMN = f"age {EVIL} | [here](javascript:alert(1))"
METHOD = "from partwise import Method\n\n\nclass Mine(Method):\n    '''Its own.'''\n"


class Elements(HTMLParser):
    """The elements of a text, and what is not one."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.text = [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, attributes))

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("markup")
    lines = [f"{COLUMN},label,client"]
    lines += [f"{row},{CLASSES[row % 2]},{client}" for client in CLIENTS for row in range(16)]
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    (folder / "<b>mine.py").write_text(METHOD)
    return folder


@pytest.fixture(scope="module")
def run(folder):
    import partwise

    own = {"data": str(folder / "table.csv"), "partition": "column:client", "rounds": 1}
    partwise.run(str(folder / "<b>mine.py"), out=folder / "run", **own)
    return folder / "run"


def test_fault_79_names_in_a_card(run, tmp_path, capsys):
    for client, name in enumerate(CLIENTS):
        to = tmp_path / f"{client}"
        options = ("--client", str(client), "--format", "safetensors", "--trust", "--to", to)
        succeed(capsys, "export", run, *options)
        card = (to / "README.md").read_text()
        found = Elements(card)
        assert {tag for tag, _ in found.tags} == {"code"} and not any(own for _, own in found.tags)
        assert f"# Client {client}, {name}\n" in found.text  # it is shown, letter by letter
        assert all(text in found.text for text in (*CLASSES, COLUMN, "<b>mine"))
        words = re.sub(r"```.*?```", "", card.split("# Client")[1], flags=re.S)
        assert not set("[]|") & set(words)  # no link, no image, no cell of a table
        assert words.count("`") % 2 == 0


def test_fault_79_names_without_markup_stay_readable():
    assert as_code(["blood pressure", "sex=m", "größe_2"]) == "`blood pressure`, `sex=m`, `größe_2`"
    assert as_code(["a`b", "a|b"]) == "<code>a&#96;b</code>, <code>a&#124;b</code>"
    assert html.unescape(markdown_text("<&>`|*[]\\")) == "<&>`|*[]\\" and not set("<>`|*[]\\") & set(
        markdown_text("<>`|*[]\\")
    )


def test_fault_79_names_in_a_report(run, tmp_path, capsys):
    pytest.importorskip("plotly")
    succeed(capsys, "report", run, "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    found = Elements(page)
    assert [tag for tag, _ in found.tags].count("script") == 3  # the numbers, the library and ours
    assert not any(name.startswith("on") for _, own in found.tags for name, _ in own)
    assert "javascript:" not in str(found.tags) and "<b>mine" not in page and "<b>mine" in found.text


def test_fault_79_names_on_the_terminal(capsys):
    name = "[red]a[/red] [link=http://there.example]b[/link] :warning: \x1b[31mc\x07"
    print_table(Cells(name, ["method", name], [[name, name]], [name]))
    shown = capsys.readouterr().out
    plain = "[red]a[/red] [link=http://there.example]b[/link] :warning: \\x1b[31mc\\x07"
    assert shown.count(plain) == 5 and "\x1b" not in shown and "\x07" not in shown
