"""The papers' tables as files: what they publish, that their settings are valid, and the paper's cost formula."""

import statistics
from decimal import Decimal

import pytest

from partwise.network.models import build
from partwise.papers.scales import at_scale, path_at_scale
from partwise.papers.tables import PAPERS, SCALES, papers, read_paper, slug
from partwise.papers.values import paper_cost
from partwise.runs.config import make_config

EVERY = {
    "fed3p2p": ["figure-coordinators", "figure3", "readings", "table1", "table2", "table3"],
    "fedtc": ["figure3", "figure4", "readings", "table1", "table2"],
    "dualfed": ["baselines", "figure2-3", "readings", "table1", "table2", "table3"],
    "fedfcd": ["figure5", "figure6", "figure7", "table1", "table2", "table3"],
    "scheduling": ["figure3-4", "figure5-6", "on-baselines", "readings", "table2", "table4", "unfreezing"],
}

# The sum of each column of published numbers, added up by hand from the papers' tables.
SUMS = {
    "fed3p2p/table1": "810.6 730.8 1238.9 606.3 548.2 1126.8 415.9 376.1 868.9",
    "fed3p2p/table2": "252.9 454.1 209.3 463.7 127.3 347.4",  # "- Filter" stands there twice, as it may be read
    "fed3p2p/table3": "835.1 750.6 984.1 704.2 634.6 908.6 455.8 410.7 640.2",
    "fedtc/table1": "202.71 201.98 174.93 196.83 192.86 196.79 191.39 189.47 195.65 205.61 0.1584 196.93",
    "fedtc/table2": "328.47 290.56 263.71 178.01 142.36 113.56",
    "fedtc/figure3": "150.03 138.12 127.00",
    "dualfed/baselines": "95.01 86.14 79.74",
    "dualfed/table1": "665.54 602.68 557.12",
    "dualfed/table2": "378.18 342.02 311.66",
    "dualfed/table3": "284.80 256.59 236.06",
    "fedfcd/table1": "752.87 744.78 658.33 655.46 432.84 320.79",
    "fedfcd/table2": "646.86 630.96 639.59 624.16",
    "fedfcd/table3": "360.06 360.82",
    "scheduling/table2": "779.64 787.18 788.90 638.92 653.21 662.89 362.57 375.26 371.30 260.19 246.49 239.23",
    "scheduling/table4": "2892.175",
    "scheduling/unfreezing": "237.28 166.66",
}


def numbers(name):
    """{row: its published numbers in the order of the columns, None where there is none}."""
    paper = read_paper(name)
    places = [(column.name, value) for column in paper.columns if not column.ours for value in column.show]
    return {
        row.label: [Decimal(row.published[p].text.partition(" ")[0]) if p in row.published else None for p in places]
        for row in paper.rows
    }


def test_every_table_is_there():
    assert papers() == sorted(f"{paper}/{table}" for paper, tables in EVERY.items() for table in tables)


@pytest.mark.parametrize("name", papers())
def test_a_file_is_sound(name):
    paper = read_paper(name)
    assert (PAPERS / f"{name}.toml").read_text().startswith(f"# partwise reproduce {name}\n# ")
    assert paper.seeds == ((0, 1, 2, 3, 4) if name.startswith(("fed3p2p", "dualfed")) else (0, 1, 2))
    for names in ([row.label for row in paper.rows], [column.name for column in paper.columns]):
        assert len({slug(each) for each in names}) == len(names) and not any("," in each for each in names)
    assert set(paper.factors) <= {value for column in paper.columns for value in column.paths}
    for column in paper.columns:
        common = {**paper.settings, **column.settings}
        assert set(common) <= {key for row in paper.rows for key in row.known}
        assert set(column.methods) <= {row.method for row in paper.rows}
        for row in paper.rows:
            for scale in SCALES:
                make_config(row.method, at_scale(row, paper.settings_of(row, column), scale))


