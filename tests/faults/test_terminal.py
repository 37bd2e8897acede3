"""Fault 32: whatever the terminal, the locale, the home folder and the clock are, a run completes with plain lines."""

import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

from tests.support.commands import TINY, read_json, succeed

COMMAND = ["compare", "local", "mine.py", "--seeds", "0,1", *TINY, "--rounds", "1", "--out", "x"]
PLACE = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "TERM": "dumb", "PYTHONUTF8": "0"}  # there is no HOME


def carry_out(folder, encoding, **environment):
    """The exit code and what is seen of a comparison, one of its methods described in letters that few locales have."""
    text = '"""Λόγος."""\nfrom partwise import Method\nclass Mine(Method): pass'
    (folder / "mine.py").write_text(text, encoding="utf-8")
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL, "cwd": folder}
    options |= {"env": PLACE | environment.pop("env"), **environment}
    done = subprocess.run([sys.executable, "-m", "partwise", *COMMAND], check=False, **options)
    shown, told = (done.stdout or b"").decode(encoding), done.stderr.decode(encoding)
    assert "\x1b" not in shown + told and "\r" not in told and "Traceback" not in told
    lines = [line.split(",")[0] for line in told.splitlines() if "round" in line]
    assert lines == [f"{name} seed {seed} ({n}/4): round 1/1" for n, name, seed in RUNS]
    assert all((folder / "x" / name / f"seed-{seed}" / "summary.json").exists() for _, name, seed in RUNS)
    return done.returncode, shown, told


RUNS = [(1, "local", 0), (2, "local", 1), (3, "mine", 0), (4, "mine", 1)]


def test_fault_32_no_terminal_no_unicode_and_a_home_that_is_none(tmp_path):
    env = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "HOME": "/dev/null"}
    code, shown, told = carry_out(tmp_path, "ascii", env=env)
    assert code == 0, told
    assert "+-" in shown and shown.splitlines()[-1] == "results: x"


def test_fault_32_no_home_latin_1_and_nobody_who_reads(tmp_path):
    """As in `partwise compare ... | head -0`: what is shown has nowhere to go, and that is all."""
    reader, writer = os.pipe()
    os.close(reader)
    code, _, told = carry_out(tmp_path, "latin-1", env={"PYTHONIOENCODING": "latin-1"}, stdout=writer)
    os.close(writer)
    assert code == 1 and told.splitlines()[-1].startswith("mine seed 1 (4/4): round 1/1")


def test_fault_32_the_clock_goes_backwards(tmp_path, capsys, monkeypatch):
    seconds = iter(range(10**9, 0, -3600))

    class Backwards(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=next(seconds) - 10**9)

    monkeypatch.setattr(time, "time", lambda: float(next(seconds)))
    monkeypatch.setattr("partwise.runs.files.datetime", Backwards)
    monkeypatch.setattr("partwise.records.lock.datetime", Backwards)
    succeed(capsys, "run", "fedbabu", *TINY, "--out", tmp_path / "x")
    assert next(seconds) < 10**9 - 3600, "the clock was read"
    assert read_json(tmp_path / "x" / "summary.json")["seconds"] >= 0
    assert read_json(tmp_path / "x" / "environment.json")["started"] < "2026"
