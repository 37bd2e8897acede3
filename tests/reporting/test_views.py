"""What charts show, in numbers that can be checked by hand."""

import json
import math

import pytest

from partwise.errors import ConfigError, DataError
from partwise.reporting.amounts import amount
from partwise.reporting.methods import share_kind, share_words
from partwise.reporting.page import facts
from partwise.reporting.reading import find_runs
from partwise.reporting.series import bootstrap, ranked_series, series_of
from partwise.reporting.style import look
from partwise.reporting.views import measured
from partwise.reporting.views.kinds import Point, Points
from partwise.reporting.views.sharing import sharing
from tests.support.folders import write_run


def series_in(folder):
    return series_of(find_runs([folder]))


def test_runs_that_differ_in_their_seed_are_one_series(tmp_path):
    for seed in (1, 0):
        write_run(tmp_path / "a" / f"seed-{seed}", "fedavg", seed)
    write_run(tmp_path / "b", "local")
    found = series_in(tmp_path)
    assert [(each.name, [run.seed for run in each.runs]) for each in found] == [("FedAvg", [0, 1]), ("Local", [0])]


def test_a_method_with_several_settings_names_those_that_differ(tmp_path):
    write_run(tmp_path / "a", lr=0.1)
    write_run(tmp_path / "b", lr=0.5)
    assert [each.name for each in series_in(tmp_path)] == ["FedAvg lr=0.1", "FedAvg lr=0.5"]


def test_a_run_that_is_named_twice_counts_once(tmp_path):
    write_run(tmp_path / "a")
    assert len(find_runs([tmp_path, tmp_path / "a"])) == 1


def test_the_leaderboard_by_hand(tmp_path):
    write_run(tmp_path / "a0", "fedavg", 0, (0.2, 0.6), (0.5, 0.9), sent=10, flops=4e9)
    write_run(tmp_path / "a1", "fedavg", 1, (0.2, 0.8), (0.7, 0.9), sent=10, flops=6e9)
    write_run(tmp_path / "l0", "local", 0, (0.5, 0.5), (0.6, 0.8), sent=0)
    write_run(tmp_path / "l1", "local", 1, (0.5, 0.5), (0.6, 0.8), sent=0)
    best, local = ranked_series(series_in(tmp_path))
    assert (best.series.name, best.means.seeds, best.means.last) == ("FedAvg", 2, pytest.approx(0.7))
    assert best.means.last_std == pytest.approx(math.sqrt(0.02))  # of 0.6 and 0.8
    assert best.interval is None  # of two seeds it would say nothing
    assert best.worst == pytest.approx(0.35)  # half of 0.6 and 0.8
    assert best.means.worse == pytest.approx(0.25)  # one of four clients: 0.5 < 0.6
    assert local.means.worse is None
    assert (best.bytes, best.once) == (40, 7)  # two rounds of 10 down and 10 up, and 7 down once
    assert (local.bytes, local.once) == (0, 7)  # whoever is alone sends nothing
    assert (best.flops, best.means.seconds) == (5e9, 1.0)


def test_the_bootstrap_knows_what_does_not_vary_and_stays_within_what_was_seen():
    assert bootstrap([0.5, 0.5, 0.5]) == (0.5, 0.5)
    low, high = bootstrap([0.1, 0.2, 0.6])
    assert 0.1 <= low < 0.3 < high <= 0.6


def test_curves_are_means_with_a_band_of_one_deviation_and_their_stages(tmp_path):
    write_run(tmp_path / "0", seed=0, values=(0.2, 0.5, 0.5), stages=(1, 2))
    write_run(tmp_path / "1", seed=1, values=(0.4, 0.5), finished=False, rounds=3)
    [line] = measured.metric_lines(series_in(tmp_path), "received").lines
    assert line.x == [1, 2, 3]
    assert line.y == pytest.approx([0.3, 0.5, 0.5])
    assert line.deviations == pytest.approx([math.sqrt(0.02), 0, 0])
    assert line.starts == [2]


def test_clients_are_ranked_in_each_seed(tmp_path):
    write_run(tmp_path / "0", seed=0, clients=(0.9, 0.1))
    write_run(tmp_path / "1", seed=1, clients=(0.3, 0.5))
    [line] = measured.client_lines(series_in(tmp_path)).lines
    assert line.y == pytest.approx([0.2, 0.7])
    assert {*line.texts} == {measured.ANYWHERE}
    [box] = measured.client_boxes(series_in(tmp_path)).boxes
    assert box.quartiles == pytest.approx([0.1, 0.25, 0.4, 0.6, 0.9])


def test_the_frontier_holds_what_nothing_beats(tmp_path):
    for name, (sent, value) in {"a": (1, 0.5), "b": (2, 0.4), "c": (3, 0.8), "d": (4, 0.8)}.items():
        write_run(tmp_path / name, name, values=(0.1, value), sent=sent)
    view = measured.cost_points(ranked_series(series_in(tmp_path)), "bytes", "bytes", "B")
    assert [(point.name, point.cost) for point in view.frontier] == [("a", 4), ("c", 12)]