@pytest.mark.parametrize("name", papers())
def test_published_numbers_add_up(name):
    columns = zip(*numbers(name).values(), strict=True)
    sums = [sum((each for each in column if each is not None), Decimal(0)) for column in columns]
    assert sums == (list(map(Decimal, SUMS[name].split())) if name in SUMS else [0] * len(sums))


def test_deviations_add_up():
    sums = {"table1": "1.40 1.46 2.15", "table2": "1.05 0.83 1.88", "table3": "0.61 0.63 0.83"}
    for table, expected in sums.items():
        paper = read_paper(f"dualfed/{table}")
        found = [
            sum(Decimal(row.published[column.name, "best"].text.partition("± ")[2]) for row in paper.rows)
            for column in paper.columns
            if not column.ours
        ]
        assert found == list(map(Decimal, expected.split()))


def test_fedtc_delta_is_the_sample_deviation_of_the_ten_clients():
    for clients in numbers("fedtc/table1").values():
        assert round(statistics.stdev(map(float, clients[:10])) / 100, 4) == float(clients[10])


def test_differences_that_the_papers_quote():
    two, three = numbers("fedtc/table2"), numbers("fed3p2p/table1")
    assert two["FedTC"][0] - two["FedAvg"][0] == Decimal("27.95")
    assert three["Fed3+2p"][8] - three["FedRoD"][8] == Decimal("0.4")  # the text says 0.6
    margins = {
        "fedfcd/table1": {2: 1.09, 3: 2.11, 4: 6.83, 5: 4.23},
        "fedfcd/table2": {0: 1.01, 1: 1.71, 2: 1.59, 3: 1.88},
    }
    for name, quoted in margins.items():
        rows = numbers(name)
        others = [rows[label] for label in ("Per-FedAvg", "FedAMP", "FedProto", "GPFL", "FedGH")]
        for column, margin in quoted.items():
            apart = float(rows["FedFCD"][column]) - statistics.fmean(float(row[column]) for row in others)
            assert apart == pytest.approx(margin, abs=0.006)


def test_numbers_that_stand_in_two_tables_agree():
    schedules, unfreezing = numbers("scheduling/table2"), numbers("scheduling/unfreezing")
    for order in ("Vanilla", "Anti"):
        assert unfreezing[f"{order} 0/100/200"] == [schedules[order][7], schedules[order][9]]  # T = 1000, T = 300
    assert numbers("fedtc/figure3")["Local"] == numbers("fedtc/table2")["Local"][:3]
    full, ablation = numbers("fed3p2p/table1")["Fed3+2p"], numbers("fed3p2p/table2")["Fed3+2p"]
    assert ablation == [full[column] for column in (0, 2, 3, 5, 6, 8)]
    table = numbers("fedfcd/table1")["FedFCD"]
    assert numbers("fedfcd/table3")["FedFCD"] == table[2:4]
    default = numbers("dualfed/table1")["D=2 H=256"]
    assert default == numbers("dualfed/table2")["E=1 stage-wise"] == numbers("dualfed/table3")["DualFed"]
    assert default == numbers("dualfed/baselines")["DualFed"]


def test_copied_rows_are_marked():
    copied = {row.label for row in read_paper("fed3p2p/table1").rows if row.copied}
    clustered = {"CFL", "PACFL", "FedClust"}
    assert copied == {"FedDyn", "FedProx", "Ditto", "FedPer", "FedRep", "FedRoD", "Per-FedAvg", "pFedMe"} | clustered
    assert copied - clustered == {row.label for row in read_paper("fed3p2p/table3").rows if row.copied}


