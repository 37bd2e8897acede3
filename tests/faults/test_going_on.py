"""Faults 24 to 27, further: what lies in a folder is not what a run expects, or it is asked to end between runs."""

import signal

import pytest

from partwise.errors import Diverged
from partwise.runs.folder import RunFolder
from partwise.runs.pace import Interrupts
from partwise.runs.simulation import Simulation
from tests.support.commands import FEW, invoke, refuse, succeed
from tests.support.interrupted import RUN, Killed, files, kill, stopped


@pytest.fixture
def killed(capsys, tmp_path, monkeypatch):
    """The folder of a run that was killed in its last round but one, and the command line that goes on with it."""
    with pytest.raises(Killed):
        stopped(monkeypatch, capsys, (*RUN, "--out", tmp_path / "run"), kill, at=4)
    return tmp_path / "run", (*RUN, "--out", tmp_path / "run", "--resume", "--quiet")


def interrupt():
    signal.raise_signal(signal.SIGINT)


# ---------------------------------------------------------------------------------------------------------- the folder


def test_fault_26_a_run_whose_settings_cannot_be_read_does_not_go_on_with_others(capsys, killed):
    folder, again = killed
    (folder / "config.toml").write_bytes(b"\xff\xfe\x00")
    assert "config.toml' is damaged (it is not UTF-8)" in refuse(capsys, *again)
    (folder / "config.toml").unlink()
    assert "holds a run without its config.toml; --overwrite runs it again" in refuse(capsys, *again, "--lr", "0.5")


def test_files_of_the_user_beside_checkpoints_stay(capsys, killed):
    folder, again = killed
    mine = ["best-model.safetensors", "round-notes.json", "server-settings.json", "clients-000001.json", "notes.txt"]
    for name in mine:
        (folder / "checkpoints" / name).write_text("mine")
    (folder / "checkpoints" / "round-000009.json").mkdir()
    succeed(capsys, *again)
    assert all((folder / "checkpoints" / name).read_text() == "mine" for name in mine)


def test_fault_28_a_file_stands_where_the_checkpoints_go(capsys, tmp_path):
    (tmp_path / "checkpoints").write_text("mine")
    assert refuse(capsys, *RUN, "--out", tmp_path).endswith("checkpoints': it is not a folder")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (("--clients", "6"), "clients was 4 and is 6"),
        (("--dtype", "float64"), "network was torch.float32"),
        (("--model", "tabular"), "network was torch.float32"),
    ],
)
def test_fault_26_what_a_state_does_not_fit_is_refused_whatever_is_asked_for(changes, why, capsys, killed):
    line = refuse(capsys, *killed[1], *changes, "--force")
    assert f"cannot continue: {why}" in line and line.endswith("; --overwrite begins again")


def test_fault_26_and_so_is_another_method(capsys, killed):
    _, (_, _, *again) = killed
    assert "method was FedPer and is Scaffold" in refuse(capsys, "run", "scaffold", *again, "--force")


# ------------------------------------------------------------------------------------------------------------- signals


def test_fault_24_a_run_without_checkpoints_says_so_as_it_is_interrupted(capsys, tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text("from partwise import Method\n\n\nclass Mine(Method):\n    def begin(self, server, run):\n")
    file.write_text(file.read_text() + "        server.memory['function'] = print\n")
    outcome = stopped(monkeypatch, capsys, ("run", file, *RUN[2:], "--out", tmp_path / "run"), interrupt)
    assert outcome.code == 130
    assert outcome.err.splitlines()[-1] == "error: interrupted after round 3; it has no checkpoints"


def test_fault_24_a_signal_that_is_ignored_stays_ignored():
    """As a shell wants it of what runs in the background."""
    interrupts, before = Interrupts(), signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts.noted():
            interrupt()
        assert interrupts.signal is None and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("others", [("fedper", "local"), ("fedper", "--seeds", "0,1")])
def test_fault_24_a_comparison_that_is_asked_to_end_begins_no_other_run(others, capsys, tmp_path, monkeypatch):
    """Though the run that is asked finishes, for it was its last round."""
    compare = ("compare", *others, *RUN[2:], "--out", tmp_path)
    outcome = stopped(monkeypatch, capsys, compare, interrupt, at=5)
    assert outcome.code == 130 and "; continue with --resume" in outcome.err.splitlines()[-1]
    assert len(list(tmp_path.rglob("summary.json"))) == len(list(tmp_path.rglob("config.toml"))) == 1


def test_fault_24_a_table_of_a_paper_says_how_it_goes_on(capsys, tmp_path, monkeypatch):
    table = ("reproduce", "dualfed/figure2-3", "--scale", "smoke", "--seeds", "0", "--out", tmp_path)
    outcome = stopped(monkeypatch, capsys, table, interrupt, at=1)
    assert outcome.code == 130 and outcome.err.splitlines()[-1].endswith("; run the same command again to continue")


# ------------------------------------------------------------------------------------------------- seeds side by side

SEEDS = ("compare", "fedper", *FEW, "--rounds", "6", "--threads", "1", "--engine", "vector", "--checkpoint-every", "0")


def test_fault_23_a_seed_that_goes_on_alone_ends_as_beside_the_others(capsys, tmp_path, monkeypatch):
    compare, end = (*SEEDS, "--seeds", "0,1"), RunFolder.end
    succeed(capsys, *compare, "--out", tmp_path / "whole")

    def dies(self, result):
        if self.config.run.seed == 1:
            raise Killed
        end(self, result)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(RunFolder, "end", dies)
        invoke(capsys, *compare, "--out", tmp_path / "parts")
    (tmp_path / "parts/fedper/seed-1/checkpoints/round-000006.json").unlink()
    succeed(capsys, *compare, "--out", tmp_path / "parts", "--resume")
    assert files(tmp_path / "whole/fedper/seed-1") == files(tmp_path / "parts/fedper/seed-1")


def test_fault_23_a_seed_that_diverged_does_not_hold_the_others_back(capsys, tmp_path, monkeypatch):
    compare, row, rounds = (*SEEDS, "--seeds", "0,1,2"), Simulation.record, Simulation.rounds
    began = []

    def carried_out(out, last, *more):
        def noted(self, number, updates):
            if self.config.run.seed == 1 and number == 2:
                raise Diverged("diverged")
            if self.config.run.seed == 2 and number == last:
                raise Killed
            return row(self, number, updates)

        with monkeypatch.context() as patch:
            patch.setattr(Simulation, "record", noted)
            patch.setattr(
                Simulation, "rounds", lambda self, *rest: (began.append(self.server.round), rounds(self, *rest))[1]
            )
            return invoke(capsys, *compare, "--out", tmp_path / out, *more)

    carried_out("whole", None)
    with pytest.raises(Killed):
        carried_out("parts", 5)
    began.clear()
    outcome = carried_out("parts", None, "--resume")
    assert began == [4, 1, 4]
    assert outcome.code == 4 and "seed 1 (2/3) diverged" in outcome.err
    told = [line for line in outcome.err.splitlines() if line.startswith("goes on")]
    assert told == ["goes on after round 4, from a checkpoint", "goes on after round 1, from a checkpoint"]
    for seed in (0, 2):
        assert files(tmp_path / f"whole/fedper/seed-{seed}") == files(tmp_path / f"parts/fedper/seed-{seed}")
