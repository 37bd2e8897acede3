"""`partwise methods`: the list, a page, and the list for programs."""

import dataclasses
import json

from partwise.methods import find, names
from partwise.training import Training
from tests.support.commands import refuse, succeed


def test_the_list_names_every_method(capsys):
    first = [line.split()[0] for line in succeed(capsys, "methods").splitlines() if not line.startswith(" ")]
    assert first == names()


def test_json_has_every_method_with_its_own_options(capsys):
    listed = json.loads(succeed(capsys, "methods", "--json"))
    assert [method["name"] for method in listed] == names()
    shared = {spec.name for spec in dataclasses.fields(Training)}
    for method in listed:
        assert method["summary"]
        own = {spec.name for spec in dataclasses.fields(find(method["name"]))} - shared
        assert own <= {option["name"] for option in method["options"]}
    [fcd] = json.loads(succeed(capsys, "methods", "fedfcd", "--json"))
    assert fcd["options"][0] == {
        "name": "align_weight",
        "default": 1.0,
        "help": "Weight of the alignment with the global class means (lambda).",
        "allowed": "a number at least 0",
        "when": "align",
    }


def test_a_page_says_who_shares_each_part(capsys):
    page = succeed(capsys, "methods", "fedbabu")
    lines = [" ".join(line.split()) for line in page.splitlines()]
    assert "body ALL the mean of all participants" in lines
    assert "head FROZEN common to all, never trained or sent" in lines
    assert "ICLR 2022" in page
    page = " ".join(succeed(capsys, "methods", "fed3p2p").split())
    assert "Stage 1, 50 rounds" in page and "Stage 2, 50 rounds" in page
    assert "all but local_search give equal sizes. (with two_phase and with type_a) [one of" in page


def test_a_page_of_a_users_file_lists_its_stages_and_defaults(tmp_path, capsys):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from partwise import ALL, LOCAL, GUIDE, Method, Stage, option\n"
        "class Mine(Method):\n"
        '    lr: float = option(0.5, "A rate.", minimum=0)\n'
        "    def stages(self):\n"
        "        yield Stage(self.phases(), {'*': ALL}, rounds=3)\n"
        "        yield Stage(self.phases(), {'body': GUIDE, 'head': LOCAL}, rounds=4)\n"
    )
    page = " ".join(succeed(capsys, "methods", mine).split())
    assert "Stage 1, 3 rounds: who shares each part: * ALL the mean of all participants" in page
    assert "Stage 2, 4 rounds: who shares each part: body GUIDE the mean of all participants; the client keeps" in page
    assert "--lr A rate. [a number at least 0; default: 0.5]" in page


def test_an_unknown_method_is_refused(capsys):
    assert "did you mean 'fedper'?" in refuse(capsys, "methods", "fedpr")