def test_the_cost_of_the_scheduling_paper():
    network = build("cnn-5x5", (1, 28, 28), 10)
    sizes = {"head": sum(value.numel() for value in network.modules["head"].parameters())}
    for layer, module in network.modules["body"].named_children():
        sizes[layer] = sum(value.numel() for value in module.parameters())
    assert sizes == {"conv1": 832, "conv2": 51_264, "fc1": 524_800, "head": 5_130}

    def cost(*stretches):
        """In 1e9, over 300 rounds; a stretch is the layers that train, and for how many rounds."""
        rounds = [sum(sizes[name] for name in names.split()) for names, number in stretches for _ in range(number)]
        assert len(rounds) == 300
        return round(paper_cost(rounds, clients=100, samples=500, batch=10) / 1e9, 3)

    base = "conv1 conv2 fc1"
    vanilla, anti = ("conv1", "conv1 conv2", base), ("fc1", "fc1 conv2", base)
    ours = {"FedAvg": cost((f"{base} head", 300)), "FedBABU": cost((base, 300))}
    ours["Vanilla"] = cost(*((names, 100) for names in vanilla))
    ours["Anti"] = cost(*((names, 100) for names in anti))
    assert ours == {"FedAvg": 873.039, "FedBABU": 865.344, "Vanilla": 314.912, "Anti": 838.880}
    assert ours == {label: float(row[0]) for label, row in numbers("scheduling/table4").items()}
    assert cost(*zip(vanilla, (50, 50, 200), strict=True)) == 590.128
    assert cost(*zip(anti, (50, 50, 200), strict=True)) == 852.112


def test_scales():
    paper = read_paper("scheduling/table2")
    row = next(row for row in paper.rows if row.label == "Anti")
    settings = paper.settings_of(row, paper.columns[0])
    small = at_scale(row, settings, "small")
    assert at_scale(row, settings, "full") == settings and settings["rounds"] == 300
    assert (small["rounds"], small["eval_at"], small["unfreeze"]) == (30, [10, 20, 30], [0, 10, 20])
    assert small["eval_every"] == 10 and small["data"] == "mnist" and small["clients"] == 100
    assert path_at_scale("method_adapted.at-200.acc_pooled", 300, 30) == "method_adapted.at-20.acc_pooled"
    smoke = at_scale(row, settings, "smoke")
    assert (smoke["rounds"], smoke["unfreeze"], smoke["clients"], smoke["finetune_epochs"]) == (2, [0, 1, 1], 4, 1)


def cell(table, label, column=0):
    """The method of a table's own run."""
    return whole_cell(table, label, column).method


def whole_cell(table, label, column=0):
    paper = read_paper(table)
    row = next(row for row in paper.rows if row.label == label)
    return make_config(row.method, paper.settings_of(row, paper.columns[column]))


def test_a_papers_training_settings_stand_in_its_files():
    """Every method has the run's own; what a paper used is what its cells resolve to."""
    relayed, alike, single = (cell("fed3p2p/table2", row) for row in ("Fed3+2p", "- Filter (local)", "- 2ST"))
    assert (relayed.momentum, relayed.weight_decay, relayed.lr_decay, relayed.epochs) == (0.9, 1e-5, 0.99, 5)
    assert [stage.rounds for stage in relayed.stages()] == [100, 100] and relayed.rounds == 200
    assert [stage.rounds for stage in single.stages()] == [100] and alike.filter_mode == "local"
    assert [stage.rounds for stage in cell("fed3p2p/table1", "Fed3+2p 50+50").stages()] == [50, 50]
    assert cell("fed3p2p/table1", "FedAvg").rounds == 100
    dualfed, fedtc, anti = (
        cell("dualfed/table1", "D=1"),
        cell("fedtc/table2", "FedTC"),
        cell("scheduling/table2", "Anti"),
    )
    assert (dualfed.momentum, dualfed.aggregation, dualfed.contrast_weight) == (0.5, "uniform", 40.0)
    assert (fedtc.lr_classifier, fedtc.lr, fedtc.momentum, fedtc.lr_decay) == (1e-4, 0.01, 0.9, 0.9)
    assert (anti.finetune_epochs, anti.momentum, anti.lr) == (10, 0.0, 0.005)
    fedfcd, unaligned = (cell("fedfcd/table3", label) for label in ("FedFCD", "w/o FA"))
    assert (fedfcd.server_lr, fedfcd.align_weight, unaligned.align, unaligned.server_lr) == (0.01, 5.0, False, 0.01)


