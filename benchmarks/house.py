"""How hard the engine room is to inherit, counted: python -m benchmarks.house

Prints for a round of FedAvg (the second, nothing evaluated) in the loop and in the vector engine the functions between
the server's `step` and what torch and numpy do with a batch, and how many are entered in all, whatever for; then the
module-level names that stand in two or more modules, and which room imports which. It traces and parses the package
and knows one of its names, `Server.step`, so an older checkout can be counted: PYTHONPATH=OLDER benchmarks/house.py
"""

import ast
import sys
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import partwise

ROOT = Path(partwise.__file__).resolve().parent


def module_of(path: Path) -> str:
    """`engines.loop` for partwise/engines/loop.py."""
    words = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(words[:-1] if words[-1] == "__init__" else words)


# What happens to a batch: it is drawn, marked, run, judged, learned from, checked, kept and mixed.
HAPPENS = {"permutation", "arange", "functional_call", "cross_entropy", "grad", "sub", "addcmul", "amin", "index_copy_"}
HAPPENS |= {"nonzero"}


class Passed:
    """The package's functions between the server's `step`, in the second round, and what happens to a batch."""

    def __init__(self) -> None:
        self.functions: dict[str, set[str]] = defaultdict(set)
        self.entered: set[tuple[str, str]] = set()  # all of them, by file
        self.inside = False
        self.rounds = 0

    def __call__(self, frame: FrameType | None, event: str, argument: Any) -> None:
        code = frame.f_code if frame else None
        if code and code.co_qualname == "Server.step" and event in ("call", "return"):
            self.rounds += event == "call"
            self.inside = event == "call" and self.rounds == 2
        if (
            self.inside
            and event == "call"
            and code
            and code.co_filename.startswith(str(ROOT))
            and "<" not in code.co_name
        ):
            self.entered.add((code.co_filename, code.co_qualname))
        name = getattr(argument, "__name__", "") if event == "c_call" else code.co_name if code else ""
        if not self.inside or event not in ("call", "c_call") or name not in HAPPENS:
            return
        stack = []
        while frame is not None and frame.f_code.co_qualname != "Server.step":
            stack.append(frame.f_code)
            frame = frame.f_back
        for code in stack if frame is not None else ():
            if code.co_filename.startswith(str(ROOT)) and "<" not in code.co_name:
                self.functions[module_of(Path(code.co_filename))].add(code.co_qualname.replace("<locals>.", ""))


def hops(engine: str) -> tuple[dict[str, list[str]], str]:
    """The functions of each module that a batch passes; and how many were entered in all, in how many files."""
    random = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (400, 1, 8, 8), generator=random, dtype=torch.uint8).numpy()
    y = torch.randint(0, 4, (400,), generator=random).numpy()
    passed = Passed()
    sys.setprofile(passed)
    try:
        partwise.run("fedavg", data=(x, y), clients=4, rounds=3, engine=engine, eval_every=3, device="cpu")
    finally:
        sys.setprofile(None)
    files = {file for file, _ in passed.entered}
    by_module = {module: sorted(names) for module, names in sorted(passed.functions.items())}
    return by_module, f"{len(passed.entered)} in {len(files)} files"


def repeated_names() -> dict[str, list[str]]:
    """The functions, classes and constants of a name that stands in two or more modules."""
    found = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        for name in defined(ast.parse(path.read_text(encoding="utf-8"))):
            found[name].append(module_of(path))
    plain = ("__all__", "log")  # of every module
    return {name: places for name, places in sorted(found.items()) if len(places) > 1 and name not in plain}


def defined(module: ast.Module) -> set[str]:
    """The names that a module defines on its top level."""
    names = set()
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names |= {each.id for target in targets if target for each in ast.walk(target) if isinstance(each, ast.Name)}
    return names


def imports() -> dict[str, list[str]]:
    """The rooms (folders, and modules of the top level) that each room imports as it is imported itself."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(ROOT.rglob("*.py")):
        room = module_of(path).partition(".")[0] or "__init__"
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "partwise":
                inside = (node.module or "").partition(".")[2]
                rooms = [inside.partition(".")[0]] if inside else [alias.name for alias in node.names]
                found[room] |= set(rooms) - {room}
    return {room: sorted(others) for room, others in sorted(found.items())}


def main() -> None:
    for engine in ("loop", "vector"):
        passed, entered = hops(engine)
        number = sum(map(len, passed.values()))
        print(f"{engine}: a batch passes {number} functions in {len(passed)} files; entered in all: {entered}")
        for module, names in passed.items():
            print(f"  {module}: {', '.join(names)}")
    repeated = repeated_names()
    print(f"names in two or more modules: {len(repeated)}: {', '.join(repeated)}")
    for room, others in imports().items():
        print(f"{room} imports {', '.join(others) or 'nothing'}")


if __name__ == "__main__":
    main()
