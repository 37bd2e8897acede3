"""Whether the tests of a method notice a mistake in it: `python -m tests.mutants fedamp cfl`.

Mutants are made of a method's file, each with one line changed: a sign, a factor, a comparison, a number, a part, a
share, a forgotten `detach()`, a statement left out. The method's own tests run on each, in a forked process that has
torch already, and should fail. Survivors are shown; fewer than nine of ten killed is exit status 1. It has to fork.
"""

import argparse
import ast
import difflib
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sklearn.cluster  # noqa: F401  # what takes long to import is imported once
import torch

import partwise.method
from partwise import methods
from tests.support.runs import network, simulate

TESTS = Path(__file__).parent
NAMING = ["baselines/test_global_models.py", "test_method_pages.py", "test_five_papers.py", "test_identities.py"]
NAMING = ["oracles/test_scheduling.py", *(f"laws/{file}" for file in [*NAMING, "test_listed.py"])]  # tests name methods
ENOUGH = 0.9
SECONDS = 120  # a mutant may run forever

OPERATORS: dict[type, type] = {ast.Add: ast.Sub, ast.Mult: ast.Div, ast.And: ast.Or, ast.Lt: ast.GtE, ast.Gt: ast.LtE}
OPERATORS |= {ast.Eq: ast.NotEq, ast.In: ast.NotIn, ast.Is: ast.IsNot}
OPERATORS |= {new: old for old, new in OPERATORS.items()} | {ast.USub: ast.UAdd}
EXTREMES = {"min": "max", "max": "min"}
NAMES = EXTREMES | {"argmin": "argmax", "argmax": "argmin", "sum": "mean", "mean": "sum"}
NAMES |= {"body": "head", "head": "body", "detach": "clone"}  # which lets the gradient through
SHARES = {"ALL": "LOCAL", "LOCAL": "ALL", "GUIDE": "ALL", "GROUP": "ALL", "MIXED_GUIDE": "LOCAL"}
SHARES |= {"SERVER": "LOCAL", "SERVER_GUIDE": "SERVER", "FROZEN": "ALL", "UPLOAD": "LOCAL"}
WORDS = {"body": "head", "head": "body", "forwards": "backwards", "backwards": "forwards"}  # of which one is meant
TAKES_PARTS = {"Move", "train", "fixed"}  # functions whose first text names parts
TAKES_DIMENSIONS = {"flatten", "sum", "mean", "cat", "softmax", "any", "all"}  # any other number would be an error
GUARD = 1e-6  # a smaller number only keeps something from being zero
FIELDS = {ast.Name: ("id", SHARES | EXTREMES), ast.Attribute: ("attr", NAMES), ast.keyword: ("arg", EXTREMES)}
Change = tuple[ast.AST, str, Any]  # a node, one of its fields, and another value of it


