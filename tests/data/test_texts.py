"""Columns of texts: tokens, the vocabulary of the clients' training samples, and what models do with new texts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import partwise
from partwise.data import Federation, Source, load, partition
from partwise.data.tokens import ALPHABET, made_tokenizer, split_words
from partwise.data.transforms import TextTransform
from partwise.data.vocabulary import with_vocabulary
from partwise.errors import ConfigError, DataError
from partwise.inference.exporting import export
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from tests.support.files import refusal

ROWS = [  # client, text, age, label
    ("a", "The good, good film", 30, 1),
    ("a", "bad film!", 40, 0),
    ("a", "", 50, 1),
    ("b", "a bad, BAD story", 60, 0),
    ("b", "good story", 20, 1),
    ("b", "film film film", 10, 0),
]


def frame(rows: list[tuple[str, str, int, int]] = ROWS) -> pandas.DataFrame:
    return pandas.DataFrame(rows, columns=["client", "note", "age", "label"])


def written(folder: Path) -> str:
    path = folder / "notes.csv"
    frame().to_csv(path, index=False)
    return str(path)


def notes(folder: Path, **reading: Any) -> Source:
    return load(written(folder), text="note", **{"drop": ("age",), **reading})


def all_trained(source: Source) -> Federation:
    """Everything is for training: `a` has rows 0 to 2, `b` the others."""
    sets = [torch.arange(3), torch.arange(3, 6)]
    none = torch.arange(0)
    return Federation(source, sets, [none, none], none)


def text_of(source: Source) -> TextTransform:
    assert source.text is not None
    return source.text


def words(source: Source) -> list[list[str]]:
    names = ["", "?", *text_of(source).vocabulary]
    assert isinstance(source.x, torch.Tensor)
    return [[names[token] for token in row] for row in source.x.tolist()]


def test_words_are_in_lower_case_and_marks_stand_alone() -> None:
    assert split_words("The good, GOOD film_2!?") == ["the", "good", ",", "good", "film_2", "!", "?"]


def test_texts_before_a_vocabulary_is_fitted(tmp_path: Path) -> None:
    source = notes(tmp_path)
    assert source.x.dtype == torch.int64 and source.shape == (5,) and source.model == "gru"
    assert words(source)[:3] == [["the", "good", ",", "good", "film"], ["bad", "film", "!", "", ""], [""] * 5]


def test_a_vocabulary_by_hand(tmp_path: Path) -> None:
    """film, good, bad and the comma are with both clients; story is in two samples of one client."""
    source = with_vocabulary(all_trained(notes(tmp_path))).source
    assert text_of(source).vocabulary == (
        "film",
        "bad",
        "good",
        ",",
        "story",
    )  # 5, 3, 3 and 2 times; 2 times, one client
    assert words(source)[3:] == [
        ["?", "bad", ",", "bad", "story"],
        ["good", "story", "", "", ""],
        ["film"] * 3 + [""] * 2,
    ]
    assert source.x.max() == 6 and source.vocabulary == 7
    once = with_vocabulary(all_trained(notes(tmp_path, min_token_count=1))).source
    assert text_of(once).vocabulary == ("film", "bad", "good", ",", "story", "!", "a", "the")
    few = with_vocabulary(all_trained(notes(tmp_path, vocabulary=2))).source
    assert text_of(few).vocabulary == ("film", "bad")


def test_characters(tmp_path: Path) -> None:
    source = with_vocabulary(all_trained(notes(tmp_path, tokens="characters", text_length=4))).source
    assert words(source)[1] == ["b", "a", "d", " "] and source.shape == (4,)
    fixed = notes(tmp_path, tokens="ascii")
    assert text_of(fixed).vocabulary == ALPHABET and text_of(fixed).limits is None
    assert with_vocabulary(all_trained(fixed)).source is fixed
    assert fixed.x[4, :5].tolist() == [2 + ALPHABET.index(character) for character in "good "]


def test_what_is_not_for_training_changes_no_vocabulary_and_the_order_of_clients_neither(tmp_path: Path) -> None:
    source = notes(tmp_path)
    whole = all_trained(source)
    swapped = replace(whole, train=whole.train[::-1])
    assert text_of(with_vocabulary(swapped).source) == text_of(with_vocabulary(whole).source)
    test = [torch.tensor([2]), torch.tensor([3, 5])]
    part = Federation(source, [torch.tensor([0, 1]), torch.tensor([4])], test, torch.tensor([2, 3, 5]))
    others = frame([*ROWS[:2], ("a", "unseen unseen", 50, 1), ("b", "unseen", 60, 0), ROWS[4], ("b", "x", 10, 0)])
    changed = partwise.data.own.as_data(others, partwise.data.reading.Reading(text="note", drop=("age",)))
    same = with_vocabulary(replace(part, source=changed)).source
    assert text_of(same).vocabulary == text_of(with_vocabulary(part).source).vocabulary == ("good", "film")


def test_other_columns_stand_beside_the_text_and_are_standardised_as_without_it(tmp_path: Path) -> None:
    class Both(torch.nn.Module):
        def __init__(self, vocabulary: int, shape: dict[str, tuple[int, ...]], outputs: int):
            super().__init__()
            self.embed, self.head = torch.nn.Embedding(vocabulary, 4), torch.nn.Linear(4 + shape["row"][0], outputs)

        def forward(self, x: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.head(torch.cat([self.embed(x["tokens"]).mean(1), x["row"]], 1))

    settings = {"rounds": 2, "test_share": 0.4, "min_samples": 0, "min_token_count": 1}
    result = partwise.run("fedper", data=frame(), text="note", model=Both, out=str(tmp_path / "run"), **settings)
    source = result.federation.source
    assert source.shape == {"row": (1,), "tokens": (5,)} and source.feature_names == ("age",)
    alone = partwise.run("fedper", data=frame(), drop="note", rounds=1, test_share=0.4, min_samples=0)
    assert (source.centre, source.scale) == (alone.federation.source.centre, alone.federation.source.scale)
    rows = result.models[0].standardised(source.x)["row"]
    assert torch.allclose(rows, (source.x["row"] - source.centre[0]) / source.scale[0])
    model = partwise.load_model(tmp_path / "run", client="b", model=Both)
    test = result.federation.test[1]
    given = frame().iloc[test.tolist()].sample(frac=1, axis=1, random_state=0)  # columns in another order
    wanted = result.models[1]({name: own[test] for name, own in source.x.items()}).softmax(1)
    assert np.allclose(model.predict_proba(given), wanted.detach().numpy(), atol=1e-6)
    assert "no built-in network takes" in refusal(
        ConfigError, lambda: partwise.run("fedavg", data=frame(), text="note", **settings)
    )


SETTINGS: dict[str, Any] = {"text": "note", "drop": "age", "min_samples": 0, "test_share": 0.4, "min_token_count": 1}


@pytest.mark.parametrize("tokens", ["words", "characters", "ascii"])
def test_models_take_new_texts(tmp_path: Path, tokens: str) -> None:
    run = partwise.run("fedper", data=frame(), rounds=1, tokens=tokens, out=str(tmp_path / "run"), **SETTINGS)
    model = partwise.load_model(tmp_path / "run", client="a")
    source = run.federation.source
    assert isinstance(source.x, torch.Tensor)
    assert np.allclose(model.predict_proba(frame()), run.models[0](source.x).softmax(1).detach(), atol=1e-6)
    longer = model.predict_proba({"note": ["wholly new words \N{SNOWMAN} in a text that is longer than any other"]})
    assert np.isfinite(longer).all()
    assert "floating, no texts" in refusal(DataError, lambda: model.predict({"note": [1.5]}))
    assert "lacks 'note'" in refusal(DataError, lambda: model.predict({"age": [1]}))
    export(model, tmp_path / "out", formats=("pt2",))
    x = source.x[:2]
    program = torch.export.load(tmp_path / "out" / "model.pt2").module()
    assert torch.allclose(program(x)["logits"], run.models[0](x), atol=1e-5)
    assert "int64" in (tmp_path / "out" / "README.md").read_text()


def test_a_newcomers_texts_are_in_the_runs_tokens(tmp_path: Path) -> None:
    partwise.run("fedper", data=frame(), rounds=1, out=str(tmp_path / "run"), **SETTINGS)
    mine = frame([("c", "good film", 1, 1), ("c", "an unseen film", 2, 0), ("c", "bad", 3, 0), ("c", "good", 4, 1)])
    joined = partwise.join(tmp_path / "run", mine.drop(columns="client"), name="c", test_share=0.5)
    first, own = (
        json.loads((folder / "model.json").read_text())["input"]["text"] for folder in (tmp_path / "run", joined.folder)
    )
    assert own == first


def test_seeds_do_not_share_a_vocabulary() -> None:
    """Seeds side by side share what was read, but each seed has other training samples."""
    first = prepare(make_config("fedavg", {"seed": 0, **SETTINGS}), frame())
    second = prepare(make_config("fedavg", {"seed": 3, **SETTINGS}), frame(), beside=first)
    alone = prepare(make_config("fedavg", {"seed": 3, **SETTINGS}), frame())
    assert second.federation.fingerprint() == alone.federation.fingerprint() != first.federation.fingerprint()


def tokenizer_file(folder: Path, tokens: list[str]) -> Path:
    """A tokenizer of words that pads to ten tokens and cuts after two."""
    tokenizers = pytest.importorskip("tokenizers")
    numbers = {token: number for number, token in enumerate(tokens)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.enable_padding(length=10)
    made.enable_truncation(2)
    made.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


@pytest.mark.parametrize(("special", "shift"), [(["[PAD]", "[UNK]"], 0), (["[UNK]"], 1)])
def test_a_tokenizer_neither_pads_nor_cuts_and_its_numbers_leave_0_to_padding(
    tmp_path: Path, special: list[str], shift: int
) -> None:
    known = [*special, "film", "good", "bad"]
    path = tokenizer_file(tmp_path, known)
    source = notes(tmp_path, tokens=str(path))
    names = ["", *known] if shift else ["", *known[1:]]
    assert source.vocabulary == len(known) + shift == len(names)
    assert isinstance(source.x, torch.Tensor)
    assert [names[token] for token in source.x[5].tolist()] == ["film"] * 3 + [""] * (source.x.shape[1] - 3)
    settings = {**SETTINGS, "min_token_count": 2, "rounds": 1, "tokens": str(path), "text_length": 4}
    run = partwise.run("fedper", data=frame(), out=str(tmp_path / "run"), **settings)
    path.unlink()  # the models keep it
    made_tokenizer.cache_clear()
    model = partwise.load_model(tmp_path / "run", client="a")
    assert np.allclose(
        model.predict_proba(frame()), run.models[0](run.federation.source.x).softmax(1).detach(), atol=1e-6
    )


def test_whole_numbers_keep_their_vocabulary_with_the_models(tmp_path: Path) -> None:
    x = np.arange(60).reshape(20, 3) % 7
    settings = {"clients": 2, "partition": "iid", "rounds": 1, "model": "transformer", "out": str(tmp_path / "run")}
    run = partwise.run("fedavg", data=(x, np.arange(20) % 2), **settings)
    model = partwise.load_model(tmp_path / "run")
    assert np.allclose(model.predict_proba(x), run.models[0](torch.from_numpy(x)).softmax(1).detach(), atol=0.2)
    line = refusal(DataError, lambda: model.predict(x + 1))
    assert line == "samples hold 1..7; the model knows tokens 0..6"


@pytest.mark.parametrize(("reading", "line"), [
    ({"text": "nota"}, "unknown column 'nota'; did you mean 'note'?"),
    ({"text": "age", "drop": ("note",)}, "column 'age': integer, no texts; choose another column with --text"),
    ({"text": None, "drop": ("note",), "tokens": "characters"}, "tokens: applies only to texts; say which column of "),
    ({"text": "note", "tokens": "no.json"}, "cannot read the tokenizer 'no.json'"),
])  # fmt: skip
def test_one_line_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reading: dict[str, Any], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path)
    assert line in refusal(DataError if "applies" not in line else ConfigError, lambda: load(path, **reading))


def test_settings_that_fit_nothing_are_refused(tmp_path: Path) -> None:
    line = refusal(ConfigError, lambda: make_config("fedavg", {"tokens": "word"}))
    assert "unknown kind of tokens 'word'; did you mean 'words'?" in line
    assert "text: applies only to tables" in refusal(ConfigError, lambda: load("made", text="note"))
    rare = all_trained(notes(tmp_path, min_token_count=4))
    assert "no token is in 4 training samples; use --min-token-count 1" in refusal(
        DataError, lambda: with_vocabulary(rare)
    )
    empty = frame([("a", "", 1, 1), ("b", "", 2, 0)])
    reading = partwise.data.reading.Reading(text="note")
    assert "column 'note': every text is empty" in refusal(DataError, lambda: partwise.data.own.as_data(empty, reading))


def test_a_parquet_file_and_a_csv_file_hold_the_same_texts(tmp_path: Path) -> None:
    frame().to_parquet(tmp_path / "notes.parquet")
    other = load(str(tmp_path / "notes.parquet"), text="note", drop=("age",))
    sets = [partition(source, "auto", None, 0, min_samples=0) for source in (notes(tmp_path), other)]
    assert sets[0].fingerprint() == sets[1].fingerprint()
