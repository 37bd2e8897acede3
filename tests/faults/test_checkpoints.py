"""Faults 23 to 27 and 31, and law P9: a run goes on from its last good checkpoint, whatever happened to it."""

import json
import os
import pickle
import random
import signal
import subprocess

import pytest

from partwise.runs import checkpoints
from partwise.runs.checkpoints import checkpoints_in
from partwise.runs.simulation import Simulation
from tests.support.commands import FEW, invoke, refuse, succeed, without_seconds
from tests.support.interrupted import RUN, Killed, files, kill, stopped

# ------------------------------------------------------------------------------------------------- processes that end


@pytest.mark.parametrize("engine", ["loop", "workers", "vector"])
def test_fault_23_a_process_that_is_killed_at_any_moment_goes_on(engine, tmp_path):
    """The long version, at 50 moments, is `python -m benchmarks.kills`."""
    from benchmarks.kills import command, killed_and_resumed

    moments = random.Random(engine)
    run = command("fedper", engine)
    subprocess.run([*run, "--out", str(tmp_path / "whole")], check=True, capture_output=True)
    assert killed_and_resumed(run, tmp_path / "parts", moments) > 0
    assert files(tmp_path / "whole") == files(tmp_path / "parts")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_fault_24_a_signal_ends_a_run_after_its_round_with_a_checkpoint(number, code, capsys, tmp_path, monkeypatch):
    slowly = (*RUN, "--checkpoint-every", "3600")  # no other is due
    succeed(capsys, *slowly, "--out", tmp_path / "whole")
    parts = (*slowly, "--out", tmp_path / "parts")
    outcome = stopped(monkeypatch, capsys, parts, lambda: signal.raise_signal(number))
    assert outcome.code == code
    assert outcome.err.splitlines()[-1] == "error: interrupted after round 3; continue with --resume"
    assert [each.round for each in checkpoints_in(tmp_path / "parts" / "checkpoints")] == [3]
    assert not (tmp_path / "parts" / "summary.json").exists()
    assert "goes on after round 3" in invoke(capsys, *parts, "--resume").err
    assert files(tmp_path / "whole") == files(tmp_path / "parts")


def test_fault_24_a_second_signal_ends_it_at_once(capsys, tmp_path, monkeypatch):
    def twice():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    outcome = stopped(monkeypatch, capsys, (*RUN, "--out", tmp_path), twice)
    assert outcome.code == 130 and outcome.err.splitlines()[-1] == "error: interrupted"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("engine", ["vector", "loop"])
def test_fault_23_seeds_of_a_comparison_go_on_together(engine, capsys, tmp_path, monkeypatch):
    compare = ("compare", "fedper", "local", *FEW, "--seeds", "0,1", "--rounds", "5", "--threads", "1")
    compare = (*compare, "--engine", engine, "--checkpoint-every", "0")
    succeed(capsys, *compare, "--out", tmp_path / "whole")
    parts = (*compare, "--out", tmp_path / "parts", "--resume")
    with pytest.raises(Killed):
        stopped(monkeypatch, capsys, parts, kill, at=4, seed=1)
    began = []
    step = Simulation.rounds
    monkeypatch.setattr(
        Simulation, "rounds", lambda self, *rest: (began.append(self.server.round), step(self, *rest))[1]
    )
    succeed(capsys, *parts)
    assert began == ([3, 3, 0, 0] if engine == "vector" else [3, 0, 0])  # with the loop, seed 0 was finished
    for run in ("fedper/seed-0", "fedper/seed-1", "local/seed-0", "local/seed-1"):
        assert files(tmp_path / "whole" / run) == files(tmp_path / "parts" / run)


def test_fault_23_a_table_of_a_paper_goes_on_with_what_it_measured(capsys, tmp_path, monkeypatch):
    table = ("reproduce", "dualfed/figure2-3", "--scale", "smoke", "--seeds", "0", "--out")
    succeed(capsys, *table, tmp_path / "whole")
    outcome = stopped(monkeypatch, capsys, (*table, tmp_path / "parts"), lambda: signal.raise_signal(signal.SIGINT), 1)
    assert outcome.code == 130
    succeed(capsys, *table, tmp_path / "parts")
    measured = list((tmp_path / "whole").rglob("features.json"))
    assert measured
    for path in measured:
        assert path.read_bytes() == (tmp_path / "parts" / path.relative_to(tmp_path / "whole")).read_bytes()


