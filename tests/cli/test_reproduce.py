"""`partwise reproduce`: the list, every table as a smoke run, what is kept, what is missing, what is refused."""

import os
import re
from dataclasses import replace

import pytest
import torch

from partwise.data import Column, load
from partwise.data.readers.published import PACS
from partwise.errors import DataError, Diverged
from partwise.papers import pictures as pictures_of_papers
from partwise.papers import reproduce
from partwise.papers.overview import is_here
from partwise.papers.reproduce import SMOKE_ROWS
from partwise.papers.scales import SMOKE_IMAGES
from partwise.papers.tables import narrow_table, papers, read_paper, slug
from partwise.papers.values import value_of
from partwise.runs.simulation import Simulation
from partwise.studies import seeds
from tests.support.commands import invoke, refuse, succeed
from tests.support.files import picture, write_tree


def test_the_list(capsys):
    shown = succeed(capsys, "reproduce")
    for name in papers():
        paper = read_paper(name)
        [line] = [line for line in shown.splitlines() if line.startswith(f"{name} ")]
        assert f" {len(paper.rows)} x {len(paper.columns)} " in line and line.endswith(paper.title)


@pytest.mark.parametrize("name", papers())
def test_smoke(name, tmp_path, capsys):
    paper = read_paper(name)
    shown = succeed(capsys, "reproduce", name, "--scale", "smoke", "--out", tmp_path)
    place = tmp_path / name / "smoke"
    assert shown.startswith(paper.title) and shown.endswith(f"results: {place}\n")
    assert ("nothing to compare" in shown) != paper.ours and "  difference" not in shown
    assert not re.search("refused:|diverged:|no data:", shown)
    runs = list(place.glob("*/*/seed-0/summary.json"))
    assert len(runs) == min(SMOKE_ROWS, len(paper.rows)) * len(paper.columns)
    assert {path.name for path in place.glob("*.svg")} == pictures(paper, [run.parents[2].name for run in runs])
    assert all(path.with_suffix(".svg").exists() for path in place.glob("*.png"))
    text, markdown, latex = ((place / f"table.{ending}").read_text() for ending in ("txt", "md", "tex"))
    # the layout is the paper's, whatever has run; readings have a line for each column where there are several
    if paper.ours and len(paper.columns) > 1:
        names, cells = [column.name for column in paper.columns], 1 + len(paper.rows) * len(paper.columns[0].paths)
    else:
        names = [f"{row.label}{'*' * row.copied}" for row in paper.rows]
        cells = 1 + sum(len(column.paths) for column in paper.columns)
    for name in names:
        assert markdown.count(f"| {name} |") == 1 and name in text
    for published in (number for row in paper.rows for number in row.published.values()):
        assert published.text in text and published.text in markdown
    lines = [line for line in latex.splitlines() if line.endswith(r"\\") and not line.startswith(" &")]
    assert {len(re.findall(r"(?<!\\)&", line)) + 1 for line in lines} == {cells}
    assert not re.search(r"(?<!\\)[%#_]", "\n".join(lines))


COMPARED = [
    (name, row.label)
    for name in ("dualfed/baselines", "fed3p2p/table1", "fedfcd/table1", "scheduling/table2")
    for row in read_paper(name).rows
]
WITHOUT_ADAPTATION = {
    *(("scheduling/table2", label) for label in ("FedPer", "LG-FedAvg", "FedRep", "FedROD")),
    *(("fedfcd/table1", label) for label in ("FedAMP", "FedProto", "GPFL", "FedFCD")),
}


@pytest.mark.parametrize(("name", "label"), COMPARED)
def test_every_method_runs_as_a_paper_compares_it(name, label, tmp_path):
    paper = read_paper(name)
    last = narrow_table(paper, label, paper.columns[-1].name)
    [cell] = reproduce.reproduce(last, "smoke", [0], tmp_path, quiet=True).values()
    assert not cell.missing, cell.reason
    without = set()
    if name == "fed3p2p/table1" and label in {"Local", "CFL", "PACFL", "FedClust"}:
        without = {"GM", "GM/client"}  # no global model
    if (name, label) in WITHOUT_ADAPTATION:
        without = {"adapted"}
    assert {value for value, found in cell.values.items() if not found} == without
    assert all(0 <= number <= 1 for found in cell.values.values() for number in found)


