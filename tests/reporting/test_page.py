"""The page as a file: what stands in it, what cannot, and how large it is."""

import json
import re
from contextlib import ExitStack
from html.parser import HTMLParser

import pytest

from partwise.commands.reporting import QUIET, watch
from partwise.reporting.page.page import render
from partwise.reporting.page.records import find_runs
from partwise.runs.lock import HOLDER, LOCK, Lock
from tests.cli.helpers import invoke, refuse, succeed
from tests.reporting.folders import write_many, write_run

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
    assert set(charts) == {"rounds", "sorted", "distribution", "bytes", "flops", "partition", "groups", "ledger"}
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
    assert titles == ["2 settings of fedavg on made", "3 settings of 2 methods on made"]
    assert all(">method, setting</button>" in page and "fedavg lr=0.1<" in page for page in pages)
    assert "<dt>methods</dt><dd>2</dd></div><div><dt>settings</dt><dd>3</dd>" in re.sub(r">\s+<", "><", pages[1])


def test_the_page_asks_the_network_for_nothing(tmp_path):
    found = Elements(render(find_runs([write_run(tmp_path / "a")])))
    links = [own[key] for _, own in found.tags for key in ("src", "href") if key in own]
    assert links == ["#leaderboard"]
    policy = next(own["content"] for tag, own in found.tags if own.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


@pytest.mark.slow
def test_ten_methods_five_seeds_two_hundred_rounds_and_a_hundred_clients_stay_below_eight_megabytes(tmp_path):
    assert len(render(find_runs([write_many(tmp_path)])).encode()) < 8_000_000


def test_a_live_page_follows_its_runs_and_ends_with_them(tmp_path):
    folder = write_run(tmp_path / "run" / "a", values=(0.1,), stages=(1,), finished=False)
    page, seen, running = tmp_path / "page.html", [], ExitStack()
    running.enter_context(Lock(folder).held())

    def wait(seconds):
        text = page.read_text(encoding="utf-8")
        seen.append(('http-equiv="refresh"' in text, "local" in charts_in(text)["rounds"]["views"][0]["table"][0]))
        if len(seen) == 2:
            write_run(tmp_path / "run" / "b", "local")
            running.close()

    with running:
        watch([str(tmp_path / "run")], str(page), wait)
    assert seen == [(True, False)] * 2 + [(True, True)] * QUIET
    assert 'http-equiv="refresh"' not in page.read_text(encoding="utf-8")


def test_a_live_page_does_not_wait_for_a_run_that_was_killed(tmp_path, capsys):
    folder, looks = write_run(tmp_path / "a", finished=False), []
    (folder / LOCK).touch()
    (folder / HOLDER).write_text('{"pid": 7, "host": "graz", "started": "noon"}')
    watch([str(folder)], str(tmp_path / "page.html"), looks.append)
    assert len(looks) == QUIET
    died = f"'{folder}' is not finished and no longer runs: process 7 on graz, since noon, died\n"
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
    assert drawn == [str(figures / f"{name}.svg") for name in [*names, "groups-fedavg", "ledger"]]
    assert "did you mean 'svg'" in refuse(capsys, "plot", tmp_path, "--format", "svgg")
    assert "is no folder" in refuse(capsys, "report", tmp_path / "c")
    assert "no run in" in refuse(capsys, "report", figures)
    assert invoke(capsys, "report").code == 2
