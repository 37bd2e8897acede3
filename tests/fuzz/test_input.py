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

from partwise.cli import main
from partwise.method import Method
from tests.fuzz.drawing import EVERY, files, options
from tests.fuzz.mistakes import FILES

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "30"))
LONGEST = 120  # seconds of one example; more is a hang
TINY = ("--data", "made", "--clients", "4", "--rounds", "2", "--train-samples", "40", "--quiet")
IID = ("--partition", "iid")
CODES = {0, 1, 2, 3, 4}
fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
pytestmark = pytest.mark.filterwarnings("ignore")
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
    """Carry out a run, which ends with a usable result or with one line; returns what it told."""
    out, err = io.StringIO(), io.StringIO()
    with in_time(), redirect_stdout(out), redirect_stderr(err):
        code = main([*map(str, arguments), "--out", "x", "--overwrite"])
    told = err.getvalue()
    seen[kind, code] += 1
    assert code in CODES and "Traceback" not in told, told
    # Python's own error is told only where a method file may be to blame, as a mistake of its writer.
    assert "--debug shows where" not in told or (kind, code) == ("method", 2), told
    if code:
        assert told.splitlines()[-1].startswith("error: "), told
    else:
        assert "results" in out.getvalue()
        found = [value for value in accuracies(json.loads(Path("x/summary.json").read_text())) if value is not None]
        assert found and all(math.isfinite(value) and 0 <= value <= 1 for value in found if isinstance(value, float))
    return told


def assert_a_third_runs(kind):
    """A search that sees refusals alone shows little."""
    runs = {code: number for (each, code), number in seen.items() if each == kind}
    assert 3 * runs.get(0, 0) >= sum(runs.values()), runs


def accuracies(value):
    """Every accuracy of a summary."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from accuracies(inner) if isinstance(inner, dict) else [inner] if "acc" in name else []


# ------------------------------------------------------------------------------------------------- configurations


def test_configurations():
    @fuzzed
    @given(options())
    def fuzz(drawn):
        method, words = drawn
        check("configuration", "run", method, *TINY, *words)

    fuzz()
    assert_a_third_runs("configuration")


# --------------------------------------------------------------------------------------------------- method files


@fuzzed
@given(st.sampled_from(FILES), st.sampled_from(["loop", "vector", "auto"]))
def test_method_files(text, engine):
    Path("mine.py").write_text(text)
    told = check("method", "run", "mine.py", *TINY, "--model", "mlp-100", "--engine", engine)
    assert told == "" or "mine.py" in told or "Mine" in told or "error: " in told


# ----------------------------------------------------------------------------------------------------- data files


def test_data_files():
    @fuzzed
    @given(files())
    def fuzz(drawn):
        ending, content = drawn
        path = Path(f"data.{ending}")
        path.write_bytes(content)
        check("data", "run", "fedavg", "--data", path, "--clients", "2", "--rounds", "1", "--quiet", *IID)

    fuzz()
    assert_a_third_runs("data")


def test_fields_are_known():
    """What is fuzzed is what there is."""
    assert {spec.name for spec in dataclasses.fields(Method)} <= EVERY.keys()