def test_resume_begins_where_there_is_nothing_yet(capsys, tmp_path):
    succeed(capsys, *RUN, "--out", tmp_path / "new", "--resume")
    before = (tmp_path / "new" / "metrics.jsonl").read_bytes()
    succeed(capsys, *RUN, "--out", tmp_path / "new", "--resume")
    assert (tmp_path / "new" / "metrics.jsonl").read_bytes() == before


# --------------------------------------------------------------------------------------------- files that are broken


@pytest.fixture
def killed(capsys, tmp_path, monkeypatch):
    """A run that was killed in its last round but one, with checkpoints of rounds 2 and 3."""
    with pytest.raises(Killed):
        stopped(monkeypatch, capsys, (*RUN, "--out", tmp_path / "run"), kill, at=4)
    folder = tmp_path / "run" / "checkpoints"
    assert [each.round for each in checkpoints_in(folder)] == [3, 2]
    return folder


def whole(capsys, tmp_path):
    succeed(capsys, *RUN, "--out", tmp_path / "whole")
    return files(tmp_path / "whole")


@pytest.mark.parametrize("way", ["a bit", "gone", "cut short", "a tail of zeros"])
@pytest.mark.parametrize("kind", ["server", "round", "clients"])
def test_fault_25_a_broken_checkpoint_is_named_and_the_one_before_it_is_taken(
    kind, way, capsys, caplog, tmp_path, killed
):
    [path] = killed.glob(f"{kind}-000003*")
    content = bytearray(path.read_bytes())
    if way == "a bit":
        content[len(content) // 2] ^= 4
    path.write_bytes(content[:-20] + bytes(20 * (way == "a tail of zeros")) if way != "a bit" else content)
    if way == "gone":
        path.unlink()
    outcome = invoke(capsys, *RUN, "--out", tmp_path / "run", "--resume")
    assert outcome.code == 0
    if (kind, way) != ("round", "gone"):  # of which nobody knows
        assert f"skipping a damaged checkpoint: '{path}'" in caplog.text
    assert "goes on after round 2" in outcome.err
    assert files(tmp_path / "run") == whole(capsys, tmp_path)


def test_fault_25_two_hundred_changed_bytes_are_all_noticed(killed):
    chance = random.Random(25)
    paths = sorted(killed.glob("*-000003*"))
    for _ in range(200):
        path = chance.choice(paths)
        content = path.read_bytes()
        place, other = chance.randrange(len(content)), chance.randrange(1, 256)
        path.write_bytes(content[:place] + bytes([content[place] ^ other]) + content[place + 1 :])
        assert [each.round for each in checkpoints_in(killed)] == [2], (path, place)
        path.write_bytes(content)
    assert [each.round for each in checkpoints_in(killed)] == [3, 2]


def test_fault_25_where_none_is_left_the_run_begins_again(capsys, tmp_path, killed):
    for path in killed.iterdir():
        path.write_bytes(b"")
    succeed(capsys, *RUN, "--out", tmp_path / "run", "--resume")
    assert files(tmp_path / "run") == whole(capsys, tmp_path)


def test_law_p9_after_any_prefix_of_what_is_written_there_is_the_one_before_or_this_one(
    capsys, tmp_path, monkeypatch, killed
):
    """A process may end after any file, and in the middle of one."""
    expected = whole(capsys, tmp_path)
    written = []
    write = checkpoints.write

    def counted(path, content, durable):
        written.append(path.name)
        write(path, content, durable)

    monkeypatch.setattr(checkpoints, "write", counted)
    with pytest.raises(Killed):
        stopped(monkeypatch, capsys, (*RUN, "--out", tmp_path / "other", "--overwrite"), kill, at=2)
    assert len(written) == 3 and written[-1] == "round-000001.json"
    for last in range(3):
        for share in (0, 0.5, 1):
            left = [last]

            def dying(path, content, durable, left=left, share=share):
                if left[0] == 0:
                    path.with_name(f"{path.name}.part").write_bytes(content[: int(share * len(content))])
                    raise Killed
                left[0] -= 1
                write(path, content, durable)

            monkeypatch.setattr(checkpoints, "write", dying)
            with pytest.raises(Killed):
                invoke(capsys, *RUN, "--out", tmp_path / "run", "--resume")
            assert next(each.round for each in checkpoints_in(killed)) == 3
    monkeypatch.setattr(checkpoints, "write", write)
    succeed(capsys, *RUN, "--out", tmp_path / "run", "--resume")
    assert files(tmp_path / "run") == expected
    assert not list(killed.glob("*.part"))


def test_fault_26_a_run_goes_on_with_its_own_settings_alone(capsys, tmp_path, killed):
    again = (*RUN, "--out", tmp_path / "run", "--resume")
    line = refuse(capsys, *again, "--lr", "0.5")
    assert "other settings: lr = 0.01 there, lr = 0.5 here" in line and "--force" in line
    assert "rounds = 5 there, rounds = 4 here" in refuse(capsys, *again, "--rounds", "4")
    succeed(capsys, *again, "--lr", "0.5", "--force")
    assert "lr = 0.5" in (tmp_path / "run" / "config.toml").read_text().splitlines()


@pytest.mark.parametrize(("name", "value"), [("torch", "1.0"), ("device", "NVIDIA H200"), ("data", "0123")])
def test_fault_26_or_with_another_torch_device_or_data_only_if_that_is_asked_for(
    name, value, capsys, tmp_path, killed, monkeypatch
):
    [path] = killed.glob("round-000003.json")
    content = json.loads(path.read_bytes().partition(b"\n")[2])
    content["made_with"][name] = value
    text = json.dumps(content).encode()
    path.write_bytes(checkpoints.checksum(text).hex().encode() + b"\n" + text)
    line = refuse(capsys, *RUN, "--out", tmp_path / "run", "--resume", "--quiet")
    assert f"cannot continue bit for bit: {name} was {value} and is " in line
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert before and len(list(killed.iterdir())) == 6
    succeed(capsys, *RUN, "--out", tmp_path / "run", "--resume", "--force", "--quiet")


def test_fault_26_a_method_file_that_has_changed_is_another_method(capsys, tmp_path, monkeypatch):
    file = tmp_path / "mine.py"
    file.write_text("from partwise import Method\n\n\nclass Mine(Method):\n    pass\n")
    run = ("run", str(file), *RUN[2:], "--out", tmp_path / "run")
    with pytest.raises(Killed):
        stopped(monkeypatch, capsys, run, kill, at=4)
    file.write_text(file.read_text() + "\n# another\n")
    assert "# SHA-256" in refuse(capsys, *run, "--resume")


class Payload:
    def __reduce__(self):
        return os.system, ("touch executed",)


def test_fault_31_a_checkpoint_that_holds_a_pickle_is_not_executed(capsys, tmp_path, monkeypatch, killed):
    """Even where its sum is right."""
    monkeypatch.chdir(tmp_path)
    for number in (2, 3):
        path = killed / f"round-{number:06}.json"
        content = json.loads(path.read_bytes().partition(b"\n")[2])
        server = killed / content["state"]
        server.write_bytes(pickle.dumps(Payload()))
        content["files"][content["state"]] = checkpoints.checksum(server.read_bytes()).hex()
        text = json.dumps(content).encode()
        path.write_bytes(checkpoints.checksum(text).hex().encode() + b"\n" + text)
    line = refuse(capsys, *RUN, "--out", tmp_path / "run", "--resume", "--quiet")
    assert "server-000003.state" in line
    assert not (tmp_path / "executed").exists()


def test_a_longer_run_is_what_it_would_have_been(capsys, tmp_path):
    longer = ("--rounds", "7", "--out")
    succeed(capsys, *RUN, *longer, tmp_path / "whole")
    succeed(capsys, *RUN, "--out", tmp_path / "run")
    succeed(capsys, *RUN, *longer, tmp_path / "run", "--resume")
    assert files(tmp_path / "run") == files(tmp_path / "whole")
    assert len(without_seconds(tmp_path / "run" / "metrics.jsonl")) == 7
