"""The page on federations: its tables of settings are the code's, its files are read, its keys are made."""

import dataclasses
import hashlib
import itertools
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from partwise import methods
from partwise.cli import main
from partwise.errors import ConfigError, Problems
from partwise.federation.protocol.launch import on_server
from partwise.federation.protocol.policy import SIMULATED, Allowed
from partwise.federation.protocol.silo import OWN_DATA, OWN_RUN, OWN_SPLIT, SPLIT_SEED, Silo, read_silo
from partwise.runs.config import make_config
from partwise.runs.settings import Data
from partwise.runs.toml import read_settings
from partwise.studies.audit import audited, plain_and_filtered, shortest
from tests.support.pages import TABLE, blocks, cells

PAGE = "docs/federation.md"
TEXT = (Path(__file__).parents[2] / PAGE).read_text(encoding="utf-8")
DEFAULTS = {field.name: field.default for field in dataclasses.fields(Data)}
SMALL = {"data": "digits", "clients": 4, "partition": "dir:0.3", "engine": "loop", "threads": 1}
OWN: dict[str, Any] = {name: DEFAULTS[name] for name in (*OWN_DATA, *OWN_SPLIT)} | {"split_seed": SPLIT_SEED}


def shown(value: Any) -> str:
    """Return how the page writes a default: as TOML, or `unset`."""
    written = json.dumps(list(value) if isinstance(value, tuple) else value)
    return "unset" if value is None else f"`{written}`"


def settings(table: str) -> dict[str, str]:
    """Return the settings of the table below a line of the page, with their defaults."""
    rows = TABLE.search(TEXT, TEXT.index(f"\n`[{table}]`, what "))["rows"].splitlines()
    return {name.strip("`"): default for name, default, _ in map(cells, rows)}


def test_the_table_of_what_is_allowed_is_the_codes():
    assert settings("allow") == {field.name: shown(field.default) for field in dataclasses.fields(Allowed)}


def test_the_table_of_a_silos_data_is_the_codes():
    expected = {name: shown(default) for name, default in OWN.items()}
    assert settings("data") == {**expected, "data": "required", "ranges": "`{}`"}


def test_what_the_page_says_of_other_settings():
    [run] = re.findall(r"^device = .*# also (.*): the silo decides$", TEXT, re.MULTILINE)
    assert {"device", *run.split(", ")} == {*OWN_RUN}
    assert f"`most_bytes` ({Silo.most_bytes}," in TEXT
    ones = sorted(name for name, value in SIMULATED.items() if value == 1 and value is not True)
    assert ones == sorted(
        ["min_clients", "min_train_samples", "min_test_samples", "min_batch"]
    )  # as the page lists them
    assert SIMULATED["relay"] is True and SIMULATED["loss"] == SIMULATED["scores"] == "exact"


def test_its_files_are_read(tmp_path):
    smallest, graz, run, task, left, files = re.findall(r"^```toml\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    (tmp_path / "smallest.toml").write_text(smallest, encoding="utf-8")
    assert read_silo(tmp_path / "smallest.toml").allow == Allowed()
    (tmp_path / "graz.toml").write_text(graz, encoding="utf-8")
    silo = read_silo(tmp_path / "graz.toml")
    assert (silo.name, silo.allow.parts, silo.allow.min_clients, silo.hosts) == ("Graz", ("body",), 3, None)
    (tmp_path / "left.toml").write_text(left + files, encoding="utf-8")
    assert read_silo(tmp_path / "left.toml").hosts == (0, 999)
    (tmp_path / "run.toml").write_text(run + task, encoding="utf-8")
    written = read_settings(tmp_path / "run.toml", Problems())
    config = on_server(make_config(written.method, written.settings))
    assert config.name == "fedper" and config.method.rounds == 50
    assert (config.data.task, config.data.bins) == ("numbers", (2, 5, 9))


def test_a_method_file_runs_only_where_the_same_bytes_are_listed(tmp_path):
    for name in ("ours", "beside"):
        (tmp_path / f"{name}.py").write_text(f"# {name}\n")
    ours, beside = (hashlib.sha256(f"# {name}\n".encode()).hexdigest() for name in ("ours", "beside"))
    (tmp_path / "silo.toml").write_text('name = "Graz"\n[data]\ndata = "a.csv"\n[allow]\nfiles = ["ours.py"]\n')
    silo = read_silo(tmp_path / "silo.toml")
    assert silo.method("whatever the server calls it", ours) == str(tmp_path / "ours.py")
    (tmp_path / "ours.py").write_text("# ours!\n")
    for digest in (ours, beside):  # changed since, and not listed
        with pytest.raises(ConfigError, match=f"Graz allows no method file with the SHA-256 {digest[:12]}"):
            silo.method("ours.py", digest)


def test_its_keys_are_made(tmp_path, monkeypatch):
    pytest.importorskip("flwr", reason="pip install 'partwise[flower]'")
    monkeypatch.chdir(tmp_path)
    for name in ("Linz", "Wien"):  # the page makes Graz's
        assert main(["keys", ".", "--own", name]) == 0
    commands = [block["text"] for block in blocks(PAGE) if not block["mark"]]
    assert len(commands) == 2
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0
    assert {path.name for path in (tmp_path / "federation" / "silos").iterdir()} == {"Graz.pub", "Linz.pub", "Wien.pub"}
    assert (tmp_path / "federation" / "ca.pem").is_file()


def test_its_class_indexed_uploads_are_those_of_an_audit():
    """FedBN needs a network with norms; it uploads its head, as FedAvg."""
    rows = dict(map(cells, TABLE.search(TEXT, TEXT.index("Some uploads are **class-indexed**"))["rows"].splitlines()))
    said = set()
    for how, uploads in rows.items():
        for names, whose in re.findall(r"((?:`\w+`(?: and )?)+) of ((?:`\w+`(?: and )?)+)", uploads):
            pairs = itertools.product(re.findall(r"`(\w+)`", whose), re.findall(r"`(\w+)`", names))
            said |= {(method, name, how.removesuffix(" class")) for method, name in pairs}
    found, none = set(), set()
    for method in sorted(set(methods.names()) - {"fedbn"}):
        more = {"coordinators_a": 2, "coordinators_b": 2} if method == "fed3p2p" else {"model": "mlp-100"}
        plain, _ = plain_and_filtered(shortest(make_config(method, {**SMALL, **more})))
        classes = {name: entry.classes for name, entry in audited(plain).leaving.items() if entry.classes}
        found |= {(method, name, how) for name, how in classes.items() if name != "head"}
        none |= set() if classes else {method}
    assert found == said
    assert none == set(re.findall(r"`(\w+)`", rows["nothing"]))
