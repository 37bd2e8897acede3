"""The page as a file: what stands in it, what cannot, and how large it is."""

import json
import re
from contextlib import ExitStack
from html.parser import HTMLParser

import pytest

from partwise.commands.reporting import IDLE_POLLS, watch
from partwise.records.lock import HOLDER, LOCK, Lock
from partwise.reporting.page.page import render
from partwise.reporting.reading import find_runs
from tests.support.commands import invoke, refuse, succeed
from tests.support.folders import write_many, write_run

EVIL = "<script>alert('x')</script>&<b>\u2028"


class Elements(HTMLParser):
    """Tags by how often they occur, without the library that draws."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.shown = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, text):
        self.shown.append(text)


def charts_in(text):
    return json.loads(re.search(r'id="charts">(.*?)</script>', text, re.S)[1])


def test_fault_45_names_are_texts_wherever_they_stand(tmp_path):
    event = {"round": 1, "client": 0, "what": EVIL, "detail": EVIL}
    share = [{f"{EVIL}.weight": "ALL"}] * 2
    folder = write_run(tmp_path / "run", EVIL, names=[EVIL, "b"], classes=[EVIL, "c"], events=[event], share=share)
    other = write_run(tmp_path / "other", "local")
    (folder / "leaves.json").write_text(json.dumps({EVIL: {"numbers": 1, "classes": EVIL, "rare": 0}}))
    (folder / "environment.json").write_text(json.dumps({"command": EVIL, "notes": [EVIL], "python": EVIL}))
    text = render(find_runs([folder, other]))
    found = Elements(text)
    assert [tag for tag, _ in found.tags].count("script") == 3  # the numbers, the library and ours
    assert "alert('x')" not in "".join(re.findall(r"<script.*?</script>", render(find_runs([other])), re.S))
    assert any(EVIL.strip() in part for part in found.shown)  # it is shown, letter by letter
    charts = charts_in(text)
    drawn = json.dumps([view["traces"] for chart in charts.values() for view in chart["views"]])
    assert "<script" not in drawn and "&lt;script" in drawn  # plotly reads tags in its texts


def test_fault_45_runs_that_ended_early_are_shown(tmp_path):
    write_run(tmp_path / "interrupted", "a", values=(0.1, 0.2), finished=False, rounds=9)
    write_run(tmp_path / "one round", "b", values=(0.5,), stages=(1,))
    write_run(tmp_path / "one client", "c", clients=(0.5,))
    write_run(tmp_path / "not begun", "d", values=(), finished=False, rounds=9)
    folder = write_run(tmp_path / "diverged", "e", values=(0.1, 0.2), finished=False)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows[1]["received"] = {"acc_pooled": float("nan"), "clients": 2, "nonfinite": 10}
    rows[0]["received"] = {"clients": 0}  # nobody could be tested
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for place in (tmp_path, *tmp_path.iterdir()):
        charts_in(render(find_runs([place])))
    [view, *_] = charts_in(render(find_runs([folder])))["rounds"]["views"]
    assert [trace["y"] for trace in view["traces"] if trace["role"] == "line"] == [[None, None]]
    text = render(find_runs([tmp_path]))
    assert "a: unfinished: round 2 of 9" in text


def test_sections_without_data_are_left_out(tmp_path):
    folder = write_run(tmp_path / "a", finished=False)
    for name in ("setup.json", "leaves.json", "events.jsonl", "environment.json"):
        (folder / name).unlink()
    sections = [own["id"] for tag, own in Elements(render(find_runs([folder]))).tags if tag == "section"]
    assert sections == ["headline", "leaderboard", "rounds", "environment"]


def test_every_chart_has_words_and_a_table_of_its_numbers(tmp_path):
    write_run(tmp_path / "a", groups={1: [0, 1]})
    write_run(tmp_path / "b", "local")
    text = render(find_runs([tmp_path]))
    found = Elements(text)
    charts = charts_in(text)
    assert set(charts) == {"rounds", "clients", "distribution", "bytes", "flops", "partition", "groups", "ledger"}
    spoken = [own["aria-label"] for tag, own in found.tags if own.get("role") == "img"]
    assert len(spoken) == len(charts) and all(spoken)
    for chart in charts.values():
        for view in chart["views"]:
            assert len(view["table"]) > 1 and len({len(row) for row in view["table"]}) == 1


def test_settings_of_a_method_are_not_called_methods(tmp_path):
    for lr in (0.1, 0.2):
        write_run(tmp_path / f"a{lr}", "fedavg", lr=lr)
    pages = [render(find_runs([tmp_path]))]
    write_run(tmp_path / "l", "local")
    pages.append(render(find_runs([tmp_path])))
    titles = [re.search("<h1.*?>(.*?)</h1>", page)[1] for page in pages]
    assert titles == ["2 settings of FedAvg on made", "3 settings of 2 methods on made"]
    assert all(">method, setting</button>" in page and "FedAvg lr=0.1<" in page for page in pages)
    assert "<dt>methods</dt><dd>2</dd></div><div><dt>settings</dt><dd>3</dd>" in re.sub(r">\s+<", "><", pages[1])


def write_sweep(folder):
    """Three settings in three seeds: the best one on test data is not the one that validation chose."""
    tried = [
        ("fedavg", 1.0, 0.5, (0.90, 0.91, 0.92), "no"),
        ("fedavg", 0.1, 0.75, (0.60, 0.61, 0.65), "yes"),
        ("fedavg", 0.2, 0.625, (0.1, 0.1, 0.1), "no"),
        ("local", 0.1, 0.25, (0.70, 0.73, 0.71), "yes"),
    ]
    lines = ["method,lr,seeds,diverged,validation,test,test_std,chosen,folder"]
    for method, lr, validation, tests, chosen in tried:
        for seed, test in enumerate(tests):
            place = folder / method / f"lr={lr}" / f"seed-{seed}"
            write_run(place, method, seed, values=(0.1, test), lr=lr, validation=validation)
        lines.append(f"{method},{lr},3,0,{validation},{sum(tests) / 3},0,{chosen},{method}/lr={lr}")
    (folder / "trials.csv").write_text("\n".join(lines) + "\n")


def leaderboard_of(text):
    """The cells of the page's leaderboard by column, and the class of each row."""
    table = re.search(r'<table class="cards sortable">(.*?)</table>', text, re.S)[1]
    titles = re.findall(r'<button type="button" title=".*?">(.*?)</button>', table, re.S)
    rows = re.findall(r"<tr data-series(.*?)</tr>", table, re.S)
    cells = [re.findall(r'data-value="(.*?)"', row) for row in rows]
    return [dict(zip(titles, own, strict=True)) for own in cells], rows, table


