"""What tests share lies in tests/support."""

import ast

from tests.support.tiers import TESTS


def imported(path):
    """Return the modules of the tests that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    named = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    named += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return [name for name in named if name.split(".")[0] == "tests"]


def test_no_module_imports_from_a_test_module():
    wrong = [
        f"{path.relative_to(TESTS)} imports {name}"
        for path in sorted(TESTS.rglob("*.py"))
        for name in imported(path)
        if name.split(".")[1:2] not in (["support"], [path.parent.name]) or ".test_" in name
    ]
    assert wrong == []
