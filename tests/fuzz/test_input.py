"""Whatever stands in a configuration, a method file or a data file: one line and its exit code, or a usable result.

`python -m tests.fuzz --examples 1000` tries more of them.
"""

import dataclasses
import io
import json
import math
import os
import signal
from collections import Counter
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partwise import methods
from partwise.cli import main
from partwise.method import Method
from partwise.runs.config import known_fields
from tests.fuzz.mistakes import FILES

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "30"))
LONGEST = 120  # seconds of one example; more is a hang
TINY = ("--data", "made", "--clients", "4", "--rounds", "2", "--quiet")
CODES = {0, 1, 2, 3, 4}
fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
seen: Counter[tuple[str, int]] = Counter()


class Hang(BaseException):
    """It takes too long."""


@contextmanager
def in_time():
    def over(*_):
        raise Hang

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    print(dict(seen))  # -s shows it
    seen.clear()


def check(kind, *arguments):
    """Carry out a command; returns its exit code."""
    out, err = io.StringIO(), io.StringIO()
    with in_time(), redirect_stdout(out), redirect_stderr(err):
        code = main(list(map(str, arguments)))
    told = err.getvalue()
    seen[kind, code] += 1
    assert code in CODES and "Traceback" not in told, told
    if code:
        assert told.splitlines()[-1].startswith("error: "), told
    else:
        assert "results" in out.getvalue()
    return code, told


def accuracies(value):
    """Every accuracy of a summary."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from accuracies(inner) if isinstance(inner, dict) else [inner] if "acc" in name else []


# ------------------------------------------------------------------------------------------------- configurations

FIELDS = {name: spec for method in methods.names() for name, spec in known_fields(methods.find(method)).items()}
FIELDS = {name: spec for name, spec in FIELDS.items() if name not in ("data", "data_root", "device", "download")}
DEAR = {
    "rounds",
    "epochs",
    "clients",
    "finetune_epochs",
    "image_size",
    "threads",
    "workers",
    "model",
}  # time and memory
SMALL = st.sampled_from(["0", "1", "2", "3", "-1", "x", "1.5", ""])
VALUES = st.one_of(
    SMALL,
    st.integers(-3, 40).map(str),
    st.floats(allow_nan=True).map(repr),
    st.sampled_from(["nan", "inf", "-inf", "1e-30", "1e30", "true", "auto", "all", "dir:0.1", "pat:2", "iid", "sgd"]),
    st.sampled_from(
        ["adamw", "received", "adapted", "trained", "flip,crop:1", "0,1", "1,2,3", "none", "loop", "vector"]
    ),
    st.text(max_size=8),
)


@st.composite
def options(draw):
    chosen = draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=4, unique=True))
    words = []
    for name in chosen:
        option = "--" + name.replace("_", "-")
        if FIELDS[name].type in (bool, "bool"):
            words.append(draw(st.sampled_from([option, option.replace("--", "--no-", 1)])))
        else:
            words.append(f"{option}={draw(SMALL if name in DEAR else VALUES)}")
    return draw(st.sampled_from(methods.names())), words


@fuzzed
@given(options())
def test_configurations(drawn):
    method, words = drawn
    code, told = check("configuration", "run", method, *TINY, *words, "--out", "x", "--overwrite")
    assert "--debug shows where" not in told, told
    if code == 0:
        found = [value for value in accuracies(json.loads(Path("x/summary.json").read_text())) if value is not None]
        assert found and all(math.isfinite(value) and 0 <= value <= 1 for value in found if isinstance(value, float))


# --------------------------------------------------------------------------------------------------- method files


@fuzzed
@given(st.sampled_from(FILES), st.sampled_from(["loop", "vector", "auto"]))
def test_method_files(text, engine):
    Path("mine.py").write_text(text)
    _, told = check("method", "run", "mine.py", *TINY, "--model", "mlp-100", "--engine", engine)
    assert told == "" or "mine.py" in told or "Mine" in told or "error: " in told


# ----------------------------------------------------------------------------------------------------- data files

CELLS = st.sampled_from(
    ["1", "2", "-3.5", "a", "b", "", "nan", "1e400", "=1", "\x1b[2J", "ä", '"', "'", "1,2", "NA", "0x1"]
)


@st.composite
def tables(draw):
    width = draw(st.integers(0, 4))
    header = draw(st.lists(st.sampled_from(["x", "y", "label", "client", "", "x y"]), min_size=width, max_size=width))
    rows = draw(st.lists(st.lists(CELLS, min_size=max(0, width - 1), max_size=width + 1), max_size=30))
    rows = rows * draw(st.sampled_from([1, 1, 10]))
    return draw(st.sampled_from([",", ";", "\t"])).join(header) + "\n" + "\n".join(",".join(row) for row in rows)


@fuzzed
@given(
    st.one_of(tables().map(str.encode), st.binary(max_size=200)), st.sampled_from(["csv", "csv.gz", "npz", "parquet"])
)
def test_data_files(content, ending):
    path = Path(f"data.{ending}")
    path.write_bytes(content)
    check("data", "run", "fedavg", "--data", path, "--clients", "2", "--rounds", "1", "--quiet", "--partition", "iid")


def test_fields_are_known():
    """What is fuzzed is what there is."""
    assert {spec.name for spec in dataclasses.fields(Method)} <= {*FIELDS, "rounds"}
