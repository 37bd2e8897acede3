"""The page in a real browser: Debian's chromium, wherever it is installed."""

import json
import shutil

import pytest

from partwise.reporting.page.page import render
from partwise.reporting.reading import find_runs
from tests.support.commands import succeed
from tests.support.folders import write_run

EVIL = "<script>document.title='taken'</script><img src=x onerror=alert(1)>"
CHROMIUM = shutil.which("chromium")
MARKS = ".scatterlayer .trace path, .boxlayer .trace path, .barlayer .trace path, .heatmaplayer image"
WIDTHS = {"desktop": (1280, 900), "phone": (390, 844)}

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here: apt-get install chromium")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="there is no playwright here")
    with playwright.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(params=WIDTHS)
def opened(request, browser):
    """Opens pages at a width, and finds whatever they complain of or ask for."""
    width, height = WIDTHS[request.param]
    context = browser.new_context(viewport={"width": width, "height": height}, has_touch=request.param == "phone")
    complaints, asked = [], []

    def go(path):
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda made: asked.append(made.url))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-drawn]", timeout=60_000)
        return page

    yield go
    context.close()
    assert complaints == []
    assert len(asked) == 1  # the file itself


def written(folder, *places):
    path = folder / "page.html"
    path.write_text(render(find_runs(places)), encoding="utf-8")
    return path


def check_drawn(page):
    """Every chart has marks, and nothing sticks out at the side."""
    figures = page.locator("figure[data-chart]")
    assert figures.count()
    for place in range(figures.count()):
        figure = figures.nth(place)
        assert figure.locator(MARKS).count(), figure.get_attribute("data-chart")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def settled(found, number):
    """Wait until there are so many of them."""
    from playwright.sync_api import expect

    expect(found).to_have_count(number, timeout=20_000)


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """Three methods, one of them with everything that a page can show."""
    folder = tmp_path_factory.mktemp("several")
    for seed in (0, 1, 2):
        write_run(folder / f"a{seed}", "fedavg", seed, (0.2, 0.5 + 0.1 * seed, 0.6), stages=(1, 2))
        write_run(folder / f"l{seed}", "local", seed, (0.3, 0.3 + 0.01 * seed, 0.4), sent=0, stages=(1, 2), flops=2e9)
    full = write_run(
        folder / "c", "cfl", values=(0.1, 0.3, 0.7), stages=(1, 2), groups={1: [0, 0], 2: [0, 1]}, flops=3e9
    )
    rows = [json.loads(line) for line in (full / "metrics.jsonl").read_text().splitlines()]
    measured = {"clients": [0, 1], "cka": [[1, 0.5], [0.5, 1]], "cka_mean": 0.5, "separation_mean": 0.2}
    for row in rows:
        row["representations"] = {"body": measured}
    (full / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (full / "t-sne-body.csv").write_text("x,y,label\n0,1,0\n1,0,1\n2,2,0\n")
    return written(folder, folder)


def test_every_chart_is_drawn(opened, several):
    page = opened(several)
    check_drawn(page)
    keys = page.eval_on_selector_all("figure[data-chart]", "all => all.map((one) => one.dataset.chart)")
    assert keys == [
        *("rounds", "clients", "distribution", "bytes", "flops", "partition", "groups"),
        *("cka", "separation", "similarity", "t-sne", "ledger"),
    ]


def test_a_method_can_be_hidden_in_all_charts_by_mouse_and_by_keyboard(opened, several):
    page = opened(several)
    lines = page.locator("figure[data-chart=rounds] .scatterlayer .trace")
    boxes = page.locator("figure[data-chart=distribution] .boxlayer .trace")
    before = lines.count(), boxes.count()
    assert before == (8, 3)  # three lines, two bands, and where stages begin
    page.locator(".chip", has_text="FedAvg").click()
    settled(boxes, 2)
    assert lines.count() == 5
    assert page.locator("#leaderboard tr.off").count() == 1
    page.locator("input[value=FedAvg]").focus()
    page.keyboard.press("Space")
    settled(boxes, 3)
    assert (lines.count(), page.locator("tr.off").count()) == (8, 0)


def test_hovering_tells_the_number(opened, several):
    page = opened(several)
    plot = page.locator("figure[data-chart=bytes] .plot")
    plot.scroll_into_view_if_needed()
    mark = plot.locator(".scatterlayer .trace .points path").first.bounding_box()
    page.mouse.move(mark["x"] + mark["width"] / 2 - 30, mark["y"] + mark["height"] / 2)
    page.mouse.move(mark["x"] + mark["width"] / 2, mark["y"] + mark["height"] / 2)
    page.wait_for_selector("figure[data-chart=bytes] .hoverlayer .hovertext")
    assert "%" in plot.locator(".hoverlayer").text_content()


def test_the_leaderboard_is_sorted_by_any_column(opened, several):
    page = opened(several)
    names = page.locator("#leaderboard tbody th .name")
    assert names.all_text_contents() == ["CFL", "FedAvg", "Local"]
    page.locator("#leaderboard thead button", has_text="sent in all").click()
    assert names.all_text_contents()[-1] == "Local"
    page.locator("#leaderboard thead button", has_text="sent in all").click()
    assert names.first.text_content() == "Local"


def test_views_tables_and_colours_change(opened, several):
    page = opened(several)
    figure = page.locator("figure[data-chart=distribution]")
    figure.locator("summary").click()
    settled(figure.locator("tbody tr"), 3)  # a browser tells that it opened in a task of its own
    back = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(back)
    page.locator("#theme").click()
    assert page.evaluate(back) != light


def test_fault_45_names_are_not_executed(opened, tmp_path):
    event = {"round": 1, "client": 0, "what": EVIL, "detail": EVIL}
    share = [{f"{EVIL}.weight": "ALL"}] * 2
    write_run(tmp_path / "a", EVIL, names=[EVIL, "b"], classes=[EVIL, "c"], events=[event], share=share)
    write_run(tmp_path / "b", "local", clients=(0.1, 0.2, 0.3), groups={1: [0, 1, 1]})
    page = opened(written(tmp_path, tmp_path))
    check_drawn(page)
    assert page.title() != "taken" and page.locator("img").count() == 0
    assert EVIL in page.locator("#leaderboard").text_content()


def test_fault_45_runs_that_ended_early_are_drawn(opened, tmp_path):
    write_run(tmp_path / "interrupted", "a", finished=False, rounds=9)
    write_run(tmp_path / "one round", "b", values=(0.5,), stages=(1,))
    write_run(tmp_path / "one client", "c", clients=(0.5,))
    diverged = write_run(tmp_path / "diverged", "d", finished=False)
    text = (diverged / "metrics.jsonl").read_text()
    (diverged / "metrics.jsonl").write_text(text.replace("0.75", "NaN"))
    check_drawn(opened(written(tmp_path, tmp_path)))


def test_real_runs(opened, tmp_path, capsys):
    methods = "compare", "local", "fedavg", "pacfl"
    made = "--data", "made", "--model", "mlp-100", "--clients", "4", "--rounds", "2", "--train-samples", "64"
    succeed(capsys, *methods, *made, "--seeds", "0,1", "--client-dropout", "0.1", "--out", tmp_path / "runs", "--quiet")
    succeed(capsys, "report", tmp_path / "runs", "--out", tmp_path / "page.html")
    check_drawn(opened(tmp_path / "page.html"))
