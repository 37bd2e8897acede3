"""Presets: the settings of a paper's table in a run of one's own."""

import tomllib
from functools import partial

import pytest

import partwise
from partwise import ConfigError, Method
from partwise.methods import find
from partwise.papers.presets import preset_settings
from partwise.papers.tables import read_paper
from partwise.runs.config import make_config, make_configs
from tests.support.commands import completed, invoke, refuse, succeed


def cell(table, label, column):
    """What a table's own run is made of."""
    paper = read_paper(table)
    row = next(row for row in paper.rows if row.label == label)
    return make_config(row.method, paper.settings_of(row, next(c for c in paper.columns if c.name == column)))


@pytest.mark.parametrize(
    ("method", "table", "given", "label", "column"),
    [
        ("fed3p2p", "fed3p2p/table1", {"data": "cifar10"}, "Fed3+2p", "CIFAR-10"),  # not 50+50: the paper's own
        ("fedavg", "fed3p2p/table1", {"data": "fashion-mnist"}, "FedAvg", "FMNIST"),
        ("fedtc", "fedtc/table2", {"data": "cifar10", "partition": "dir:0.5"}, "FedTC", "CIFAR-10 Dir(0.5)"),
        ("dualfed", "dualfed/table1", {"data": "pacs"}, "D=1", "PACS"),
        ("dualfed", "dualfed/table1", {"data": "pacs", "image_size": 96}, "D=1", "PACS-96"),  # no column of the paper's
        ("spherefed", "dualfed/baselines", {"data": "office-home"}, "SphereFed", "Office-Home"),  # with its own rate
        ("per_fedavg", "fed3p2p/table1", {"data": "fashion-mnist"}, "Per-FedAvg", "FMNIST"),
        ("anti", "scheduling/table2", {"data": "mnist"}, "Anti", "MNIST"),
        ("fedfcd", "fedfcd/table3:w/o FA", {"partition": "pat:2"}, "w/o FA", "Pat"),
        ("vanilla", "scheduling/on-baselines:FedRep + Vanilla", {}, "FedRep + Vanilla", "CIFAR-10"),
    ],
)
def test_a_preset_is_the_tables_cell(method, table, given, label, column):
    made, theirs = (
        make_config(method, given, preset=partial(preset_settings, table)),
        cell(table.partition(":")[0], label, column),
    )
    assert made.as_tables() == theirs.as_tables()
    assert made.notes[0].startswith(f"preset {table.partition(':')[0]}: column {column}, row {label}")


def test_options_win():
    made = make_config(
        "fedfcd", {"align": False, "lr": 0.5}, preset=partial(preset_settings, "fedfcd/table1:CIFAR-10 Pat")
    )
    assert (made.method.lr, made.method.align, made.method.batch, made.data.partition) == (0.5, False, 10, "pat:2")
    assert made.method.align_weight == 1.0  # the table's 5 would have no effect
    whole, short = (
        make_config("fed3p2p", given, preset=partial(preset_settings, "fed3p2p/table1:CIFAR-10")).method
        for given in ({}, {"rounds": 10})
    )
    assert [stage.rounds for stage in whole.stages()] == [100, 100]
    assert [stage.rounds for stage in short.stages()] == [5, 5]
    other = make_config("fedper", {"data": "digits"}, preset=partial(preset_settings, "fed3p2p/table1:CIFAR-10"))
    assert (other.data.data, other.model.model, other.method.momentum) == ("digits", "convnet-c", 0.9)


def test_a_method_that_the_table_has_not_gets_what_all_rows_have():
    methods = [(name, find(name)) for name in ("fedbn", "local")]
    fedbn, local = make_configs(methods, {"data": "cifar10"}, [0], preset=partial(preset_settings, "fed3p2p/table1"))
    assert (fedbn.method.momentum, fedbn.method.epochs, fedbn.method.participation) == (0.9, 5, 0.4)
    assert local.method.participation == 1.0  # its row says so
    assert fedbn.notes == ("preset fed3p2p/table1: column CIFAR-10, no row of fedbn",)

    class Mine(Method):
        pass

    assert (
        make_config(Mine, {"data": "cifar10"}, preset=partial(preset_settings, "fed3p2p/table1")).method.weight_decay
        == 1e-5
    )


