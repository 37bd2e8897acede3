"""How hard the package is to inherit, counted: python -m benchmarks.house

Prints for a round of FedAvg (the second, nothing evaluated) in the loop and in the vector engine the functions between
the server's `step` and what torch and numpy do with a batch, and how many are entered in all, whatever for. Then what
stands in the files: names in two or more modules, classes with many methods, dictionaries of anything, accesses by
string keys, docstrings, long files, and which room imports which. A room is a folder or a module of the top level.
It knows one of the package's names, `Server.step`, so older checkouts can be counted: PYTHONPATH=OLDER python
benchmarks/house.py
"""

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path()  # the package's folder; set by main
Modules = dict[str, ast.Module]  # by name: `engines.loop` for partwise/engines/loop.py

# The rooms between rounds and people, as they are and as they were: what crosses them should have types.
RECORDS = {"runs", "studies", "records", "reporting", "inference", "federation", "papers", "commands", "serving"}
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
MANY = 10  # classes and files that are listed

# A docstring begins with a verb if its first word is one of these; a verb that is missing here is added.
VERBS = """
    Accept Adapt Add Advance Aggregate Allocate Allow Answer Append Apply Ask Assign Average Begin Bind Bring Build Call
    Carry Check Choose Clear Clip Close Collect Combine Compare Compile Complete Compute Connect Continue Convert Copy
    Correct Count Create Cut Deal Declare Decode Delay Describe Discard Divide Download Draw Drop Encode End Enlarge
    Enter Estimate Evaluate Exchange Export Fetch Fill Find Fit Forget Give Go Group Handle Hide Hold Ignore Import
    Initialise Join Keep Lay Learn Leave Let Limit List Load Log Look Lower Make Mark Mask Match Measure Merge Mix Move
    Multiply Name Note Open Pack Pad Parse Partition Pass Pick Place Plan Plot Predict Prepare Print Project Put Raise
    Read Rebuild Receive Record Refuse Reject Release Remove Render Repeat Replace Report Reproduce Request Require
    Reset Resize Resolve Restore Return Rewrite Round Run Sample Save Say Scale Score Search Select Send Serve Set Share
    Show Skip Sort Split Spread Start Stop Store Sum Summarise Take Tell Test Trace Track Train Translate Try Tune Turn
    Unpack Update Use Validate Wait Walk Warn Watch Weigh Wrap Write Yield
"""

# What happens to a batch: it is drawn, marked, run, judged, learned from, checked, kept and mixed.
HAPPENS = {"permutation", "arange", "functional_call", "cross_entropy", "grad", "sub", "addcmul", "amin", "index_copy_"}
HAPPENS |= {"nonzero"}


def module_of(path: Path, root: Path) -> str:
    """Return `engines.loop` for partwise/engines/loop.py, and nothing for the package's own __init__.py."""
    words = path.relative_to(root).with_suffix("").parts
    return ".".join(words[:-1] if words[-1] == "__init__" else words)


def room_of(module: str) -> str:
    return module.partition(".")[0] or "__init__"


def parsed(root: Path) -> Modules:
    """Return the syntax trees of a package's modules."""
    paths = sorted(root.rglob("*.py"))
    return {module_of(path, root): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


# ---- what a batch passes


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
        if self.inside and event == "call" and code and is_ours(code):
            self.entered.add((code.co_filename, code.co_qualname))
        name = getattr(argument, "__name__", "") if event == "c_call" else code.co_name if code else ""
        if not self.inside or event not in ("call", "c_call") or name not in HAPPENS:
            return
        stack = []
        while frame is not None and frame.f_code.co_qualname != "Server.step":
            stack.append(frame.f_code)
            frame = frame.f_back
        for code in stack if frame is not None else ():
            if is_ours(code):
                self.functions[module_of(Path(code.co_filename), ROOT)].add(code.co_qualname.replace("<locals>.", ""))


def is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(str(ROOT)) and "<" not in code.co_name


def hops(engine: str) -> tuple[dict[str, list[str]], str]:
    """Return the functions of each module that a batch passes, and how many were entered in how many files."""
    import torch

    import partwise

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


# ---- what stands in the files


def repeated_names(modules: Modules) -> dict[str, list[str]]:
    """Return the functions, classes and constants of a name that stands in two or more modules, with the modules."""
    found = defaultdict(list)
    for module, tree in modules.items():
        for name in defined(tree):
            found[name].append(module)
    plain = ("__all__", "log")  # of every module
    return {name: places for name, places in sorted(found.items()) if len(places) > 1 and name not in plain}


def defined(module: ast.Module) -> set[str]:
    """Return the names that a module defines on its top level."""
    names = set()
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names |= {each.id for target in targets if target for each in ast.walk(target) if isinstance(each, ast.Name)}
    return names


def methods(modules: Modules) -> Counter[str]:
    """Return the number of functions in the body of each class."""
    classes = ((m, node) for m, tree in modules.items() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return Counter({f"{m}.{node.name}": sum(isinstance(own, FUNCTION) for own in node.body) for m, node in classes})


def of_anything(modules: Modules, kind: str) -> Counter[str]:
    """Return how often each room writes the type `kind[str, Any]`, in annotations and names for types."""
    found = Counter[str]()
    for module, tree in modules.items():
        written = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Subscript)]
        found[room_of(module)] += written.count(f"{kind}[str, Any]")
    return found