def test_baselines_have_the_settings_that_are_known_of_them():
    for table in ("fed3p2p/table1", "fed3p2p/table3"):
        outer_and_inner = [(each.lr, each.inner_lr) for each in (cell(table, "Per-FedAvg", at) for at in range(3))]
        assert outer_and_inner == [(0.001, 0.01), (0.001, None), (0.001, None)]  # unset: the outer one
        pfedme, feddyn, fedrep = (cell(table, label) for label in ("pFedMe", "FedDyn", "FedRep"))
        assert (pfedme.personal_lr, pfedme.lr, feddyn.clip_norm, feddyn.dynamic_weight) == (0.01, 0.01, 10, 0.01)
        assert [phase.epochs for phase in fedrep.phases()] == [4, 1] and cell(table, "FedProx").proximal_weight == 0.01
    gpfl = [cell("fedfcd/table1", "GPFL", column) for column in range(6)]
    assert [(each.magnitude_weight, each.guidance_decay) for each in gpfl] == [(0.01, 0.1)] * 4 + [
        (1e-4, 0)
    ] * 2  # ResNet-18 is the network of the last two
    assert cell("fedfcd/table1", "FedGH").server_lr == 0.01


def test_in_dualfeds_comparison_all_have_a_projector_but_dualfed_brings_its_own():
    table = "dualfed/baselines"
    configs = {row.label: whole_cell(table, row.label) for row in read_paper(table).rows}
    assert {label for label, each in configs.items() if not each.model.projector} == {"DualFed"}
    assert {each.method.aggregation for each in configs.values()} == {"uniform"}
    assert {label: each.method.lr for label, each in configs.items() if each.method.lr != 0.01} == {"SphereFed": 0.1}
    assert [cell(table, "SphereFed", at).lr for at in range(3)] == [0.1, 0.1, 1.0]
    assert not configs["SphereFed"].method.calibration
    assert [phase.epochs for phase in configs["FedRep"].method.phases()] == [4, 1]
    assert {row.label: row.judged for row in read_paper(table).rows if row.judged != "received"} == {
        "FedETF": "method_adapted"
    }


ADAPTED = {
    "fed3p2p/table1": {"FedAvg", "FedProx", "FedDyn", "Per-FedAvg"},
    "fed3p2p/table3": {"FedAvg", "FedProx", "FedDyn", "Per-FedAvg"},
    "fedfcd/table1": {"Per-FedAvg"},
    "fedfcd/table2": {"Per-FedAvg"},
}


@pytest.mark.parametrize("name", ADAPTED)
def test_global_and_local_models_of_a_method(name):
    """Where the global model is a method's only one, the local model is that one after local training."""
    rows = {row.label: row for row in read_paper(name).rows}
    adapted = {label for label, row in rows.items() if row.judged == "method_adapted"}
    assert adapted == ADAPTED[name] and all(cell(name, label).adapt() is not None for label in adapted)
    assert {row.judged for row in rows.values()} == {"received", "method_adapted"}
    if name.startswith("fed3p2p"):  # a global model is printed for just those that have one
        without = {label for label, row in rows.items() if cell(name, label).predict_global is None}
        printed = {label for label, row in rows.items() if ("FMNIST", "GM") in row.published}
        assert printed == {label for label, row in rows.items() if row.published} - without


def test_phases_are_shortened_with_the_rounds():
    paper = read_paper("fed3p2p/table1")
    settings = [paper.settings_of(row, paper.columns[0]) for row in paper.rows if row.method == "fed3p2p"]
    row = paper.rows[-1]
    small = [make_config("fed3p2p", at_scale(row, each, "small")).method for each in settings]
    assert [[stage.rounds for stage in method.stages()] for method in small] == [[5, 5], [10, 10]]
