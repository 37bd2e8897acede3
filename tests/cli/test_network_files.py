"""`--model FILE.py:NAME`: runs, sweeps, runs that continue, and models that are taken away."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

import partwise
from partwise.errors import ConfigError
from tests.support.commands import read_json, refuse, succeed, without_seconds
from tests.support.files import read_tree
from tests.support.nets import write_nets
from tests.support.patients import run_patients, taken

DATA = ("--data", "made", "--clients", "4", "--rounds", "2", "--train-samples", "64")
OWN = (*DATA, "--model", "nets.py:Net")


@pytest.fixture(autouse=True)
def nets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_nets(tmp_path)


def test_a_run_keeps_the_file_and_its_sum_and_its_configuration_runs_again(capsys, nets, tmp_path):
    succeed(capsys, "run", "fedper", *OWN, "--out", "run")
    code = nets.read_bytes()
    lines = Path("run", "config.toml").read_text().splitlines()
    at = lines.index('model = "nets.py:Net"')
    assert lines[at + 1 : at + 3] == [f'# lies at "{nets}"', f"# SHA-256 {hashlib.sha256(code).hexdigest()}"]
    assert Path("run", "network-copy.py").read_bytes() == code
    known = read_json(Path("run", "model.json"))["network"]
    assert (known["name"], known["file"], known["sha256"]) == (
        "nets.py:Net",
        "network-copy.py",
        hashlib.sha256(code).hexdigest(),
    )
    succeed(capsys, "run", "--config", "run/config.toml", "--out", "again")
    first, again = (read_tree(tmp_path / name / "models") for name in ("run", "again"))
    assert sorted(first.values()) == sorted(again.values())
    succeed(capsys, "run", "fedper", *DATA, "--out", "run", "--overwrite")
    assert not Path("run", "network-copy.py").exists()


def test_a_run_continues_with_the_same_file_alone(capsys, nets):
    succeed(capsys, "run", "fedper", *OWN, "--out", "whole", "--rounds", "3")
    succeed(capsys, "run", "fedper", *OWN, "--out", "run")
    longer = ("run", "fedper", *OWN, "--out", "run", "--rounds", "3", "--resume")
    succeed(capsys, *longer)
    whole, continued = (read_tree(Path(name, "models")) for name in ("whole", "run"))
    assert sorted(whole.values()) == sorted(continued.values())
    assert "results: run" in succeed(capsys, *longer)  # finished: it is shown
    nets.write_text(nets.read_text() + "# changed\n")
    before = read_tree(Path("run"))
    assert "holds a run with other settings: # SHA-256" in refuse(capsys, *longer)
    assert read_tree(Path("run")) == before


def test_a_sweep_tries_networks_and_refuses_all_mistakes_before_the_first_run(capsys):
    given = ("sweep", "fedper", *DATA, "--lr", "0.05", "--out", "sweep", "--quiet")
    line = refuse(capsys, *given, "--model", "nets.py:Net,nets.py:smal")
    assert (
        line.startswith("error: 'nets.py': unknown network 'smal'; did you mean 'small'?")
        and not Path("sweep").exists()
    )
    assert "nets.py:" in succeed(capsys, *given, "--model", "nets.py:Net,nets.py:small")
    trials = {path.name for path in Path("sweep", "fedper").iterdir()}
    assert trials == {"model=nets.py-Net", "model=nets.py-small"}


def test_a_comparison_draws_anew_for_each_seed_and_gives_what_single_runs_give(capsys):
    succeed(capsys, "compare", "local", "fedper", *OWN, "--seeds", "0,1", "--out", "compared", "--engine", "vector")
    succeed(capsys, "run", "fedper", *OWN, "--seed", "1", "--out", "alone", "--engine", "vector")
    both = [without_seconds(Path(place, "metrics.jsonl")) for place in ("compared/fedper/seed-1", "alone")]
    assert both[0] == both[1] != without_seconds(Path("compared", "fedper", "seed-0", "metrics.jsonl"))


def test_models_are_used_where_their_code_is_trusted(capsys, tmp_path):
    result = run_patients(tmp_path, "fedper", model="nets.py:small")
    x = result.federation.source.x[:9]
    folder = taken(tmp_path / "run", tmp_path / "elsewhere")
    given = ("predict", folder, tmp_path / "patients.csv", "--client", "Graz")
    said = (
        f"'{folder}' needs code to predict, the network nets.py:small in network-copy.py: read it first, then execute "
        "it with trust=True (--trust), or pass the network with load_model(..., model=Net)"
    )
    assert refuse(capsys, *given) == f"error: {said}"
    assert len(succeed(capsys, *given, "--trust").splitlines()) == 91
    own: dict = {}
    exec((tmp_path / "nets.py").read_text(), own)
    expected = result.models[0](x)
    for model in ({"trust": True}, {"model": own["small"]}):
        assert np.array_equal(partwise.load_model(folder, "Graz", **model)(x).detach(), expected.detach())
    export = ("export", folder, "--client", "Graz", "--to", "graz", "--format", "safetensors,pt2")
    assert refuse(capsys, *export) == f"error: {said}" and not Path("graz").exists()
    succeed(capsys, *export, "--trust")
    assert np.array_equal(partwise.load_model("graz", "Graz", trust=True)(x).detach(), expected.detach())
    assert 'partwise.load_model(".", client=0, trust=True)' in Path("graz", "README.md").read_text()
    (folder / "network-copy.py").write_text("raise SystemError")
    assert "network-copy.py' is damaged or another file" in refuse(capsys, *given, "--trust", code=3)


@pytest.mark.parametrize("code", ["network", "method"])
def test_a_newcomers_folder_has_the_code_that_its_model_needs(code, capsys, tmp_path):
    (tmp_path / "mine.py").write_text("from partwise import Method\nclass Mine(Method):\n    pass\n")
    method, model = ("mine.py", "tabular") if code == "method" else ("fedper", "nets.py:Net")
    run_patients(tmp_path, method, model=model)
    join = ("join", "run", "--data", "patients.csv", "--name", "Bern")
    assert "needs code to predict" in refuse(capsys, *join) and not Path("run", "joined").exists()
    succeed(capsys, *join, "--trust")
    assert partwise.load_model("run/joined/Bern", "Bern", trust=True).predict("patients.csv").shape == (90,)
    with pytest.raises(ConfigError, match="needs code to predict"):
        partwise.load_model("run/joined/Bern", "Bern")
