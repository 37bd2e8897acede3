"""Faults 22, 28, 29 and 30: equal runs write equal files, and nothing of the user's is lost or half-written."""

import hashlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import partwise
from partwise.errors import ConfigError
from partwise.records.files import CONFIG, MODEL
from partwise.records.lock import Lock
from partwise.runs.config import make_config
from partwise.runs.files import AT_FIRST, EVERY_ROUND
from partwise.runs.folder import RunFolder
from partwise.runs.prepare import prepare
from partwise.runs.simulation import Simulation
from tests.support.commands import FEW, TINY, invoke, read_json, refuse, succeed, without_seconds

RUN = ("run", "fedbabu", *FEW)
BEGUN = sorted((CONFIG, MODEL, *AT_FIRST, *EVERY_ROUND))  # a run leaves before it ends


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("engine", ["vector", "loop"])
def test_fault_22_the_same_run_twice_gives_the_same_bytes(engine, capsys, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for out in (first, second):
        succeed(capsys, *RUN, "--engine", engine, "--participation", "0.5", "--dropout", "0.3", "--out", out)
    assert without_seconds(first / "metrics.jsonl") == without_seconds(second / "metrics.jsonl")
    for name in ("clients.csv", "ledger.json", "config.toml"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_equal_models_give_equal_bytes_in_every_process(tmp_path):
    """Python's and safetensors' own order of a dict's keys change from process to process."""
    files = []
    for number in ("1", "2"):
        command = [sys.executable, "-m", "partwise", *RUN, "--engine", "loop", "--out", str(tmp_path / number)]
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": number}, check=True, capture_output=True)
        files.append({path.name: path.read_bytes() for path in (tmp_path / number / "models").iterdir()})
    assert files[0] == files[1] and len(files[0]) == 4 + 1  # the global one


PULLED = """
from partwise import Method, option

class Pulled(Method):
    pull: float = option(0.1, "Weight.")
"""


def test_a_run_knows_its_method_file_and_where_its_files_lay(capsys, tmp_path, monkeypatch):
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("pulled.py").write_text(PULLED)
    Path("table.csv").write_text("x,label\n" + "1,a\n2,b\n" * 20)
    command = ("run", "pulled.py", "--data", "table.csv", "--clients", "2", "--partition", "iid", "--rounds", "1")
    succeed(capsys, *command, "--data-root", ".", "--out", "run")
    lines = Path("run", "config.toml").read_text().splitlines()
    here = tmp_path / "here"
    for setting, place in {
        'name = "pulled.py"': "/pulled.py",
        'data = "table.csv"': "/table.csv",
        'data_root = "."': "",
    }.items():
        assert lines[lines.index(setting) + 1] == f'# lies at "{here}{place}"'
    assert f"# SHA-256 {hashlib.sha256(PULLED.encode()).hexdigest()}" in lines
    assert Path("run", "method-copy.py").read_text() == PULLED
    succeed(capsys, "run", "--config", "run/config.toml", "--out", "again")

    # Elsewhere the same run is still the same; with another method file of the same name it is not.
    for name in ("pulled.py", "table.csv", "run"):
        Path(name).rename(tmp_path / "there" / name)
    monkeypatch.chdir(tmp_path / "there")
    succeed(capsys, *command, "--data-root", ".", "--out", "run", "--resume")
    succeed(capsys, "run", "run/method-copy.py", *command[2:], "--out", "run", "--overwrite")
    assert Path("run", "method-copy.py").read_text() == PULLED
    succeed(capsys, *command, "--out", "run", "--overwrite")
    Path("pulled.py").write_text(PULLED + "# changed")
    assert "holds a run with other settings: # SHA-256" in refuse(capsys, *command, "--out", "run", "--resume")
    succeed(capsys, "run", "local", *command[2:], "--out", "run", "--overwrite")
    assert not Path("run", "method-copy.py").exists()


def test_fault_28_out_is_a_file_or_below_one(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("partwise.studies.seeds.prepare", None)  # would fail if anything were begun
    taken = tmp_path / "taken"
    taken.write_text("mine")
    assert refuse(capsys, *RUN, "--out", taken) == f"error: cannot write results into '{taken}': it is not a folder"
    for deeper in ("x", "x/y"):
        line = refuse(capsys, *RUN, "--out", taken / deeper)
        assert line == f"error: cannot write results into '{taken / deeper}': Not a directory"
    assert "Not a directory" in refuse(capsys, "compare", "local", *FEW, "--out", taken)
    assert taken.read_text() == "mine"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that refuses new folders")
def test_fault_28_out_cannot_be_written(capsys):
    """Where even root is not let in."""
    assert "cannot write results into '/proc/partwise'" in refuse(capsys, *RUN, "--out", "/proc/partwise")


def test_fault_28_a_file_stands_where_the_models_go(capsys, tmp_path):
    (tmp_path / "models").write_text("mine")
    assert "models': it is not a folder" in refuse(capsys, *RUN, "--out", tmp_path)


def test_a_refusal_after_the_check_leaves_no_folder_behind(capsys, tmp_path):
    refuse(capsys, "run", "local", "--data", "nothing", "--out", tmp_path / "deep" / "x")
    assert list(tmp_path.iterdir()) == []


WAITING = """
import sys
from partwise import Method

class Waiting(Method):
    def begin(self, server, run):
        print("ready", flush=True)
        sys.stdin.read()
"""


@pytest.fixture
def waiting_run(tmp_path):
    """A run in another process, in the folder `x`, that waits before its first round."""
    method = tmp_path / "waiting.py"
    method.write_text(WAITING)
    command = [sys.executable, "-m", "partwise", "run", method, *FEW, "--out", tmp_path / "x"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_fault_29_two_runs_in_one_folder(waiting_run, capsys, tmp_path):
    out, settings = tmp_path / "x", {"data": "made", "model": "mlp-100", "clients": 4, "rounds": 2}
    before = contents(out)
    for flags in ([], ["--overwrite"], ["--resume"], ["--dry-run"]):
        line = refuse(capsys, *RUN, "--out", out, *flags)
        who = f"process {waiting_run.pid} on {socket.gethostname()}, since 20"
        assert line.startswith(f"error: '{out}' is in use: {who}") and line.endswith("; choose another folder")
    with pytest.raises(ConfigError, match="is in use"):
        partwise.run("local", **settings, out=out, overwrite=True)
    assert contents(out) == before

    # Its lock ends with the process, however that ends; what it had begun is there.
    waiting_run.kill()
    waiting_run.wait()
    assert "holds an unfinished run" in refuse(capsys, *RUN, "--out", out)
    code, _, err = invoke(capsys, *RUN, "--out", out, "--overwrite")
    notes = [line for line in err.splitlines() if line.startswith(f"took over '{out}' from a run that died: {who}")]
    assert code == 0 and len(notes) == 1
    assert read_json(out / "environment.json")["notes"][-1] == notes[0]
    assert not [path for path in out.iterdir() if "lock" in path.name]


def test_fault_29_another_run_comes_between_the_check_and_the_start(tmp_path):
    config = make_config("local", {"data": "made", "model": "mlp-100", "clients": 4, "rounds": 1})
    first, second = RunFolder(tmp_path / "x", config), RunFolder(tmp_path / "x", config)
    first.path.mkdir()
    with Lock(first.path).held(), pytest.raises(ConfigError, match="is in use"):
        second.record(prepare(config))
    first.record(prepare(config))
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match="holds a finished run"):
        second.record(prepare(config))
    assert contents(tmp_path) == before


def test_fault_29_a_comparison_locks_one_folder_at_a_time(capsys, tmp_path, monkeypatch):
    row, locked = Simulation.record, []

    def noting(self, number, updates):
        locked.append([path.parent.relative_to(tmp_path).parts for path in tmp_path.rglob(".lock")])
        return row(self, number, updates)

    monkeypatch.setattr(Simulation, "record", noting)
    succeed(capsys, "compare", "local", "fedavg", *FEW, "--rounds", "1", "--out", tmp_path)
    assert locked == [[("local", "seed-0")], [("fedavg", "seed-0")]]
    assert not list(tmp_path.rglob(".lock*"))


def test_fault_30_a_finished_run_is_kept(capsys, tmp_path):
    out = tmp_path / "x"
    shown = succeed(capsys, *RUN, "--out", out)
    before = contents(out)
    line = refuse(capsys, *RUN, "--out", out)
    assert line == f"error: '{out}' holds a finished run: --resume shows it, --overwrite replaces it"
    assert succeed(capsys, *RUN, "--out", out, "--resume") == shown
    other = refuse(capsys, *RUN, "--lr", "0.5", "--out", out, "--resume")
    assert other == f"error: '{out}' holds a run with other settings: lr = 0.01 there, lr = 0.5 here"
    assert contents(out) == before


def test_fault_30_a_setting_that_a_folder_of_before_lacks_had_its_default(capsys, tmp_path):
    """A run of an older partwise, whose config.toml does not know the setting, goes on as it was."""
    out = tmp_path / "x"
    shown = succeed(capsys, *RUN, "--out", out)
    config = out / "config.toml"
    config.write_text(config.read_text().replace('task = "auto"\n', "").replace("lr_warmup = 0\n", ""))
    assert "lr_warmup" not in config.read_text() and "task" not in config.read_text()
    assert succeed(capsys, *RUN, "--out", out, "--resume") == shown
    other = refuse(capsys, *RUN, "--task", "classes", "--out", out, "--resume")
    assert other == f"error: '{out}' holds a run with other settings: nothing there, task = \"classes\" here"


def test_fault_30_overwrite_replaces_the_run_and_nothing_else(capsys, tmp_path):
    succeed(capsys, *RUN, "--out", tmp_path)
    kept = [tmp_path / "notes.txt", tmp_path / "models" / "notes.txt", tmp_path / "models" / "best.safetensors"]
    for path in kept:
        path.write_text("mine")
    (tmp_path / "clients.csv.part").write_text("left by a run that was killed")
    succeed(capsys, "run", "local", *FEW, "--no-save-models", "--out", tmp_path, "--overwrite")
    assert [path.read_text() for path in kept] == ["mine"] * 3
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["best.safetensors", "notes.txt"]
    assert not (tmp_path / "clients.csv.part").exists()
    assert read_json(tmp_path / "summary.json")["method"] == "local"


def test_fault_30_an_unfinished_run_is_only_overwritten(capsys, tmp_path):
    out = tmp_path / "x"
    diverging = ("run", "fedavg", *TINY, "--lr", "1e6", "--out", out)
    assert invoke(capsys, *diverging).code == 4
    before = contents(out)
    assert sorted(map(str, before)) == BEGUN
    line = refuse(capsys, *RUN, "--out", out)
    assert line.startswith(f"error: '{out}' holds an unfinished run") and "--resume continues it" in line
    assert "holds a run with other settings" in refuse(capsys, *RUN, "--out", out, "--resume")
    assert contents(out) == before
    assert invoke(capsys, *diverging, "--resume").code == 4  # it was begun again, and came to the same end
    assert contents(out).keys() == before.keys()
    succeed(capsys, *RUN, "--out", out, "--overwrite")
    assert (out / "summary.json").exists()


def test_a_refused_overwrite_destroys_nothing(capsys, tmp_path):
    succeed(capsys, *RUN, "--out", tmp_path)
    before = contents(tmp_path)
    refuse(capsys, "run", "local", "--data", "nothing", "--out", tmp_path, "--overwrite")
    assert contents(tmp_path) == before


def test_a_damaged_summary_is_named(tmp_path):
    config = make_config("local", {})
    (tmp_path / "summary.json").write_text('{"method": ')
    (tmp_path / "config.toml").write_text(config.to_toml())
    with pytest.raises(ConfigError, match=r"summary\.json' is damaged"):
        RunFolder(tmp_path, config, resume=True).summary()
