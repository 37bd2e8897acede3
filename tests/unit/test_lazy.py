"""Names that are imported when they are asked for: the same as if the package had imported them at once."""

import ast
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

PACKAGES = ["partwise", "partwise.data", "partwise.network.models"]


def imported_for_checkers(package):
    """The names below `if TYPE_CHECKING:`, with the modules that they come from."""
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return {name.name: node.module for node in block.body for name in node.names}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_name_is_what_type_checkers_take_it_for(name):
    package = import_module(name)
    homes = {each: home for each, home in imported_for_checkers(package).items() if each in package.__all__}
    assert homes
    for each, home in homes.items():
        assert getattr(package, each) is getattr(import_module(home), each)


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_is_there_and_no_module_hides_it(name):
    package = import_module(name)
    assert set(package.__all__) <= set(dir(package))
    assert all(hasattr(package, each) for each in package.__all__)
    assert not set(package.__all__) & {module.name for module in pkgutil.iter_modules(package.__path__)}


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match=r"module 'partwise' has no attribute 'Methd'"):
        import_module("partwise").Methd  # noqa: B018


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("import partwise; partwise.__version__; partwise.Method; partwise.ConfigError", False),
        ("from partwise import ALL, LOCAL, Method, option", False),
        ("from partwise.runs.config import make_config; make_config('fedper', {'lr': 0.1})", False),
        ("import partwise; partwise.data.RULE_KINDS", False),
        ("from partwise import *; run", True),
        ("import partwise; partwise.load", True),
    ],
)
def test_torch_is_imported_by_what_needs_it(program, expected):
    line = f"{program}; import sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout == f"{expected}\n"