def pictures(paper, labels):
    """The names of the files that a figure draws, of the rows with these labels."""
    columns, rows = [slug(column.name) for column in paper.columns], sorted({*labels})
    pairs = [f"{row}-{column}-{name}" for row in rows for column in columns for name in paper.representations]
    over_rounds = [f"{quantity}-{column}" for quantity in ("class-separation", "similarity") for column in columns]
    named = {"bars": [""], "classes": rows, "similarity": pairs, "metrics": over_rounds}
    return {f"{kind}-{name}".strip("-") + ".svg" for kind in paper.pictures for name in named.get(kind, columns)}


def test_a_picture_shows_the_runs_values(tmp_path, capsys, monkeypatch):
    drawn = {}
    monkeypatch.setattr(pictures_of_papers, "draw_view", lambda view, path: drawn.update({path.name: view}))
    for name, column in (("fedfcd/figure6", "cifar-10 dir(0.1)"), ("scheduling/figure5-6", "cifar-100")):
        asked = ["--scale", "smoke", "--seeds", "0,1", "--columns", column, "--out", tmp_path]
        succeed(capsys, "reproduce", name, *asked)
    succeed(capsys, "reproduce", "fedtc/figure3", "--scale", "smoke", "--rows", "local", "--out", tmp_path)
    run = tmp_path / "fedfcd/figure6/smoke/rate-0.001/cifar-10-dir-0.1"
    at = [[value_of(run / f"seed-{seed}", f"received.at-{number}.acc_pooled") for seed in (0, 1)] for number in (1, 2)]
    [line] = [line for line in drawn["rounds-cifar-10-dir-0.1.svg"].lines if line.name == "rate 0.001"]
    assert (line.x, line.y) == ([1, 2], [sum(at[0]) / 2, sum(at[1]) / 2])
    run = tmp_path / "scheduling/figure5-6/smoke/anti/cifar-100/seed-0"
    [line] = [line for line in drawn["clients-cifar-100.svg"].lines if line.name == "Anti"]
    assert line.y[0] == value_of(run, "clients.min.method_adapted")
    run = tmp_path / "fedtc/figure3/smoke/local/dir-0.5/seed-0"
    assert drawn["bars.svg"].groups["Dir(0.5)"] == {"Local": value_of(run, "received.best.acc_pooled")}


