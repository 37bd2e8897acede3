"""Partitions to look at: the numbers in the table, and what the picture shows and does not cover."""

import json
import sys
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from matplotlib import rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from scipy.spatial.distance import jensenshannon

from partwise.data import Federation, Source
from partwise.errors import ConfigError, DataError
from partwise.reporting.partitions import label_skew, partition_facts, partition_table, plot_partition


def federation(counts: Any, names: tuple[str, ...] = (), classes: tuple[str, ...] = (), tested: int = 1) -> Federation:
    """Clients with these training samples, (clients, classes), and `tested` samples of class 0 each for testing."""
    counts = np.asarray(counts)
    labels = [np.repeat([*range(counts.shape[1]), 0], [*row, tested]) for row in counts]
    y = torch.from_numpy(np.concatenate(labels))
    own = torch.arange(len(y)).split([len(part) for part in labels])
    train, test = [mine[: len(mine) - tested] for mine in own], [mine[len(mine) - tested :] for mine in own]
    images = torch.zeros(len(y), 1, 1, 1, dtype=torch.uint8)
    source = Source("ours", images, y, counts.shape[1], len(y), (0.0,), (1.0,), class_names=classes)
    return Federation(source, train, test, torch.cat(test), rule="dir:0.1", names=names)


SMALL = federation([[6, 2, 0], [0, 0, 0], [0, 0, 4]], ("north", "1", "south"), ("mild", "moderate", "severe"))


def test_the_table_by_hand() -> None:
    cells = partition_table(SMALL)
    assert cells.title == "ours, 3 clients, dir:0.1"
    assert cells.header == ["client", "train", "validation", "test", "classes", "largest class"]
    assert cells.rows == [
        ["0 north", "8", "0", "1", "2", "75.00"],
        ["1", "0", "0", "1", "0", "-"],
        ["2 south", "4", "0", "1", "1", "100.00"],
    ]
    assert cells.notes[0] == "training samples: 12 in all; smallest client 0, largest 8, median 4"
    assert cells.notes[1].startswith("classes: of 3 in the data set, 1.0 at a client on average")


def test_a_long_table_leaves_out_the_middle_and_says_so() -> None:
    whole, long = (
        partition_table(federation(np.ones((40, 2), int))),
        partition_table(federation(np.ones((1000, 2), int))),
    )
    assert [row[0] for row in whole.rows] == [str(client) for client in range(40)]
    assert [row[0] for row in long.rows] == [*map(str, range(20)), "...", *map(str, range(980, 1000))]
    assert {len(row) for row in long.rows} == {len(long.header)}
    assert long.notes[0] == "...: clients 20 to 979 are left out here"
    assert "2,000 in all" in long.notes[1]


def test_the_description_is_for_programs() -> None:
    told = json.loads(json.dumps(asdict(partition_facts(SMALL))))
    assert told["counts"] == [[6, 0, 0], [2, 0, 0], [0, 0, 4]]  # class x client
    assert (told["train"], told["validation"], told["test"]) == ([8, 0, 4], [0, 0, 0], [1, 1, 1])
    assert (told["names"], told["classes"]) == (["north", "1", "south"], ["mild", "moderate", "severe"])
    assert (told["data"], told["rule"], told["clients"], told["global_test"]) == ("ours", "dir:0.1", 3, 3)
    assert partition_facts(federation([[1, 1]])).classes == ["0", "1"]


counts_of_clients = arrays.arrays(
    np.int64, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=st.integers(0, 50)
)


@settings(max_examples=100, deadline=None)
@given(counts_of_clients)
def test_label_skew_is_the_mean_of_scipys_divergences(counts: np.ndarray) -> None:
    each = [jensenshannon(row, counts.sum(axis=0), base=2) ** 2 for row in counts if row.sum()]
    assert label_skew(counts) == pytest.approx(np.nan_to_num(np.mean(each)) if each else 0, abs=1e-7)
    assert label_skew(np.tile(counts[:1], (3, 1))) == pytest.approx(0, abs=1e-12)