class Changes(ast.NodeVisitor):
    """Every change of one line that makes a mutant; what only a reader sees is left as it is."""

    def __init__(self, tree: ast.Module):
        self.found: list[Change] = []
        self.visit(tree)

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Raise | ast.JoinedStr) or tells(node):
            return
        field, names = FIELDS.get(type(node), ("", {}))
        if field and getattr(node, field) in names:
            self.found.append((node, field, names[getattr(node, field)]))
        for place, operator in enumerate(getattr(node, "ops", [])):
            if type(operator) in OPERATORS:
                changed = [*node.ops[:place], OPERATORS[type(operator)](), *node.ops[place + 1 :]]
                self.found.append((node, "ops", changed))
        if type(getattr(node, "op", None)) in OPERATORS:
            self.found.append((node, "op", OPERATORS[type(node.op)]()))
        if isinstance(node, ast.If | ast.IfExp) and not isinstance(node.test, ast.Compare):
            self.found.append((node, "test", ast.UnaryOp(ast.Not(), node.test)))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.If | ast.For):
            self.leave_out(node)
        super().visit(node)

    def leave_out(self, node: Any) -> None:
        """Statements without which the others can still run; `share` is often that of the base class anyway."""
        for statement in node.body:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else None
            changes = isinstance(target, ast.Subscript | ast.Attribute)  # what there is already
            assigns = target and (changes or isinstance(node, ast.ClassDef)) and ast.unparse(target) != "share"
            acts = isinstance(statement, ast.Expr) and not is_text(statement.value) and not tells(statement.value)
            raises = isinstance(statement, ast.If) and isinstance(statement.body[0], ast.Raise)
            if assigns or acts or (isinstance(statement, ast.AugAssign | ast.If | ast.For) and not raises):
                left = [each for each in node.body if each is not statement] or [ast.Pass()]
                self.found.append((node, "body", left))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """An option: its default, which may be another one of those that it names."""
        default = node.value.args[0] if isinstance(node.value, ast.Call) else node.value
        named = [each.value for each in ast.walk(node.annotation) if is_text(each)]
        if named and isinstance(default, ast.Constant):
            self.found.append((default, "value", next(each for each in named if each != default.value)))
        elif default:
            self.visit(default)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.found.append((node, "value", not node.value))
        elif isinstance(node.value, int | float) and not 0 < abs(node.value) < GUARD:
            self.found.append((node, "value", 2 * node.value if node.value else 1))
        elif node.value in WORDS:
            self.found.append((node, "value", WORDS[node.value]))

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)
        if not isinstance(node.slice, ast.Tuple):  # of which most are dimensions
            self.visit(node.slice)

    def visit_Call(self, node: ast.Call) -> None:
        function = ast.unparse(node.func).rpartition(".")[2]
        if function in TAKES_PARTS and node.args and is_text(node.args[0]) and " " in node.args[0].value:
            self.found.append((node.args[0], "value", node.args[0].value.partition(" ")[2]))
        for child in ast.iter_child_nodes(node):
            if function not in TAKES_DIMENSIONS or not isinstance(child, ast.Constant):
                self.visit(child)


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def tells(node: ast.AST) -> bool:
    """Whether this only writes to the log."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("log.", "server.tell_once"))


def mutants(source: str) -> Iterator[str]:
    """The texts of all mutants, each unlike the original."""
    tree = ast.parse(source)
    for node, field, value in Changes(tree).found:
        before = getattr(node, field)
        setattr(node, field, value)
        yield ast.unparse(ast.fix_missing_locations(tree))
        setattr(node, field, before)


def tests_of(method: str) -> list[list[str]]:
    """Arguments of pytest for the tests that concern a method, its own files first."""
    files = [TESTS / folder / f"test_{method}.py" for folder in ("laws/baselines", "oracles")]
    own = [[str(file)] for file in files if file.is_file()]
    naming = ["-k", f"{method} and not host", "-m", "not slow"]  # a host is anything, and compared with itself
    return own + [[str(TESTS / file), *naming] for file in NAMING]


def passes(method: str, source: str) -> bool:
    """Whether a method with this source passes its tests, in a process of its own."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    signal.alarm(SECONDS)
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    try:
        put_in_place(method, source)
        codes = set()
        for each in tests_of(method):
            codes.add(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *each]))
            if not codes <= {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
                os._exit(1)
        os._exit(0 if pytest.ExitCode.OK in codes else 1)
    except BaseException:
        os._exit(1)


def warm_up() -> None:
    """Load what pytest and a first run load, once for all mutants."""
    torch.set_num_threads(1)
    pytest.main(["-qq", "--collect-only", "-p", "no:cacheprovider", str(TESTS / "conftest.py")])
    simulate("fedavg", network("mlp"), rounds=1)


def put_in_place(method: str, source: str) -> None:
    """Let every import of the method's module find this source, in which all shares are known."""
    for name in [name for name in sys.modules if name.startswith("partwise.methods.")]:
        del sys.modules[name]
    module = ModuleType(f"partwise.methods.{method}")
    vars(module).update({name: getattr(partwise.method, name) for name in SHARES}, __file__=f"{method}.py")
    sys.modules[module.__name__] = module
    exec(compile(source, f"{method}.py", "exec"), vars(module))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("methods", nargs="+", choices=methods.names(), metavar="METHOD")
    parser.add_argument("--most", type=int, default=40, help="mutants of a method; of more, some are drawn")
    parser.add_argument("--seed", type=int, default=0, help="of that draw")
    arguments, status = parser.parse_args(), 0
    warm_up()
    for method in arguments.methods:
        original = ast.unparse(ast.parse(methods.source(method)))
        if not passes(method, original):
            print(f"{method}: fails its tests as it is, or has none")
            return 2
        made = list(dict.fromkeys(mutants(original)))
        made = random.Random(arguments.seed).sample(made, min(len(made), arguments.most))
        survivors = [mutant for mutant in made if passes(method, mutant)]
        print(f"{method}: {len(made) - len(survivors)} of {len(made)} killed", flush=True)
        for mutant in survivors:
            changed = difflib.unified_diff(original.splitlines(), mutant.splitlines(), n=0, lineterm="")
            print(*(f"    {line}" for line in list(changed)[2:] if not line.startswith("@@")), sep="\n")
        status |= len(made) - len(survivors) < ENOUGH * len(made)
    return status


if __name__ == "__main__":
    sys.exit(main())
