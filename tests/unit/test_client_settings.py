"""Epochs and batch of single clients: what is read, and what is refused."""

import json
import re

import pytest

from partwise.client_settings import ClientSettings, client_settings, read_per_client
from partwise.errors import ConfigError
from partwise.methods.fedavg import FedAvg


def written(tmp_path, *lines):
    file = tmp_path / "clients.csv"
    file.write_text("\n".join(lines), encoding="utf-8-sig")
    return file


def test_a_file_and_a_mapping_say_the_same(tmp_path):
    file = written(tmp_path, "client,epochs,batch", "Graz,2,16", "", "Wien, ,8", "Linz,,", '"Zell, am See",3,')
    own = {"Graz": {"epochs": 2, "batch": 16}, "Wien": {"batch": 8}, "Zell, am See": {"epochs": 3}}
    text = read_per_client(str(file))
    assert json.loads(text) == own and text == read_per_client(own) == read_per_client(text)
    assert FedAvg(per_client=own) == FedAvg(per_client=file) == FedAvg(per_client=text)
    assert client_settings(text, ["Linz", "Wien", "Zell, am See"]) == [
        ClientSettings(),
        ClientSettings(batch=8),
        ClientSettings(epochs=3),
    ]


def test_columns_stand_in_any_order(tmp_path):
    assert json.loads(read_per_client(written(tmp_path, "batch,client", "4,Graz"))) == {"Graz": {"batch": 4}}


@pytest.mark.parametrize(
    "lines, refusal",
    [
        (["client"], "line 1: per_client needs the line client,epochs,batch"),
        (["client,epochs,epochs", "Graz,1,2"], "line 1: per_client needs the line client,epochs,batch"),
        (["client,rounds", "Graz,1"], "line 1: per_client needs the line client,epochs,batch"),
        (["client,epochs", "Graz,0"], "line 2: Graz,0 is not a client and whole numbers from 1"),
        (["client,epochs", "Graz,1.5"], "line 2: Graz,1.5 is not a client and whole numbers from 1"),
        (["client,epochs", "Graz,1", "Wien"], "line 3: Wien is not a client and whole numbers from 1"),
        (["client,epochs", "Graz," + "9" * 5000], "line 2: Graz,999"),
        (["client,epochs", "Graz,1", "Graz,2"], "line 3: client Graz occurs twice"),
    ],
)
def test_a_wrong_line_of_a_file_is_named(lines, refusal, tmp_path):
    with pytest.raises(ConfigError, match=refusal) as error:
        read_per_client(written(tmp_path, *lines))
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    "given, refusal",
    [
        ({}, 'per_client takes a CSV file or numbers by client, as {"Graz"'),
        (3, "per_client takes a CSV file or numbers by client"),
        ({"Graz": 3}, "client Graz has 3; write"),
        ({"Graz": {"batches": 3}}, "unknown setting 'batches'"),
        ({"Graz": {"batch": 2.0}}, "client Graz: batch = 2.0 is not a whole number of at least 1"),
        ({"Graz": {"batch": True}}, "client Graz: batch = True is not a whole number of at least 1"),
        ({"Graz": {"batch": 0}}, "client Graz: batch = 0 is not a whole number of at least 1"),
        ("{Graz", "per_client = {Graz is no JSON; write"),
        ('{"a":' * 100_000, "is no JSON; write"),
        ("nix.csv", "per_client: cannot read 'nix.csv': No such file"),
    ],
)
def test_other_things_are_refused(given, refusal):
    with pytest.raises(ConfigError, match=re.escape(refusal)):
        FedAvg(per_client=given)