def test_label_skew_by_hand() -> None:
    assert label_skew(np.array([[1, 0], [0, 1]])) == pytest.approx(1.5 - 0.75 * np.log2(3))  # H(3/4, 1/4) - H(1/2)/2


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that would be saved."""
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    return figures


def random_counts(clients: int, classes: int) -> np.ndarray:
    random = np.random.default_rng(0)
    return random.integers(1, 400, (clients, classes)) * (random.random((clients, classes)) < 0.5)


def numbered(text: str, clients: int) -> tuple[str, ...]:
    return tuple(text.format(number) for number in range(clients))


PICTURES: dict[str, Federation] = {
    "10 classes x 20 clients": federation(random_counts(20, 10)),
    "100 classes x 100 clients": federation(random_counts(100, 100), classes=numbered("the class of number {}", 100)),
    "7 classes x 4 domains": federation(
        random_counts(4, 7), ("art_painting", "cartoon", "photo", "sketch"), numbered("class {}", 7)
    ),
    "long names with signs of formulas": federation(
        random_counts(30, 2), numbered("$the hospital_{} of {{a town", 30), ("ja", "$n_ö$")
    ),
    "numbers for names": federation(random_counts(8, 3), numbered("1234{}", 8)),
    "a single client": federation([[3]]),
    "no training samples": federation([[0, 0], [0, 0]]),
}


@pytest.mark.parametrize(("ending", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PDF", b"%PDF")])
def test_a_picture_is_of_the_kind_that_its_name_says(tmp_path: Path, ending: str, start: bytes) -> None:
    before, path = dict(rcParams), tmp_path / f"picture{ending}"
    plot_partition(PICTURES["long names with signs of formulas"], path)
    assert path.read_bytes().startswith(start)
    assert list(tmp_path.iterdir()) == [path]
    assert dict(rcParams) == before


@pytest.mark.parametrize("name", PICTURES)
def test_areas_are_numbers_of_samples_and_nothing_covers_anything(
    tmp_path: Path, drawn: list[Figure], name: str
) -> None:
    given = PICTURES[name]
    plot_partition(given, tmp_path / "picture.png")
    axes, key = drawn[0].axes
    counts, bubbles = given.class_counts().numpy(), axes.collections[0]
    client, label = np.asarray(bubbles.get_offsets()).astype(int).T
    assert {*zip(client, label, strict=True)} == {*zip(*counts.nonzero(), strict=True)}

    areas = np.append(bubbles.get_sizes(), [example.get_sizes()[0] for example in key.collections])
    examples = [int(text.get_text()) for text in key.texts[1:]]  # the first one is the title
    unit = areas / np.append(counts[client, label], examples)
    assert np.allclose(unit, unit[0])
    assert np.sqrt(areas.max()) <= (72 * drawn[0].get_size_inches() / counts.shape).min()  # wide as its place at most

    renderer = FigureCanvasAgg(drawn[0]).get_renderer()
    for texts in (axes.get_xticklabels(), axes.get_yticklabels(), key.texts):
        boxes = [text.get_window_extent(renderer) for text in texts if not text.get_rotation()]
        assert not any(one.overlaps(next_one) for one, next_one in pairwise(boxes))


def test_names_are_shown_in_full_where_there_is_room(tmp_path: Path, drawn: list[Figure]) -> None:
    for name in ("7 classes x 4 domains", "long names with signs of formulas", "numbers for names"):
        plot_partition(PICTURES[name], tmp_path / "picture.png")
        shown = [text.get_text() for text in drawn[-1].axes[0].get_xticklabels()]
        assert shown == [label if len(label) <= 24 else f"{label[:23]}…" for label in PICTURES[name].names]


def test_numbers_of_many_clients_are_thinned_evenly(tmp_path: Path, drawn: list[Figure]) -> None:
    plot_partition(federation(random_counts(1000, 10)), tmp_path / "picture.png")
    shown = [int(text.get_text()) for text in drawn[0].axes[0].get_xticklabels()]
    assert shown == list(range(0, 1000, 50))
    assert (drawn[0].get_size_inches() <= 14).all()


@pytest.mark.parametrize("path", ["picture.jpg", "picture", ".png"])
def test_another_ending_is_refused(path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plot_partition(SMALL, path)
    assert str(caught.value) == f"cannot draw '{path}': the name of a picture must end in .png, .svg, .pdf"


def test_a_place_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot write '.*missing/a.svg': No such file or directory"):
        plot_partition(SMALL, tmp_path / "missing" / "a.svg")
    (tmp_path / "a.svg").mkdir()
    with pytest.raises(ConfigError, match=r"cannot write '.*a.svg': "):
        plot_partition(SMALL, tmp_path / "a.svg")
    assert [path.name for path in tmp_path.iterdir()] == ["a.svg"]


def test_without_matplotlib_it_is_said_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(DataError, match=r"pip install 'partwise\[plots\]'"):
        plot_partition(SMALL, tmp_path / "a.png")
