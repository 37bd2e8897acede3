"""The list of rooms in docs/architecture.md is true: all are there, and imports point up in it."""

import ast
import re
from pathlib import Path

import partwise

PACKAGE = Path(partwise.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
LINES = [line for line in re.search(r"```\n(.*?)```", PAGE, re.S)[1].splitlines() if line]
LEVEL = {room: level for level, line in enumerate(LINES) for room in re.split(r" {2,}", line)[0].split()}
ENTRANCES = {"__init__", "__main__"}


def room_of(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(path):
    """The modules of partwise that a file imports as it is imported itself."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module == "partwise":
            yield from (f"partwise.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("partwise."):
            yield node.module


def test_the_list_names_every_room():
    files = {path.stem for path in PACKAGE.glob("*.py")} - ENTRANCES
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert files | folders == set(LEVEL)


def test_a_room_imports_none_below_it():
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {module}"
        for path in PACKAGE.rglob("*.py")
        if room_of(path) not in ENTRANCES
        for module in imports(path)
        if LEVEL[module.split(".")[1]] > LEVEL[room_of(path)]
    ]
    assert not wrong


def test_every_file_that_the_page_names_is_there():
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", PAGE)
    assert named and not [
        name for name in named if not (PACKAGE / name).exists() and not (PACKAGE.parent / name).exists()
    ]


def test_every_name_that_the_page_takes_from_the_code_is_there():
    text = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    named = set(re.findall(r"`([A-Za-z_]+)`", PAGE)) | set(re.findall(r"`[A-Za-z]+\.([a-z_]+)`", PAGE))
    assert named and not [name for name in named if not re.search(rf"\b{name}\b", text)]


def test_no_object_is_completed_from_outside_its_class():
    """Engines, rounds and runs assign attributes of `self` alone, but for what the list says."""
    allowed = {"ctx", "matmul"}  # of torch
    found = []
    for room in ("engines", "rounds", "runs"):
        for path in (PACKAGE / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    owner = ast.unparse(node.value)
                    if owner != "self" and owner not in allowed:
                        found.append(f"{path.name}: {ast.unparse(node)}")
    assert not found
