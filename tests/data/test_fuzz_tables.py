"""Files that are cut, flipped, stuffed, empty or something else: a data set that passes the check, or one line."""

import gzip
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import datasets
import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partwise.data import Source, check, load
from partwise.data.readers.hugging_face import read_hugging_face
from partwise.data.readers.tables import read
from partwise.data.reading import Reading
from partwise.errors import ConfigError, DataError
from tests.support.files import picture, read_tree
from tests.support.r_files import LOGICAL, NA, factor, frame, integers, rda, rds, reals, texts

FRAME = pandas.DataFrame({
    "age": np.linspace(20, 90, 12),
    "sex": ["f", "m", None] * 4,
    "smokes": [True, False] * 6,
    "site": ["Bern", "Chur", "Zug"] * 4,
    "label": [0, 1, 1, 0] * 3,
})  # fmt: skip
READINGS = st.sampled_from([
    {}, {"missing": "mean"}, {"allow_nonfinite": True}, {"column": "site"}, {"drop": ("sex", "age")}
])  # fmt: skip


def contents(write: Callable[[io.BytesIO], object]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


R_COLUMNS = {
    "age": reals(*FRAME["age"]),
    "sex": factor([1, 2, NA] * 4, ["f", "m"]),
    "smokes": integers(1, *[0, 1] * 5, 0, kind=LOGICAL),
    "site": texts(*FRAME["site"]),
    "label": integers(*FRAME["label"]),
}
R_FRAME = frame(R_COLUMNS, len(FRAME))
TEXT = FRAME.to_csv(index=False).encode()
FILES = {
    "a.csv": TEXT,
    "a.tsv": TEXT.replace(b",", b"\t"),
    "a.csv.gz": gzip.compress(TEXT),
    "a.parquet": contents(FRAME.to_parquet),
    "a.rda": gzip.compress(rda({"table": R_FRAME})),
    "a.rds": rds(R_FRAME),
    "a.npz": contents(lambda file: np.savez(file, x=np.eye(6, dtype=np.float32), y=np.arange(6) % 2)),
    "b.npz": contents(
        lambda file: np.savez_compressed(file, images=np.ones((6, 4, 5), np.uint8), labels=list("abbaab"))
    ),
}


def flipped(raw: bytes, bits: list[int]) -> bytes:
    damaged = bytearray(raw)
    for bit in bits:
        damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def damaged(raw: bytes) -> st.SearchStrategy[bytes]:
    """What may become of a file."""
    places = st.integers(0, len(raw))
    return st.one_of(
        places.map(lambda at: raw[:at]),
        places.map(lambda at: raw[:at].ljust(len(raw), b"\0")),
        st.lists(st.integers(0, 8 * len(raw) - 1), min_size=1, max_size=4).map(lambda bits: flipped(raw, bits)),
        st.tuples(places, st.binary(max_size=20)).map(lambda more: raw[: more[0]] + more[1] + raw[more[0] :]),
        st.binary(max_size=100),
        st.sampled_from(sorted(FILES.values())),
    )


def judged(call: Callable[[], Source]) -> Source | None:
    """The data set, if it can be used; None where it was refused in one line."""
    try:
        return check(call(), allow_nonfinite=True)
    except (ConfigError, DataError) as error:
        assert str(error)
        assert all(len(problem.splitlines()) == 1 for problem in error.problems)
        return None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    datasets.disable_progress_bars()
    yield tmp_path_factory.mktemp("fuzz")
    datasets.enable_progress_bars()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("examples", [30, 100])
def test_damaged_files(name: str, folder: Path, examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(damaged(FILES[name]), READINGS)
    def fuzz(raw: bytes, reading: dict) -> None:
        path = folder / name
        path.write_bytes(raw)
        judged(lambda: load(str(path), **reading))
        assert path.read_bytes() == raw

    fuzz()


@pytest.mark.parametrize("name", FILES)
def test_the_same_files_undamaged(name: str, folder: Path) -> None:
    (folder / name).write_bytes(FILES[name])
    assert judged(lambda: load(str(folder / name))) is not None


cells = st.one_of(
    st.sampled_from(
        ["", "0", "1", "2.5", "-1e9", "1e400", "inf", "nan", "NA", "f", "True", "1,5", "2020-01-01", "\0", "é"]
    ),
    st.text(max_size=5),
    st.floats().map(str),
    st.integers().map(str),
)


@pytest.mark.parametrize("examples", [50, 150])
def test_any_table(folder: Path, examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(st.data(), READINGS, st.sampled_from([",", "\t", ";"]))
    def fuzz(data: st.DataObject, reading: dict, separator: str) -> None:
        width = data.draw(st.integers(1, 4))
        rows = data.draw(st.lists(st.lists(cells, min_size=width, max_size=width), max_size=6))
        names = st.lists(cells, min_size=2, max_size=2)
        header = data.draw(st.permutations(["label", "site", *data.draw(names)]))[:width]
        quoted = [[f'"{cell}"' if data.draw(st.booleans()) else cell for cell in row] for row in rows]
        text = "\n".join(separator.join(row) for row in [header, *quoted])
        path = folder / "any.csv"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        source = judged(lambda: read(path, Reading(**reading)))
        if source is not None:
            assert source.x.shape == (len(source.y), len(source.feature_names))
            assert not source.task.check(source.y)
            assert not source.task.of_classes or source.classes == len(source.class_names) >= 2

    fuzz()


@pytest.fixture(scope="module")
def saved(folder: Path) -> Path:
    """A table and images, as Hugging Face's library saves them."""
    images = [{"bytes": picture(at), "path": None} for at in range(12)]
    table = datasets.Dataset.from_pandas(FRAME)
    table.save_to_disk(folder / "saved" / "table")
    table.add_column("image", images).cast_column("image", datasets.Image()).save_to_disk(folder / "saved" / "images")
    (folder / "saved" / "parquet").mkdir()
    table.to_parquet(folder / "saved" / "parquet" / "train.parquet")
    return folder / "saved"


@pytest.mark.parametrize("kind", ["table", "images", "parquet"])
@pytest.mark.parametrize("examples", [6, 25])
def test_damaged_hugging_face_folders(kind: str, saved: Path, examples: int) -> None:
    whole = read_tree(saved / kind)

    @settings(max_examples=examples, deadline=None)
    @given(data=st.data(), reading=READINGS)
    def fuzz(data: st.DataObject, reading: dict) -> None:
        path = Path(data.draw(st.sampled_from(sorted(whole))))
        raw = data.draw(damaged(path.read_bytes()))
        try:
            path.write_bytes(raw)
            judged(lambda: read_hugging_face(str(saved / kind), Reading(**reading)))
            assert path.read_bytes() == raw
        finally:
            path.write_bytes(whole[str(path)])
        assert read_tree(saved / kind) == whole  # and nothing was added

    fuzz()
    assert judged(lambda: read_hugging_face(str(saved / kind), Reading())) is not None