@pytest.mark.parametrize("files", ["made", "real"])
def test_dualfed_on_a_folder_of_domains(files, tmp_path, capsys, monkeypatch):
    if files == "made":
        names = [f"PACS/{domain}/{label}/{at}" for domain in PACS.domains for label in PACS.classes for at in range(6)]
        shades = {f"{name}.png": picture((number, 40 * (number % 6), 99)) for number, name in enumerate(names)}
        write_tree(tmp_path / "data" / "pacs", shades)
        monkeypatch.setenv("PARTWISE_DATA", str(tmp_path / "data"))
    elif not is_here("pacs"):
        pytest.skip("the files of pacs are not on this machine")
    source = load("pacs", image_size=8)
    few = torch.arange(0, len(source.y), len(source.y) // SMOKE_IMAGES + 1)
    domain = Column(source.columns["domain"].names, source.columns["domain"].code[few])
    small = replace(source, x=source.x[few], y=source.y[few], train=len(few), columns={"domain": domain})
    monkeypatch.setattr(reproduce, "made_images", lambda data: small)
    shown = succeed(capsys, "reproduce", "dualfed/table3", "--scale", "smoke", "--columns", "PACS", "--out", tmp_path)
    clients = (tmp_path / "dualfed/table3/smoke/dualfed/pacs/seed-0/clients.csv").read_text()
    assert "refused:" not in shown and all(f",{name}," in clients for name in PACS.domains)


def test_one_run_gives_all_columns_of_a_schedule(tmp_path, capsys):
    arguments = ["reproduce", "scheduling/table2", "--scale", "smoke", "--rows", "FedBABU", "--columns", "mnist"]
    succeed(capsys, *arguments, "--out", tmp_path)
    [run] = (tmp_path / "scheduling/table2/smoke").glob("*/*/*/summary.json")
    markdown = (tmp_path / "scheduling/table2/smoke/table.md").read_text()
    ours = [
        100 * value_of(run.parent, f"method_adapted.at-{at}.acc_pooled") for at in (1, 2, 2)
    ]  # T = 100, 200, 300 of 300
    assert "| FedBABU | 98.19 | 98.77 | 98.84 |" in markdown
    assert "|   ours | " + " | ".join(f"{value:.2f}" for value in ours) + " |" in markdown


def test_costs_of_a_smoke_run_by_hand(tmp_path, capsys):
    succeed(capsys, "reproduce", "scheduling/table4", "--scale", "smoke", "--rows", "FedAvg,FedBABU", "--out", tmp_path)
    costs = {}
    for method in ("fedavg", "fedbabu"):
        run = tmp_path / "scheduling/table4/smoke" / method / "mnist/seed-0"
        costs[method] = value_of(run, "cost.paper")
        assert value_of(run, "cost.flops") > 0
    # 4 clients, 500 / 100 mini-batches, 2 rounds; convolutions 160 + 4,640, hidden layer 32,832, head of 8 classes 520
    assert costs == {"fedavg": 4 * 5 * 2 * 38_152, "fedbabu": 4 * 5 * 2 * 37_632}
    assert value_of(run, "cost.bytes") == 2 * 2 * 37_632 * 4  # two rounds, down and up; 0.1 of 4 clients is one


def test_finished_runs_are_kept_and_seeds_are_averaged(tmp_path, capsys):
    arguments = ["reproduce", "fedtc/figure3", "--scale", "smoke", "--columns", "Dir(0.1)", "--out", tmp_path]
    succeed(capsys, *arguments)
    [first, *_] = runs = sorted((tmp_path / "fedtc/figure3/smoke").glob("*/*/*/summary.json"))
    times = [os.stat(run).st_mtime_ns for run in runs]
    code, shown, err = invoke(capsys, *arguments, "--seeds", "0,1")
    assert code == 0 and "seed 1 (2/4)" in err and "seed 0" not in err
    assert [os.stat(run).st_mtime_ns for run in runs] == times
    two = [100 * value_of(first.parent.parent / f"seed-{seed}", "received.best.acc_pooled") for seed in (0, 1)]
    assert f"{sum(two) / 2:.2f} ± {abs(two[0] - two[1]) / 2**0.5:.2f}" in shown
    first.unlink()
    succeed(capsys, *arguments)
    assert first.exists()


def diverging(monkeypatch, which):
    """Runs with such settings diverge."""
    rounds = Simulation.rounds

    def run(simulation, progress):
        if which(simulation.config):
            raise Diverged("all updates were refused")
        rounds(simulation, progress)

    monkeypatch.setattr(Simulation, "rounds", run)


def test_what_fails_says_why_and_the_others_go_on(tmp_path, capsys, monkeypatch):
    """At full scale published numbers are compared; the run itself is made small here."""
    real, scaled = seeds.prepare, reproduce.at_scale

    def prepare(config, data=None, **going_on):
        if config.data.partition == "dir:0.5":
            raise DataError("the disk is gone")
        return real(config, reproduce.made_images("cifar10"))

    diverging(monkeypatch, lambda config: config.data.partition == "dir:5.0")
    monkeypatch.setattr(seeds, "prepare", prepare)
    monkeypatch.setattr(reproduce, "at_scale", lambda row, settings, scale: scaled(row, settings, "smoke"))
    succeed(capsys, "reproduce", "fedtc/figure3", "--rows", "local", "--seeds", "0", "--out", tmp_path)
    markdown = (tmp_path / "fedtc/figure3/full/table.md").read_text()
    ours = 100 * value_of(tmp_path / "fedtc/figure3/full/local/dir-0.1/seed-0", "received.best.acc_pooled")
    assert f"|   ours | {ours:.2f} | no data | diverged |" in markdown
    assert f"|   difference | {ours - 88.62:+.2f} | - | - |" in markdown
    assert "Dir(0.5): no data: the disk is gone" in markdown and "Local, Dir(5.0): diverged: all updates" in markdown


def test_a_seed_that_diverges_and_a_damaged_run_cost_themselves_alone(tmp_path, capsys, monkeypatch):
    arguments = ["reproduce", "fedfcd/figure6", "--scale", "smoke", "--seeds", "0,1,2", "--out", tmp_path]
    arguments += ["--columns", "cifar-10 dir(0.1)"]
    diverging(monkeypatch, lambda config: config.run.seed == 1)
    assert succeed(capsys, *arguments).count("(2 of 3 seeds)") == 2 * SMOKE_ROWS  # best and last of each row
    monkeypatch.undo()
    (tmp_path / "fedfcd/figure6/smoke/rate-0.5/cifar-10-dir-0.1/seed-2/summary.json").write_text("{")
    shown = succeed(capsys, *arguments)
    assert shown.count("(2 of 3 seeds)") == 2 and "rate 0.5, CIFAR-10 Dir(0.1): damaged: " in shown
    assert "damaged" not in succeed(capsys, *arguments, "--overwrite")


def test_a_run_that_lacks_its_features_is_measured_again_but_another_run_is_not_replaced(tmp_path, capsys):
    arguments = ["reproduce", "dualfed/figure2-3", "--scale", "smoke", "--columns", "pacs", "--out", tmp_path]
    succeed(capsys, *arguments)
    run = tmp_path / "dualfed/figure2-3/smoke/dualfed/pacs/seed-0"
    measured = (run / "features.json").read_bytes()
    (run / "features.json").unlink()
    succeed(capsys, *arguments)
    assert (run / "features.json").read_bytes() == measured
    (run / "features.json").unlink()
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace("temperature = 0.2", "temperature = 0.3"))
    assert "holds a run with other settings" in refuse(capsys, *arguments)