def test_a_sweeps_page_is_headed_by_what_validation_data_chose(tmp_path):
    write_sweep(tmp_path)
    text = render(find_runs([tmp_path]))
    cells, rows, table = leaderboard_of(text)
    assert [row["method, setting"] for row in cells] == ["Local", "FedAvg lr=0.1", "FedAvg lr=0.2", "FedAvg lr=1"]
    assert [float(row["validation"]) for row in cells] == [0.25, 0.75, 0.625, 0.5]
    assert list(cells[0])[1:3] == ["last", "validation"]
    assert ["aside" in row for row in rows] == [False, False, True, True]
    assert ["chosen, 3 seeds" in row for row in rows] == [True, True, False, False]
    assert [row.count('class="first"') > 0 for row in rows] == [True, True, False, False]  # the best of chosen rows
    assert "aria-sort" not in table  # no column orders all rows
    [best] = re.findall(r'<p class="best">(.*?)</p>', text, re.S)
    said = " ".join(re.sub("<.*?>", "", best).split())
    chosen = "of the settings chosen on validation data"
    assert said == f"Local has the highest accuracy, LM received, {chosen}: 71.33 ± 1.53 %"
    points = charts_in(text)["bytes"]["views"][0]["table"]
    assert [row[0] for row in points[1:]] == ["Local", "FedAvg lr=0.1"]  # what nothing beats is of chosen settings
    # Differences of 10, 12 and 6 points: their mean is 9.33, their standard deviation 3.06, t = 5.29 in 2 degrees.
    assert "<li>Local is better than FedAvg by 9.33 points (paired t over 3 seeds, p = 0.034)</li>" in text


def test_the_same_runs_outside_a_sweep_say_that_test_data_rank_them(tmp_path):
    write_sweep(tmp_path)
    (tmp_path / "trials.csv").unlink()
    text = render(find_runs([tmp_path]))
    assert leaderboard_of(text)[0][0]["method, setting"] == "FedAvg lr=1"
    assert "A method with several settings has several rows, ranked on test data." in text
    assert "What the seeds say" not in text and "aside" not in leaderboard_of(text)[1][-1]


def test_each_problem_of_a_sweep_has_a_best_row(tmp_path):
    lines = ["method,partition,lr,seeds,chosen,folder"]
    for number, (rule, lr, chosen) in enumerate([("iid", 1, "no"), ("iid", 2, "yes"), ("pat:2", 1, "yes")]):
        setting = f"trial-{number}"
        place = write_run(tmp_path / "fedavg" / setting / "seed-0", values=(0.1, 0.9 - number / 10), lr=lr)
        config = (place / "config.toml").read_text()
        (place / "config.toml").write_text(config.replace('partition = "iid"', f'partition = "{rule}"'))
        lines.append(f"fedavg,{rule},{lr},1,{chosen},fedavg/{setting}")
    (tmp_path / "trials.csv").write_text("\n".join(lines) + "\n")
    best = re.findall(r'<p class="best">(.*?)</p>', render(find_runs([tmp_path])), re.S)
    assert [" ".join(re.sub("<.*?>", "", each).split()) for each in best] == [
        "FedAvg partition=iid lr=2 was chosen on validation data for partition=iid and reaches 80.00 %",
        "FedAvg partition=pat:2 lr=1 was chosen on validation data for partition=pat:2 and reaches 70.00 %",
    ]


