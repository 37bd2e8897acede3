"""A method in a file of its own: it may import the files beside it, and nobody else gets them."""

import sys
from pathlib import Path

import pytest

from partwise.errors import ConfigError
from partwise.methods import find
from tests.support.runs import network, simulate
from tests.support.states import distance

MINE = """\
from partwise import Method
from helper import scaled
class Mine(Method):
    def loss(self, net, b, me):
        return scaled(b.ce(net(b.x)))
"""
HELPER = """\
def scaled(loss):
    return {factor} * loss
"""


def folder(place: Path, factor: float) -> str:
    """A folder with a method file and its neighbour; the path of the former."""
    place.mkdir()
    (place / "mine.py").write_text(MINE)
    (place / "helper.py").write_text(HELPER.format(factor=factor))
    return str(place / "mine.py")


def test_two_folders_have_neighbours_of_the_same_name(tmp_path):
    one, two = (find(folder(tmp_path / str(factor), factor)) for factor in (1.0, 2.0))
    runs = [simulate(method, network("mlp"), lr=lr, rounds=2) for method, lr in ((one, 0.05), (two, 0.025))]
    losses = [run.history.rows[0]["train_loss"] for run in runs]
    assert losses[1] == pytest.approx(2 * losses[0], abs=1e-12)
    for name, copies in runs[0].server.copies.items():
        assert (copies.values - runs[1].server.copies[name].values).abs().max() < 1e-12


def test_nothing_of_it_is_left_behind(tmp_path):
    path, modules = list(sys.path), {name for name in sys.modules if not name.startswith("partwise_method_")}
    find(folder(tmp_path / "here", 1.0))
    assert sys.path == path and modules == {name for name in sys.modules if not name.startswith("partwise_method_")}
    broken = Path(folder(tmp_path / "broken", 1.0))
    (broken.parent / "helper.py").write_text("1 / 0")
    with pytest.raises(ConfigError, match="cannot be imported: ZeroDivisionError"):
        find(str(broken))
    assert sys.path == path and "helper" not in sys.modules


def test_a_module_of_that_name_that_is_there_already_stays_and_is_not_taken(tmp_path, monkeypatch):
    other = type(sys)("helper")
    monkeypatch.setitem(sys.modules, "helper", other)
    find(folder(tmp_path / "here", 1.0))
    assert sys.modules["helper"] is other


def test_a_neighbour_may_hold_a_base_class_and_lie_in_a_package(tmp_path):
    (tmp_path / "bases").mkdir()
    (tmp_path / "bases" / "__init__.py").write_text("")
    (tmp_path / "bases" / "pulled.py").write_text(
        "from partwise import Method, option\n"
        "class Pulled(Method):\n"
        "    pull: float = option(1.0, 'How strong the pull is.', minimum=0)\n"
    )
    (tmp_path / "mine.py").write_text("from bases.pulled import Pulled\nclass Mine(Pulled):\n    lr = 0.5\n")
    mine = find(str(tmp_path / "mine.py"))
    assert (mine.__name__, mine().pull, mine().lr) == ("Mine", 1.0, 0.5)
    assert not any(name.startswith("bases") for name in sys.modules)


def test_workers_find_the_neighbour_too(tmp_path):
    mine = folder(tmp_path / "here", 2.0)
    loop, workers = (
        simulate(mine, network("mlp"), engine=engine, workers=number, rounds=2)
        for engine, number in (("loop", None), ("workers", 1))
    )
    assert workers.notes[0] == "engine: workers on cpu" and distance(loop, workers) == 0
