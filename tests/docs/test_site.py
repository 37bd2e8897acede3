"""The site opens from a folder: it asks the network for nothing, and its search works."""

import re
import shutil
from pathlib import Path

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


def test_the_site_asks_the_network_for_nothing(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 40 and (site / "search" / "search_index.js").is_file()
    for page in pages:
        tags = re.findall(r"<(?:script|link|img)\b[^>]*>", page.read_text(encoding="utf-8"))
        assert not [tag for tag in tags if re.search(r'(?:src|href)="?(?:https?:)?//', tag)], page


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here: apt-get install chromium")
@pytest.mark.parametrize("name", ["index.html", "methods/index.html"])
def test_the_search_finds_a_word_in_a_page_that_was_opened_from_a_folder(site, name):
    playwright = pytest.importorskip("playwright.sync_api", reason="there is no playwright here")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        asked: list[str] = []
        page.on("request", lambda made: asked.append(made.url))
        page.goto((site / name).as_uri())
        page.locator("input.md-search__input").click(timeout=60_000)
        page.locator(".md-search-result__meta", has_text="Type to start").wait_for(timeout=60_000)
        page.keyboard.type("straggler")
        page.locator(".md-search-result__item a", has_text="straggler").first.wait_for(timeout=60_000)
        browser.close()
    assert not [url for url in asked if url.startswith("http")]