def test_runs_that_name_different_moments_are_compared_at_one(tmp_path):
    write_run(tmp_path / "a", "fedavg")
    other = write_run(tmp_path / "b", "fedbabu", moment="adapted")
    summary = json.loads((other / "summary.json").read_text())
    high = {"last": {**summary["accuracy"]["received"]["last"], "acc_pooled": 1.0}, "best": {"acc_pooled": 1.0}}
    summary["accuracy"] |= {"adapted": high, "method_adapted": high}
    (other / "summary.json").write_text(json.dumps(summary))
    text = render(find_runs([tmp_path]))
    cells, _, _ = leaderboard_of(text)
    assert [row["last"] for row in cells] == ["0.75", "0.75"]  # both as received
    assert {row["method"]: (row["LM adapted"], row["LM method adapted"]) for row in cells} == {
        "FedAvg": ("", ""),
        "FedBABU": ("1.0", "1.0"),
    }
    assert "all are compared by accuracy, LM received" in text
    assert "different moments" not in render(find_runs([other]))


def test_the_page_asks_the_network_for_nothing(tmp_path):
    found = Elements(render(find_runs([write_run(tmp_path / "a")])))
    links = [own[key] for _, own in found.tags for key in ("src", "href") if key in own]
    assert links == ["#leaderboard"]
    policy = next(own["content"] for tag, own in found.tags if own.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_ten_methods_five_seeds_two_hundred_rounds_and_a_hundred_clients_stay_below_eight_megabytes(tmp_path):
    assert len(render(find_runs([write_many(tmp_path)])).encode()) < 8_000_000


def test_a_live_page_follows_its_runs_and_ends_with_them(tmp_path):
    folder = write_run(tmp_path / "run" / "a", values=(0.1,), stages=(1,), finished=False)
    page, seen, running = tmp_path / "page.html", [], ExitStack()
    running.enter_context(Lock(folder).held())

    def wait(seconds):
        text = page.read_text(encoding="utf-8")
        seen.append(('http-equiv="refresh"' in text, "Local" in charts_in(text)["rounds"]["views"][0]["table"][0]))
        if len(seen) == 2:
            write_run(tmp_path / "run" / "b", "local")
            running.close()

    with running:
        watch([str(tmp_path / "run")], str(page), wait)
    assert seen == [(True, False)] * 2 + [(True, True)] * IDLE_POLLS
    assert 'http-equiv="refresh"' not in page.read_text(encoding="utf-8")


def test_a_live_page_does_not_wait_for_a_run_that_was_killed(tmp_path, capsys):
    folder, looks = write_run(tmp_path / "a", finished=False), []
    (folder / LOCK).touch()
    (folder / HOLDER).write_text('{"pid": 7, "host": "graz", "started": "noon"}')
    watch([str(folder)], str(tmp_path / "page.html"), looks.append)
    assert len(looks) == IDLE_POLLS
    died = f"'{folder}' stopped before its end: process 7 on graz, since noon, died; --resume continues it\n"
    assert capsys.readouterr().err == died


def test_a_live_page_that_is_interrupted_is_left_as_one_that_is_not_live(tmp_path):
    folder = write_run(tmp_path / "a", finished=False)

    def interrupt(seconds):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch([str(folder)], str(tmp_path / "page.html"), interrupt)
    assert 'http-equiv="refresh"' not in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_commands(tmp_path, capsys):
    write_run(tmp_path / "a", groups={1: [0, 1]})
    write_run(tmp_path / "b", EVIL)
    page, figures = tmp_path / "page.html", tmp_path / "figures"
    assert succeed(capsys, "report", tmp_path, "--out", page) == f"report: {page}\n"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    drawn = succeed(capsys, "plot", tmp_path, "--out", figures, "--format", "svg").splitlines()
    names = ["rounds-received", "clients", "distribution", "bytes", "flops", "partition-made-iid-seed-0", "sharing"]
    assert drawn == [str(figures / f"{name}.svg") for name in [*names, "groups-FedAvg", "ledger"]]
    assert "did you mean 'svg'" in refuse(capsys, "plot", tmp_path, "--format", "svgg")
    assert "is no folder" in refuse(capsys, "report", tmp_path / "c")
    assert "no run in" in refuse(capsys, "report", figures)
    assert invoke(capsys, "report").code == 2