@pytest.mark.parametrize(
    ("method", "preset", "given", "line"),
    [
        ("fedtc", "fedtc/tabel2", {}, "unknown table 'fedtc/tabel2'; did you mean 'fedtc/table2'?"),
        (
            "fed3p2p",
            "fed3p2p/table1",
            {},
            "preset 'fed3p2p/table1': 3 columns fit what is given; give what sets one apart, or name it as in "
            "'fed3p2p/table1:FMNIST': FMNIST (data = fashion-mnist), CIFAR-10 (data = cifar10), CIFAR-100 (data = ",
        ),
        (
            "fedtc",
            "fedtc/table2",
            {"data": "digits"},
            "preset 'fedtc/table2': no column fits what is given; give what ",
        ),
        (
            "fedtc",
            "fedtc/table2:CIFAR",
            {},
            "unknown column or row of fedtc/table2 'CIFAR'; known: CIFAR-10 Dir(0.1), ",
        ),
        (
            "fedper",
            "fedtc/table2:FedTC,CIFAR-10 Dir(0.1)",
            {},
            "preset 'fedtc/table2:FedTC,CIFAR-10 Dir(0.1)': the row",
        ),
    ],
)
def test_what_a_preset_cannot_be_is_refused(method, preset, given, line):
    with pytest.raises(ConfigError) as refusal:
        make_config(method, given, preset=partial(preset_settings, preset))
    assert str(refusal.value).startswith(line) and len(refusal.value.problems) == 1


def test_on_the_command_line(tmp_path, capsys):
    small = ["--data", "made", "--model", "mlp-100", "--clients", "4", "--rounds", "1"]
    preset = ["--preset", "fedtc/table2:CIFAR-10 Dir(0.5)"]
    code, _, told = invoke(capsys, "compare", "fedtc", "fedper", *preset, *small, "--epochs", "1", "--out", tmp_path)
    assert code == 0 and "preset fedtc/table2: column CIFAR-10 Dir(0.5), row FedTC (of 3 rows of fedtc; " in told
    for method in ("fedtc", "fedper"):
        written = tomllib.loads((tmp_path / method / "seed-0" / "config.toml").read_text())
        assert (written["train"]["momentum"], written["train"]["epochs"], written["data"]["cap"]) == (0.9, 1, True)
        assert written["data"]["partition"] == "dir:0.5" and written["method"].get("lr_classifier", 1e-4) == 1e-4
    succeed(capsys, "run", "--config", tmp_path / "fedtc" / "seed-0" / "config.toml", "--out", tmp_path / "again")
    files = [tmp_path / place / "config.toml" for place in ("fedtc/seed-0", "again")]
    assert files[0].read_text() == files[1].read_text()
    line = refuse(capsys, "run", "fedtc", *preset, "--config", files[0])
    assert "--config and --preset cannot be combined" in line
    assert completed("run", "fedtc", "--preset", begun="fedtc/") == [
        "fedtc/figure3",
        "fedtc/figure4",
        "fedtc/readings",
        "fedtc/table1",
        "fedtc/table2",
    ]


def test_in_python():
    settings = {"data": "made", "clients": 4, "rounds": 1, "epochs": 1, "model": "mlp-100"}
    result = partwise.run("fedtc", preset="fedtc/table2:CIFAR-10 Dir(0.1)", **settings)
    assert (result.config.method.momentum, result.config.method.lr_classifier) == (0.9, 1e-4)
    assert any(note.startswith("preset fedtc/table2: ") for note in result.notes)
    with pytest.raises(ConfigError, match="already has all its settings: pass its class"):
        partwise.run(find("fedtc")(), preset="fedtc/table2", **settings)
