"""Plain English: banned phrases nowhere, short sentences in the README and where a page begins."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
WORDS_IN_A_SENTENCE = 25
WORDS_IN_THE_README = 900
BANNED = [
    line
    for line in (Path(__file__).parent / "banned_phrases.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
READ = [README, *PAGES]


def prose(text: str) -> list[str]:
    """Return a page's paragraphs and list items, without blocks, tables, headings, pictures and targets of links."""
    text = re.sub(r"^```.*?^```$|<!--.*?-->|^(#|\|).*?$", "\n", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text)
    return [" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip(" \n[]()")]


def sentences(paragraph: str) -> list[str]:
    """Return a paragraph's sentences, which end with a full stop, a question mark or an exclamation mark."""
    return re.split(r"(?<=[.!?])[\"*)`]*\s+", paragraph)


def too_long(paragraphs: list[str]) -> list[str]:
    found = [sentence for paragraph in paragraphs for sentence in sentences(paragraph)]
    counted = [(len(sentence.split()), sentence) for sentence in found]
    return [f"{words} words: {sentence}" for words, sentence in counted if words > WORDS_IN_A_SENTENCE]


def pattern(phrase: str) -> str:
    """Match a phrase inside a sentence and at its beginning; `is None` is Python, and no phrase."""
    return rf"(?<!\w)(?i:{re.escape(phrase[0])}){re.escape(phrase[1:])}(?!\w)"


def test_sentences_of_the_readme_are_short():
    assert not too_long(prose(README.read_text(encoding="utf-8")))


def test_the_readme_is_short():
    assert len(README.read_text(encoding="utf-8").split()) <= WORDS_IN_THE_README


@pytest.mark.parametrize("page", READ, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_begins_with_short_sentences(page):
    first, *_ = prose(page.read_text(encoding="utf-8"))
    assert not too_long([first])


@pytest.mark.parametrize("page", READ, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_banned_phrase(page):
    text = " ".join(page.read_text(encoding="utf-8").split())
    assert not [phrase for phrase in BANNED if re.search(pattern(phrase), text)]


def test_a_sentence_that_is_too_long_and_a_banned_phrase_are_found():
    assert too_long(["One short sentence. " + "word " * 26 + "end."]) == ["27 words: " + "word " * 26 + "end."]
    assert "whoever" in BANNED
