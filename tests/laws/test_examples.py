"""What the README and the guides show works as it stands there."""

import json
import re
import shlex
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import partwise
from partwise import methods
from partwise.cli import main
from partwise.runs.config import known_fields

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
METHOD = (ROOT / "docs" / "writing-a-method.md").read_text(encoding="utf-8")
OWN = (ROOT / "docs" / "your-own-data-and-model.md").read_text(encoding="utf-8")
COMPARING = (ROOT / "docs" / "comparing.md").read_text(encoding="utf-8")
QUICK = ["--epochs", "1", "--quiet"]
SMALL = ["--batch", "64", "--model", "mlp-100"]
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_example_in_python():
    (example,) = [block for block in PYTHON if "import partwise\n" in block]
    names: dict = {}
    exec(example.replace("rounds=50", "rounds=2").replace('data="digits"', 'data="made"'), names)
    assert names["logits"].shape == (5, 10)


def test_the_number_of_methods_is_that_of_the_readme():
    assert f"| personalised models | {len(methods.names())} |" in README
    assert f"[all {len(methods.names())} methods]" in README


@pytest.mark.parametrize("page", ["README.md", "docs/commands.md"])
def test_the_commands_one_after_the_other(page, tmp_path, monkeypatch):
    text = (ROOT / page).read_text(encoding="utf-8")
    commands = re.findall(r"^partwise ([^#\n]*?)\s*(?:#.*)?$", text, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    (method,) = [block for block in PYTHON if block.startswith("# pulled.py")]
    (tmp_path / "pulled.py").write_text(method, encoding="utf-8")
    digits = partwise.load("digits")
    np.savez(tmp_path / "new-client.npz", x=digits.x[:60].numpy(), y=digits.y[:60].numpy())
    (tmp_path / "per-client.csv").write_text("client,epochs,batch\n0,2,\n3,1,16\n", encoding="utf-8")
    (tmp_path / "photos").mkdir()
    Image.fromarray(digits.x[0, 0].numpy()).save(tmp_path / "photos" / "one.png")
    assert len(commands) >= 10
    for command in commands:
        trains = command.startswith(("run", "compare", "sweep"))
        small = [*QUICK, *SMALL, "--rounds", "1", "--clients", "4"] if trains else []
        assert main([*shlex.split(command), *small]) == 0, command
    if page == "docs/commands.md":
        assert (tmp_path / "runs" / "again" / "summary.json").exists()
        assert (tmp_path / "partition.png").stat().st_size > 10_000


def test_the_mix_of_the_guide():
    [mix] = [block for block in re.findall(r"```python\n(.*?)```", METHOD, re.DOTALL) if "def mix" in block]
    names: dict = {"torch": torch}
    exec(mix, names)
    method = type("Guided", (partwise.Method,), {"share": {"*": partwise.MIXED_GUIDE}, "mix": names["mix"]})
    clouds = partwise.run(method, data="made", clients=3, rounds=1, participation=0.5).simulation.server.copies
    assert {len(copies.values) for copies in clouds.values()} == {3}


def guided(having):
    """The method that a block of the guide makes."""
    [block] = [block for block in re.findall(r"```python\n(.*?)```", METHOD, re.DOTALL) if having in block]
    names: dict = {"torch": torch, "nn": torch.nn, **{name: getattr(partwise, name) for name in partwise.__all__}}
    exec("class Guided(Method):\n" + textwrap.indent(block, "    "), names)
    return names["Guided"]


@pytest.mark.parametrize("engine", ["loop", "vector"])
def test_what_the_guide_prepares(engine):
    """A client that takes the received model where that is better trains from there, and else from its own."""
    run = partwise.run(
        guided("def prepare"), data="made", clients=3, rounds=3, lr=0.0, engine=engine, model="mlp-100"
    ).simulation
    assert all(torch.equal(run.engine.store.own(k, ["tried.gain"])["tried.gain"], torch.zeros(())) for k in range(3))
    run = partwise.run(
        guided("def prepare"), data="made", clients=3, rounds=3, lr=0.1, engine=engine, model="mlp-100"
    ).simulation
    assert all(run.engine.store.own(k, ["tried.gain"])["tried.gain"] != 0 for k in range(3))


def test_what_the_guide_describes():
    run = partwise.run(guided("def describe"), data="made", clients=3, rounds=1).simulation
    assert torch.equal(run.server.memory["labels"].long(), run.federation.class_counts())


def test_the_commands_about_comparing(tmp_path, monkeypatch, capsys):
    """Those on data that come with packages run; the others get as far as their data."""
    commands = re.findall(r"^partwise (.*)$", COMPARING, re.MULTILINE)
    assert len(commands) == 5
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("from partwise import Method\nclass Mine(Method):\n    pass\n")
    for command in commands:
        small = [] if "--preset" in command else SMALL  # a preset is found by its network, too
        code = main([*shlex.split(command), *QUICK, *small, "--rounds", "2"])
        if "cifar10" in command and code:
            assert code == 3 and "cifar10" in capsys.readouterr().err, command
        else:
            assert code == 0, command


def test_your_own_data_and_model_block_after_block(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    blocks = re.findall(r"```(python|sh)\n(.*?)```", OWN, re.DOTALL)
    names: dict = {}
    for kind, block in blocks:
        if kind == "python":
            exec(block, names)
        for line in block.splitlines() if kind == "sh" else ():
            assert main([*shlex.split(line.removeprefix("partwise ")), "--rounds", "1", "--quiet"]) == 0, line
        if block == blocks[0][1]:
            assert names["result"].summary.last("received").accuracy > 0.8
    assert names["result"].federation.names == ("Graz", "Wien", "Linz")


def test_observing_a_run():
    page = (ROOT / "docs" / "observing-a-run.md").read_text(encoding="utf-8")
    (example,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "drift" in block]
    names: dict = {}
    exec(example.replace('data="digits"', 'data="made"').replace("clients=20", "clients=4"), names)
    assert len(names["drift"].drifts) == 5 and min(names["drift"].drifts) > 0.01
    assert set(names["drift"].surest) == set(range(4))


def test_a_network_and_data_of_ones_own_take_fifteen_lines():
    example = re.search(r"```python\n(.*?)```", OWN, re.DOTALL)[1]
    assert len(example.splitlines()) <= 15 and "data=data, model=Net()" in example


def carried_out(page):
    """Every block of a page, one after the other: a file where its first line says so, Python, commands; the names."""
    names: dict = {}
    for kind, block in re.findall(r"```(python|sh)\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL):
        if file := re.match(r"# (\w+\.py)\n", block):
            Path(file[1]).write_text(block, encoding="utf-8")
        elif kind == "python":
            exec(block, names)
        for line in block.splitlines() if kind == "sh" else ():
            assert main(shlex.split(line.removeprefix("partwise "))) == 0, line
    return names


def test_the_quickstart_block_after_block(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = carried_out("quickstart.md")
    assert names["result"].summary.last("received").accuracy > 0.8
    assert len((tmp_path / "runs" / "near" / "leaderboard.csv").read_text().splitlines()) == 4
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert all(f'"{method}"' in page for method in ("Local", "FedAvg", "FedPer", "near"))
    assert names["result"].federation.class_counts()[3].nonzero().flatten().tolist() == [0, 1, 5]  # as the page says
    assert set(names["model"].predict(names["x"])) <= {"0", "1", "5"}
    assert names["linz"].predict(names["x"][:2]).shape == (2,)
    assert "Linz" in capsys.readouterr().out


def test_moving_from_pfllib_block_after_block(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    carried_out("moving-from-pfllib.md")
    rows = (tmp_path / "runs" / "fedper" / "clients.csv").read_text().splitlines()
    assert [row.split(",")[:5] for row in rows[1:]] == [[client, client, "30", "0", "10"] for client in "0123"]


def test_what_stands_beside_pfllibs_options_is_there():
    """Every option that the page names is one of a run or of the method in its row."""
    page = (ROOT / "docs" / "moving-from-pfllib.md").read_text(encoding="utf-8")
    _, algorithms = page.split("## Algorithms")
    for name, options in re.findall(r"^\| `[\w-]+` \| `(\w+)` \|(.*)\|$", algorithms, re.MULTILINE):
        known = known_fields(methods.find(name))
        assert {option.replace("-", "_") for option in re.findall(r"`--([\w-]+)", options)} <= {*known}, name
    everywhere = {*known_fields(partwise.Method), "seeds", "out", "save"}
    table = page[page.index("## Data") : page.index("## Algorithms")]
    assert {option.replace("-", "_") for option in re.findall(r"--([a-z][\w-]+)", table)} <= everywhere


def test_taking_models_away_block_after_block(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = carried_out("models.md")
    graz = partwise.load_model("runs/fedper", client="Graz")
    assert graz.predict(names["new"]).tolist() == ["yes", "no"]  # as the page says
    probabilities = names["program"](names["x"])["probabilities"].numpy()
    assert abs(probabilities - graz.predict_proba(names["new"])).max() < 1e-5
    older, younger = names["days"].predict(names["new"])
    assert 10 > older > younger > 0  # days, as the page says
    assert partwise.load_model("exported/client-000", "Graz").manifest.clients == ["Graz", "", ""]
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 301


def test_the_first_page_block_after_block(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    carried_out("index.md")
    assert (tmp_path / "report.html").stat().st_size > 1_000_000


def test_the_recipes_block_after_block(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = carried_out("recipes.md")
    assert [json.loads(line)["round"] for line in (tmp_path / "log.jsonl").read_text().splitlines()] == [1, 2, 3]
    scores = [float(client["received"]) for client in names["result"].clients]
    assert max(scores[:2]) < min(scores[2:])  # two of the five have noisy labels
    assert set(names["comparison"].to_pandas()["method"]) == {"local", "fedavg", "fedper"}
    assert "warm_up" in capsys.readouterr().out
