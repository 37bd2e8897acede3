"""Faults 27, 49 and 53: a full disk costs what was not written yet, and links in a run's folder lead nowhere."""

import errno
import os
from contextlib import contextmanager
from pathlib import Path

import pytest

from partwise import writing
from partwise.cli import main
from partwise.errors import DiskFull
from partwise.runs.checkpoints import Checkpoints, checkpoints_in
from partwise.runs.folder import RunFolder
from partwise.runs.simulation import Simulation
from tests.support.commands import FEW, invoke, read_json, refuse, succeed, without_seconds

resource = pytest.importorskip("resource")
RUN = ("run", "fedbabu", *FEW, "--quiet")


@contextmanager
def largest_file(size):
    """The disk takes no more than so many bytes in a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_fault_49_a_disk_that_is_full_as_models_are_written(capsys, tmp_path, monkeypatch):
    whole, out, write_models = tmp_path / "whole", tmp_path / "x", RunFolder.write_models
    shown = succeed(capsys, *RUN, "--out", whole)

    def on_a_full_disk(*arguments):
        with largest_file(10_000):
            write_models(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_models", on_a_full_disk)
        line = refuse(capsys, *RUN, "--out", out, code=5)
    assert line.startswith(f"error: disk full: cannot write '{out}/models/client-000.safetensors' (File too large): ")
    size = (whole / "models" / "client-000.safetensors").stat().st_size
    assert f": {size:,} bytes needed, " in line and line.endswith(" free")
    assert set(names(out)) == {*names(whole), "models.part"} and names(out / "models") == []
    assert read_json(out / "summary.json")["method"] == "fedbabu"

    assert "holds an unfinished run" in refuse(capsys, *RUN, "--out", out)
    monkeypatch.setattr(Simulation, "rounds", lambda *_: pytest.fail("it trains again"))
    written = succeed(capsys, *RUN, "--out", out, "--resume")
    assert written.splitlines()[0] == shown.splitlines()[0]
    assert names(out) == names(whole)
    for model in names(whole / "models"):
        assert (out / "models" / model).read_bytes() == (whole / "models" / model).read_bytes()


def test_fault_27_a_disk_that_is_full_as_a_checkpoint_is_written(capsys, tmp_path, monkeypatch):
    whole, out, write = tmp_path / "whole", tmp_path / "x", Checkpoints.write
    every = (*RUN, "--rounds", "4", "--checkpoint-every", "0")
    succeed(capsys, *every, "--out", whole)

    def full_in_round_3(self, simulation):
        with largest_file(1000 if simulation.server.round == 3 else 10**9):
            write(self, simulation)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "write", full_in_round_3)
        line = refuse(capsys, *every, "--out", out, code=5)
    assert line.startswith(f"error: disk full: cannot write '{out}/checkpoints/") and line.endswith(" free")
    assert [each.round for each in checkpoints_in(out / "checkpoints")] == [2, 1]
    assert "goes on after round 2" in invoke(capsys, *every[:-5], *every[-4:], "--out", out, "--resume").err
    assert without_seconds(out / "metrics.jsonl") == without_seconds(whole / "metrics.jsonl")


def test_fault_49_a_disk_that_is_full_at_any_time(capsys, tmp_path):
    """Every file is written by one of these."""
    path = tmp_path / "x"
    path.write_bytes(b"before")
    with largest_file(1000):
        for function in (writing.write, writing.append):
            with pytest.raises(DiskFull, match=r"disk full: .*: 2,000 bytes needed, [\d,]+ free") as caught:
                function(path, b"0" * 2000)
            assert caught.value.exit_code == 5
            assert names(tmp_path) == ["x"] and path.read_bytes() == b"before"
        writing.append(path, b", after")
    assert path.read_bytes() == b"before, after"
    with pytest.raises(DiskFull, match="No space left"), writing.refusing(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # no inodes are left, say
    with largest_file(100):
        assert main([*RUN, "--out", str(tmp_path / "run")]) == 5
    assert names(tmp_path) == ["run", "x"] and names(tmp_path / "run") == []
    assert capsys.readouterr().err.startswith("error: disk full: cannot write ")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_fault_49_results_that_cannot_be_shown(capfd, monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert main(["methods"]) == 5
    assert capfd.readouterr().err == "error: disk full: No space left on device\n"


LINKS = (
    "metrics.jsonl",
    "events.jsonl",
    "metrics.jsonl.part",
    "summary.json",
    "config.toml.part",
    ".lock.json",
    ".lock.json.part",
)


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("name", LINKS)
def test_fault_53_links_to_files_are_replaced(name, there, capsys, tmp_path):
    out, outside = tmp_path / "x", tmp_path / "precious"
    out.mkdir()
    if there:
        outside.write_text("mine")
    (out / name).symlink_to(outside)
    succeed(capsys, *RUN, "--no-save-models", "--out", out, "--overwrite")
    assert outside.read_text() == "mine" if there else not outside.exists()
    assert not any(path.is_symlink() for path in out.iterdir())


@pytest.mark.parametrize("name", [".lock", "models", "checkpoints"])
def test_fault_53_links_in_the_place_of_folders_are_refused(name, capsys, tmp_path):
    out, outside = tmp_path / "x", tmp_path / "precious"
    out.mkdir()
    outside.mkdir()
    for kept in ("client-000.safetensors", "round-000001.json"):
        (outside / kept).write_text("mine")
    (out / name).symlink_to(outside / "client-000.safetensors" if name == ".lock" else outside)
    for option in ("--overwrite", "--resume", "--no-save-models"):
        line = refuse(capsys, *RUN, "--out", out, option)
        assert line == f"error: '{out / name}' is a symbolic link, which partwise does not follow: remove it"
    assert [path.read_text() for path in outside.iterdir()] == ["mine"] * 2 and names(out) == [name]


def test_fault_53_links_in_the_folder_of_a_comparison_are_refused(capsys, tmp_path):
    out, outside = tmp_path / "x", tmp_path / "precious"
    (out / "fedavg").mkdir(parents=True)
    outside.mkdir()
    (outside / "summary.json").write_text("mine")
    for link in (out / "local", out / "fedavg" / "seed-0"):
        link.symlink_to(outside)
        line = refuse(capsys, "compare", "local", "fedavg", *FEW, "--quiet", "--out", out, "--overwrite")
        assert line == f"error: '{link}' is a symbolic link, which partwise does not follow: remove it"
        link.unlink()
    assert names(outside) == ["summary.json"]
    (out / "leaderboard.csv").symlink_to(outside / "new")
    succeed(capsys, "compare", "local", *FEW, "--quiet", "--no-save-models", "--out", out, "--overwrite")
    assert names(outside) == ["summary.json"] and not (out / "leaderboard.csv").is_symlink()


def test_the_folder_itself_may_be_a_link(capsys, tmp_path):
    """Whoever names it means where it leads."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "x").symlink_to(tmp_path / "disk")
    succeed(capsys, *RUN, "--no-save-models", "--out", tmp_path / "x")
    assert invoke(capsys, *RUN, "--no-save-models", "--out", tmp_path / "x", "--resume").code == 0
    assert "summary.json" in names(tmp_path / "disk")