def test_costs_that_are_far_apart_lie_on_a_logarithmic_axis_with_a_place_for_nothing():
    points = [Point("a", look(0), cost, 0.5) for cost in (0, 1e3, 1e6)]
    scale = Points(points, "bytes", "B").scale
    assert scale.places == pytest.approx([2, 3, 6])
    assert list(scale.ticks.items())[:2] == [(2, "0"), (3, "1 kB")]
    scale = Points(points[2:], "bytes", "B").scale
    assert scale.places == [1e6] and not scale.ticks


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e10, "25 GB"), (999_600, "1 MB")]
)
def test_amounts(value, text):
    assert amount(value) == text


def test_shares_are_told_by_part_and_by_layer_where_layers_differ(tmp_path):
    first = {"body.conv.weight": "ALL", "body.fc.weight": "FROZEN", "head.weight": "LOCAL"}
    second = {**first, "body.fc.weight": "ALL"}
    write_run(tmp_path / "a", share=(first, second))
    view = sharing(series_in(tmp_path))
    assert view.parts == ["head", "body.conv", "body.fc"]
    assert [(row.stage, row.shares) for row in view.rows] == [
        ("stage 1, round 1", ["LOCAL", "ALL", "FROZEN"]),
        ("stage 2, round 2", ["LOCAL", "ALL", "ALL"]),
    ]


def test_stages_that_share_alike_are_one_row(tmp_path):
    write_run(tmp_path / "a", values=(0.1, 0.2, 0.3), stages=(1, 1, 1))
    [row] = sharing(series_in(tmp_path)).rows
    assert (row.stage, row.shares) == ("", ["ALL", "LOCAL"])
    other = {"body.weight": "FROZEN", "head.weight": "LOCAL"}
    alike = {"body.weight": "ALL", "head.weight": "LOCAL"}
    write_run(tmp_path / "z", "z", values=(0.1, 0.2, 0.3), stages=(4, 3, 2), share=(alike, alike, other))
    _, *rows = sharing(series_in(tmp_path)).rows
    assert [row.stage for row in rows] == ["stages 1 to 2, rounds 1 to 7", "stage 3, rounds 8 to 9"]


def test_groups_ledger_and_what_leaves(tmp_path):
    write_run(tmp_path / "a", groups={1: [0, 0], 2: [0, 1]})
    series = series_in(tmp_path)
    assert measured.groups_by_series(series)["FedAvg"].changes == {1: [0, 0], 2: [0, 1]}
    [sent] = measured.ledgers(series).stacks
    assert (sent.down, sent.up) == ({"body": 200, "head, once": 7}, {"body": 200})
    [row] = facts.leaving_rows(series)
    assert (row.name, row.what.numbers, row.sent) == ("body", 25, 100)  # 200 of two clients


def test_partitions_that_are_equal_are_shown_once(tmp_path):
    for method in ("fedavg", "local"):
        write_run(tmp_path / method, method)
    [partition] = measured.partitions(series_in(tmp_path))
    assert partition.counts == [[1, 0], [4, 0]]


def test_representations_are_those_of_the_rounds_that_measured_them(tmp_path):
    folder = write_run(tmp_path / "a")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    noted = {"clients": [0, 1], "cka": [[1, 0.5], [0.5, 1]], "cka_mean": 0.5, "separation_mean": None}
    rows[1]["representations"] = {"body": noted}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "t-sne-body.csv").write_text("x,y,label\n0.5,-1,1\nnan,nan,0\n")
    [found] = measured.measured_representations(series_in(tmp_path))
    assert (found.cka.name, found.cka.x, found.cka.y) == ("FedAvg body", [2], [0.5])
    assert found.similarity.values == [[1, 0.5], [0.5, 1]]
    assert math.isnan(found.separation.y[0])
    assert found.clouds.panels["FedAvg body"][0].tolist() == [0.5, -1.0, 1]


def test_a_run_that_goes_on_stands_by_its_rounds_so_far(tmp_path):
    write_run(tmp_path / "a", values=(0.4, 0.3), finished=False, rounds=5)
    [row] = ranked_series(series_in(tmp_path))
    assert (row.means.last, row.means.best, row.series.state) == (0.3, 0.4, "unfinished: round 2 of 5")
    assert (row.bytes, row.flops) == (400, None)


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    folder = write_run(tmp_path / "a", finished=False)
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"round": 3, "sta')
    assert len(find_runs([folder])[0].rounds) == 2


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is no folder"):
        find_runs([tmp_path / "nothing"])
    with pytest.raises(ConfigError, match="no run in"):
        find_runs([tmp_path])
    folder = write_run(tmp_path / "a")
    (folder / "summary.json").write_text("{")
    with pytest.raises(DataError, match=r"summary\.json' is damaged"):
        find_runs([folder])


def test_the_share_of_an_older_folder_looks_as_its_present_name():
    assert share_kind("CLOUD") == share_kind("MIXED_GUIDE") == "mix"
    assert share_words("CLOUD") == share_words("MIXED_GUIDE") != share_words("several")