def subscript(node: ast.AST) -> ast.expr | None:
    """Return the key of `row["round"]`; `Literal["train"]` is a type."""
    return node.slice if isinstance(node, ast.Subscript) and ast.unparse(node.value) != "Literal" else None


def call(node: ast.AST) -> ast.expr | None:
    """Return the key of `row.get("round")`, pop and setdefault."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        return node.args[0] if node.func.attr in ("get", "pop", "setdefault") else None
    return None


def string_keys(modules: Modules, key_of: Callable[[ast.AST], ast.expr | None]) -> Counter[str]:
    """Return how often each room reads or writes by a constant key, outside of annotations."""
    found = Counter[str]()
    for module, tree in modules.items():
        keys = [key_of(node) for node in code(tree)]
        found[room_of(module)] += sum(isinstance(key, ast.Constant) and isinstance(key.value, str) for key in keys)
    return found


def code(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all below it, without annotations."""
    yield node
    for field, value in ast.iter_fields(node):
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.AST) and field not in ("annotation", "returns"):
                yield from code(each)


def begins_with_verb(docstring: str) -> bool:
    return docstring.split()[0].rstrip(".,:;") in VERBS.split()


def public(tree: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Yield the functions and classes of a module, and of its classes, that no underscore stands in front of."""
    for node in tree.body:
        if isinstance(node, FUNCTION | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public(node)


def lines(root: Path) -> dict[str, int]:
    """Return the number of lines of every file."""
    paths = sorted(root.rglob("*.py"))
    return {path.relative_to(root).as_posix(): len(path.read_text(encoding="utf-8").splitlines()) for path in paths}


def imports(modules: Modules) -> dict[str, list[str]]:
    """Return the rooms that each room imports as it is imported itself."""
    found: dict[str, set[str]] = defaultdict(set)
    for module, tree in modules.items():
        room = room_of(module)
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "partwise":
                inside = (node.module or "").partition(".")[2]
                rooms = [inside.partition(".")[0]] if inside else [alias.name for alias in node.names]
                found[room] |= set(rooms) - {room}
    return {room: sorted(others) for room, others in sorted(found.items())}


# ---- what is printed


def by_room(title: str, found: Counter[str]) -> str:
    """Return a line: how many in all, in the rooms of records, and in each room."""
    rooms = ", ".join(f"{room} {number}" for room, number in found.most_common() if number)
    records = sum(number for room, number in found.items() if room in RECORDS)
    return f"{title}: {found.total()}, of which {records} in the rooms between rounds and people: {rooms}"


def counted(root: Path) -> list[str]:
    """Return what is said of a package's files, line by line."""
    modules, length = parsed(root), lines(root)
    repeated, largest = repeated_names(modules), methods(modules).most_common(MANY)
    every = [
        (room_of(module), node, ast.get_docstring(node)) for module, tree in modules.items() for node in public(tree)
    ]
    functions = [(room, text) for room, node, text in every if isinstance(node, FUNCTION)]
    classes = [(room, text) for room, node, text in every if isinstance(node, ast.ClassDef)]
    no_verb = Counter(room for room, text in functions if text and not begins_with_verb(text))
    longest = sorted(length.items(), key=lambda each: -each[1])[:MANY]
    return [
        f"names in two or more modules: {len(repeated)}: {', '.join(repeated)}",
        f"methods of the largest classes: {', '.join(f'{name} {number}' for name, number in largest)}",
        by_room("dict[str, Any]", of_anything(modules, "dict")),
        by_room("Mapping[str, Any]", of_anything(modules, "Mapping")),
        by_room('string keys, x["key"]', string_keys(modules, subscript)),
        by_room('string keys, x.get("key"), pop, setdefault', string_keys(modules, call)),
        by_room("public functions without docstring", Counter(room for room, text in functions if not text)),
        by_room("docstrings of public functions that begin with no verb", no_verb),
        by_room("public classes without docstring", Counter(room for room, text in classes if not text)),
        by_room("files", Counter(map(room_of, modules))),
        f"lines: {sum(length.values())}; longest files: {', '.join(f'{file} {number}' for file, number in longest)}",
        *(f"{room} imports {', '.join(others) or 'nothing'}" for room, others in imports(modules).items()),
    ]


def main() -> None:
    global ROOT
    import partwise

    ROOT = Path(partwise.__file__).resolve().parent
    for engine in ("loop", "vector"):
        passed, entered = hops(engine)
        number = sum(map(len, passed.values()))
        print(f"{engine}: a batch passes {number} functions in {len(passed)} files; entered in all: {entered}")
        for module, names in passed.items():
            print(f"  {module}: {', '.join(names)}")
    print("\n".join(counted(ROOT)))


if __name__ == "__main__":
    main()
