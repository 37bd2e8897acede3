"""Fault 60: wrong files in a run's folder, and odd things in a method, are one line each."""

import json
import multiprocessing.synchronize
import shutil

import pytest
import torch

import partwise
from partwise import ConfigError
from tests.support.commands import TINY, refuse, succeed
from tests.support.files import picture, write_tree
from tests.support.runs import awkward_federation, network, simulate
from tests.support.states import distance

RUN = ("run", "fedavg", *TINY, "--no-save-models", "--quiet")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "x"
    partwise.run("fedavg", data="made", model="mlp-100", clients=4, rounds=2, save_models=False, out=folder)
    return folder


@pytest.fixture
def out(finished, tmp_path):
    """A copy of a finished run, to be damaged."""
    shutil.copytree(finished, tmp_path / "x")
    return tmp_path / "x"


def damaged(capsys, out, name):
    line = refuse(capsys, *RUN, "--out", out, "--resume")
    assert line.startswith(f"error: '{out / name}' is damaged (") and line.endswith("; --overwrite runs it again")
    return line


def emptied(summary):
    summary["accuracy"]["received"] = {}


def without_data(summary):
    del summary["data"]


def endless(summary):
    summary["seconds"] = None


@pytest.mark.parametrize("content", ["[]", "{}", "5", "null", '"x"', '{"accuracy": 3}'])
def test_fault_60_a_summary_of_another_shape(content, capsys, out):
    (out / "summary.json").write_text(content)
    assert "it is no summary of a run" in damaged(capsys, out, "summary.json")


@pytest.mark.parametrize("change", [emptied, without_data, endless])
def test_fault_60_a_summary_that_lacks_something(change, capsys, out):
    summary = json.loads((out / "summary.json").read_text())
    change(summary)
    (out / "summary.json").write_text(json.dumps(summary))
    assert "it is no summary of a run" in damaged(capsys, out, "summary.json")


@pytest.mark.parametrize("name", ["config.toml", "summary.json"])
def test_fault_60_a_file_that_is_no_text_or_a_folder(name, capsys, out):
    (out / name).write_bytes(b"\xff\xfe")
    assert "it is not UTF-8" in damaged(capsys, out, name)
    (out / name).unlink()
    (out / name).mkdir()
    assert "Is a directory" in damaged(capsys, out, name)


@pytest.mark.parametrize("name", ["config.toml", "models.part", "metrics.jsonl", "summary.json", "clients.csv.part"])
def test_fault_60_a_folder_in_the_place_of_a_file_is_found_before_anything_is_cleared(name, capsys, out):
    (out / name).unlink(missing_ok=True)
    (out / name).mkdir()
    before = sorted(path.name for path in out.iterdir())
    assert refuse(capsys, *RUN, "--out", out, "--overwrite") == f"error: cannot write '{out / name}': it is a folder"
    assert sorted(path.name for path in out.iterdir()) == before
    (out / name).rmdir()
    succeed(capsys, *RUN, "--out", out, "--overwrite")


# ------------------------------------------------------------------------------------------------ sizes of images


def test_fault_60_images_of_one_pixel_and_of_too_many(capsys, tmp_path):
    path = write_tree(tmp_path / "a", {f"{name}/{n}.png": picture(n, (8, 8)) for name in "ab" for n in range(12)})
    run = ("run", "fedavg", "--data", path, "--partition", "iid", "--clients", "2", "--rounds", "1", "--quiet")
    line = refuse(capsys, *run, "--image-size", "1")
    assert "does not take samples of shape (3, 1, 1)" in line
    succeed(capsys, *run, "--image-size", "1", "--model", "mlp-100")
    assert "needs" in refuse(capsys, *run, "--image-size", "1000000", code=3)


# --------------------------------------------------------------------------------------------- methods of one's own

METHODS = {
    'share = "head"': "share of Mine is 'head'; it must be a dict, as {'body': ALL}",
    "def loss(self, net, b, me): b.x": "mine.py:4: a loss must be one number, as from b.mean or b.ce, not NoneType",
    "def loss(self, net, b, me): sys.exit(0)": "mine.py:4 in Mine.loss (round 1): SystemExit: 0",
    "def aggregate(self, server, updates): sys.exit(1)": "mine.py:4 in Mine.aggregate (round 1): SystemExit: 1",
    "def __post_init__(self): sys.exit(0)": "mine.py:4 in Mine.__post_init__: SystemExit: 0",
    "sys.exit(0)": "'mine.py' cannot be imported: SystemExit: 0",
}


@pytest.mark.parametrize("line", METHODS)
@pytest.mark.parametrize("engine", ["loop", "vector"])
def test_fault_60_odd_things_in_a_method(line, engine, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = f"import sys\nfrom partwise import Method\nclass Mine(Method):\n    {line}\n"
    (tmp_path / "mine.py").write_text(text)
    assert refuse(capsys, "run", "mine.py", *TINY, "--engine", engine, "--quiet") == f"error: {METHODS[line]}"


def test_fault_60_what_ends_python_does_not_end_it_for_a_script(tmp_path):
    (tmp_path / "mine.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(ConfigError, match="cannot be imported: SystemExit: 0"):
        partwise.run(str(tmp_path / "mine.py"), data="made", clients=4)


# --------------------------------------------------------------------------------------------------- shared memory


def test_fault_60_workers_without_any_shared_memory(monkeypatch):
    """As where /dev/shm is read-only."""

    def refused(*_, **__):
        raise OSError(30, "Read-only file system")

    def full(tensor):
        raise RuntimeError("unable to open shared memory object </torch_1> in read-write mode: Read-only file system")

    monkeypatch.setattr(multiprocessing.synchronize.SemLock, "__init__", refused)
    monkeypatch.setattr(torch.Tensor, "share_memory_", full)
    runs = [
        simulate("fedper", network("mlp"), awkward_federation(), engine, rounds=2, **own)
        for engine, own in {"loop": {}, "workers": {"workers": 2}}.items()
    ]
    assert distance(*runs) == 0