def test_missing_data_are_no_mistake(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("partwise.data.readers.places.SYSTEM", str(tmp_path))
    monkeypatch.setattr("partwise.data.readers.places.CACHE", str(tmp_path))
    monkeypatch.setenv("PARTWISE_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    shown = succeed(capsys, "reproduce", "fedtc/table2", "--scale", "small")
    assert shown.count("data set 'cifar10' is missing") == 1 and "89.36" in shown
    assert "CIFAR-10 Dir(0.1), CIFAR-10 Dir(0.5), CIFAR-10 Dir(5.0): no data: " in shown.replace("\n", " ")
    assert shown.endswith("results: runs/reproduce/fedtc/table2/small\n")  # where --out is not given


def test_refusals(tmp_path, capsys):
    assert "unknown table 'fedtc/tabel2'; did you mean 'fedtc/table2'?" in refuse(capsys, "reproduce", "fedtc/tabel2")
    arguments = ["reproduce", "fedtc/table2", "--out", tmp_path]
    assert "unknown scale 'smok'; did you mean 'smoke'?" in refuse(capsys, *arguments, "--scale", "smok")
    assert "unknown row 'fedct'; did you mean" in refuse(capsys, *arguments, "--rows", "local,fedct")
    assert "unknown column 'dir'" in refuse(capsys, *arguments, "--columns", "dir")
    assert "give every seed once" in refuse(capsys, *arguments, "--seeds", "1,1")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    where = ["--scale", "smoke", "--out", tmp_path / "file"]
    assert "figure4/smoke': Not a directory" in refuse(capsys, "reproduce", "fedtc/figure4", *where)
