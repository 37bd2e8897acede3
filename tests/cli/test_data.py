"""`partwise data`: what is there, where it was looked for, and how to get it."""

import json

from partwise.data import CATALOGUE
from tests.cli.helpers import refuse, succeed


def test_the_list_names_every_data_set(capsys):
    listed = [line.split()[:1] for line in succeed(capsys, "data").splitlines()]
    assert all([name] in listed for name in CATALOGUE)


def test_a_page_says_where_it_was_looked_for(capsys, tmp_path):
    page = succeed(capsys, "data", "tiny-imagenet", "--data-root", tmp_path)
    assert str(tmp_path) in page and "missing" in page


def test_json(capsys, tmp_path):
    every = json.loads(succeed(capsys, "data", "--json"))
    assert [about["name"] for about in every] == list(CATALOGUE)
    [one] = json.loads(succeed(capsys, "data", "tiny-imagenet", "--json", "--data-root", tmp_path))
    assert one["name"] == "tiny-imagenet" and one["found"] is None
    assert any(str(tmp_path) in place for place in one["looked_in"])


def test_download_of_what_is_there_already(capsys, monkeypatch):
    asked = []
    monkeypatch.setattr("partwise.commands.showing.fetch", lambda *arguments: asked.append(arguments))
    page = succeed(capsys, "data", "digits", "--download", "--data-root", "somewhere")
    assert asked == [("digits", "somewhere")] and page == succeed(capsys, "data", "digits", "--data-root", "somewhere")


def test_refusals(capsys):
    assert "unknown data set 'cfar10'; did you mean 'cifar10'?" in refuse(capsys, "data", "cfar10")
    assert (
        refuse(capsys, "data", "--download") == "error: --download fetches one data set: partwise data NAME --download"
    )
    assert "unknown option '--jsn'; did you mean '--json'?" in refuse(capsys, "data", "--jsn")
