"""Write docs/api.md from docstrings, and from examples that are carried out: `python docs/make_api.py`."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import partwise
from partwise import method as source
from partwise.errors import PartwiseError
from partwise.method import Move, Phase, Relay, Share, Stage, WithinGroups, train
from partwise.network.parts import Parts, Sizes
from partwise.network.view import Batch, ClassCounts, ClassRows, Me, Net, PerClient, Received
from partwise.options import option
from partwise.rounds.messages import Updates
from partwise.rounds.server import Server
from partwise.tasks import Task

PAGE = Path(__file__).parent / "api.md"

OPENING = """\
# Reference

This page documents every public name of the package, from its docstring. First comes what a method's functions receive,
then [what a method says](#what-a-method-says) (`Move`, `Phase`, `Stage`, `option`), then [what a program
calls](#what-a-program-calls) (`run`, `compare`, `load_model`). Import all of it from `partwise`: `from partwise import
ALL, Method, Move, Phase`. For commands and their options see `partwise --help` and `partwise run fedper --help`.

This page is made by `python docs/make_api.py`, which carries out every example; the tests make it again.

## What a method's functions are handed

[Writing a method](writing-a-method.md) says which function is handed what, and what it returns.

Rows come first in every tensor: of samples in a mini-batch, of clients in updates. A *full name* is `head.weight`; a
*selector* is `"head"`, `"body.conv1"`, `"@norm"`, `"*"`, or several of them with spaces between.

The examples look at what this method's functions were handed last, in the only round of a run with three clients:
"""

SCENE = """\
from collections import OrderedDict
import torch
from torch import nn
import partwise
from partwise import ALL, GUIDE, ClassCounts, ClassRows, Method, PerClient

seen = {}

class Looking(Method):
    share = {"body": ALL, "head": GUIDE}

    def build(self, parts, sizes):
        seen.update(parts=parts, sizes=sizes)
        return parts

    def keep(self, net):
        return {"c": torch.zeros_like(net["head"]["bias"])}

    def down(self, server):
        return {"c": torch.ones(2), "mine": PerClient(torch.tensor([10.0 * k for k in server.receivers]))}

    def correct(self, grads, net, me):
        seen.update(grads=grads, net=net, me=me)
        return grads

    def report(self, net, b, me):
        seen.update(b=b)
        return {"means": ClassRows.of(net.body(b.x), b)}

    def aggregate(self, server, updates):
        seen.update(server=server, updates=updates)

model = nn.Sequential(OrderedDict(fc1=nn.Linear(3, 5), relu=nn.ReLU(), fc2=nn.Linear(5, 4), out=nn.Linear(4, 2)))
x, y = torch.arange(45.0).reshape(15, 3) / 45, torch.arange(15) % 2
clinics = {"Graz": (x[:5], y[:5]), "Wien": (x[5:10], y[5:10]), "Linz": (x[10:], y[10:])}
method = Looking(rounds=1, lr=0.1)
partwise.run(method, data=clinics, model=model, engine="loop")
parts, sizes, grads, net, me, b, server, updates = (
    seen[name] for name in "parts sizes grads net me b server updates".split()
)
"""


@dataclass(frozen=True)
class Section:
    """Something that functions are handed or a method says: its name, its class or function, members for methods."""

    name: str
    kind: type | Callable | None
    opening: str
    members: str
    example: str


SECTIONS = [
    Section(
        "net",
        Net,
        "One client's network, a `partwise.Net`. Calling it changes no parameter.",
        "__call__ __getattr__ __getitem__ grad step fixed with_tensors",
        """\
net(b.x).shape, net.body(b.x).shape
{name: tuple(value.shape) for name, value in net["head"].items()}
[*net["*"]]
[*net["body.fc2 head"]]
near = net.step(net.grad(method.loss, b, me), lr=0.1)
torch.equal(near["head"]["bias"], net["head"]["bias"] - 0.1 * net.grad(method.loss, b, me)["head.bias"])
""",
    ),
    Section(
        "b",
        Batch,
        "A mini-batch, a `partwise.Batch`. Where clients run side by side, its last rows may be padding: take means "
        "with `b` alone.",
        "x y mask task classes mean sum loss ce one_hot bins random normal",
        """\
b.x.shape, b.y, b.mask, b.classes
b.mean(torch.tensor([1.0, 2.0, 3.0, 6.0])), b.sum(torch.tensor([1.0, 2.0, 3.0, 6.0]))
b.loss(net(b.x)).shape, b.ce(net(b.x)).shape
b._replace(mask=torch.tensor([True, True, True, False])).mean(torch.tensor([1.0, 2.0, 3.0, 6.0]))  # one row of padding
b.one_hot().long().tolist(), b.bins().shape
b.random(b.y.shape).shape, b.normal((len(b.y), 3)).shape
""",
    ),
    Section(
        "me",
        Me,
        "All that a client may read beside its network and its mini-batch, a `partwise.Me`.",
        "got keep counts bins samples steps lr random normal",
        """\
me.keep
me.counts, me.bins, me.samples, me.steps, me.lr
me.random().shape, me.normal((2, 3)).shape
""",
    ),
    Section(
        "me.got",
        Received,
        "What the client received in this round: parts, but for `LOCAL` and `FROZEN` ones, and what `down` returned.",
        "__call__ __getattr__ __getitem__ __contains__",
        """\
me.got.c, me.got["c"]
me.got.mine
"c" in me.got, "head" in me.got, "d" in me.got
me.got.head(net.body(b.x)).shape
[*me.got["head"]], [*me.got["*"]] == [*net["*"]]
sum((value - me.got["*"][name]).square().sum() for name, value in net["*"].items()).shape
""",
    ),
    Section(
        "grads",
        None,
        "The gradients of a step by full name, each of the shape of its parameter: what `correct` is handed and "
        "returns, and what a move's `gradient` returns. A dict of the parameters that the move trains, and no others.",
        "",
        """\
{name: tuple(value.shape) for name, value in grads.items()}
corrected = {name: value + 0.1 * net["*"][name] for name, value in grads.items()}
""",
    ),
    Section(
        "server",
        Server,
        "What every server hook is handed.",
        "clients samples round cohort receivers groups memory copies __getitem__ __setitem__ net mix regroup decay "
        "stream",
        """\
server.clients, server.samples, server.round, server.cohort
server["head"]["bias"].shape, [*server["*"]] == [*net["*"]]
server["head"] = {"bias": torch.zeros(2)}
server["*"]["head.bias"], server.copies["head.bias"].values
server.memory["velocity"] = {name: torch.zeros_like(value) for name, value in server["*"].items()}
server.net()(b.x).shape
server.stream("noise", server.round).permutation(4).shape
""",
    ),
    Section(
        "updates",
        Updates,
        "What clients sent back, a row for each in the order of their numbers: what `mix` and `aggregate` are handed, "
        "and what `run(job, clients)` returns. Updates that cannot be used, such as numbers that are not finite, are "
        "left out.",
        "clients round samples steps loss parts extras only",
        """\
updates.clients, updates.samples, updates.steps
{name: tuple(value.shape) for name, value in updates.parts.items()}
whole = torch.cat([value.flatten(1) for value in updates.parts.values()], 1)  # a row for each whole model
torch.cdist(whole, whole).shape
updates.extras["means"].counts
updates.only([0, 2]).clients
""",
    ),
    Section(
        "ClassRows",
        ClassRows,
        "An extra with a vector per class; only those of a client's own classes are sent and counted. "
        "Those of several clients, in `updates.extras`, have one dimension more, clients first.",
        "of sums counts mean present",
        """\
rows = ClassRows.of(net.body(b.x), b)
rows.sums.shape, rows.counts, rows.present
updates.extras["means"].mean.shape
""",
    ),
    Section(
        "ClassCounts",
        ClassCounts,
        "An extra with a label histogram, by which privacy filters know it: see [privacy](privacy.md).",
        "counts",
        """\
ClassCounts(b.one_hot().sum(0)).counts
""",
    ),
    Section(
        "PerClient",
        PerClient,
        "An extra of `down` that differs from client to client.",
        "rows",
        """\
PerClient(torch.zeros(len(server.receivers), 2)).rows.shape
""",
    ),
    Section(
        "sizes",
        Sizes,
        "What the parts have to fit, a `partwise.Sizes`: for `build`.",
        "task outputs classes shape features clients",
        "sizes.outputs, sizes.shape, sizes.features\n",
    ),
    Section(
        "Task",
        Task,
        "What a label is: `b.task`, `sizes.task`.",
        "kind names of_classes outputs bins bin_names binned output_shape losses loss",
        """\
b.task.kind, b.task.names, b.task.of_classes, b.task.bins
b.task.output_shape(b.y.shape[1:]), b.task.binned(b.y).shape
""",
    ),
    Section(
        "parts",
        Parts,
        "The network as named parts: what `build` is handed. Each function that changes them returns new parts.",
        "chain modules layers trained_layers cut copy like add append replace",
        """\
parts
parts.cut("body", filter="fc2").chain
[*parts.copy("*", name="mine").like("head", name="p_head").modules]
parts.add("projector", nn.Linear(sizes.features, 8)).modules["projector"]
parts.layers("body"), parts.trained_layers("body")
""",
    ),
]
SAYS = """\
## What a method says

[The guide](writing-a-method.md) says what each is for. A function is given as itself, or by its name in the method.
"""

SAID = [
    Section(
        "Share",
        Share,
        "Who shares a part. There are nine of them; the table of the guide lists what each does.",
        "ALL GUIDE GROUP MIXED_GUIDE SERVER SERVER_GUIDE LOCAL UPLOAD FROZEN copy adopt upload",
        """\
from partwise import ALL, EVERYONE, FROZEN, GROUP, GUIDE, LOCAL, MIXED_GUIDE, SERVER, SERVER_GUIDE, UPLOAD
GUIDE, GUIDE.copy, GUIDE.adopt, GUIDE.upload
""",
    ),
    Section(
        "Move",
        Move,
        "",
        "parts loss gradient update lr momentum weight_decay clip repeat batches after decay",
        """\
from partwise import Move, Phase, Relay, Stage, WithinGroups, option, train
move = Move("body head", lr={"body": 0.001}, repeat=2)
move.loss, move.lr, move.repeat
""",
    ),
    Section(
        "Phase",
        Phase,
        "",
        "moves epochs steps mode sample_range before after restart_optimizer",
        """\
both = Phase(Move("head"), Move("body", lr=0.001), steps=3)
[move.parts for move in both.moves], both.epochs, both.steps
Phase(Move("head"), epochs=1, steps=3)
class Alternating(Looking):
    def phases(self):
        return [Phase(Move("head"), epochs=2), both]
alternated = partwise.run(Alternating(rounds=1, batch=2), data=clinics, model=model, engine="loop")
server.samples, seen["updates"].steps  # 2 epochs of 2 mini-batches, and 3 steps
Phase(Move("head"), epochs=lambda times: 5 if times == 0 else 1, sample_range=(0.8, 1.0), mode="eval").sample_range
Phase(Move("head"), sample_range=(0.8, 1.2))
""",
    ),
    Section("train", train, "", "", """train("head") == Phase(Move("head"))\n"""),
    Section(
        "Stage",
        Stage,
        "",
        "phases share rounds cohort fresh snapshot restart_lr report predict",
        """\
stage = Stage(train("head"), {"*": FROZEN, "head": LOCAL}, rounds=5, fresh="head")
stage.rounds, stage.share, stage.report
""",
    ),
    Section(
        "WithinGroups",
        WithinGroups,
        "",
        "groups",
        """\
cohort = WithinGroups(lambda server: [client % 2 for client in range(server.clients)])
cohort.groups(server)
Stage(train(), {"*": GROUP}, rounds=5, cohort=cohort).cohort is cohort
""",
    ),
    Section(
        "Relay", Relay, "", "groups sample", "Relay(cohort.groups).sample, Relay(cohort.groups, 'within').sample\n"
    ),
    Section(
        "option",
        option,
        "",
        "",
        """\
class Pulled(Method):
    pulled: bool = option(True, "Pull towards the received model.")
    pull: float = option(1.0, "Weight of the pull.", minimum=0, when="pulled")
    layers: tuple[int, ...] = option((1, 2), "Which layers.", minimum=1)
Pulled(pull=2).pull, Pulled(layers="3,4").layers
Pulled(pull=-1)
Pulled(pulled=False, pull=2)
""",
    ),
    Section(
        "EVERYONE",
        None,
        "",
        "EVERYONE",
        """\
class Counting(Looking):
    def begin(self, server, run):
        seen["asked"], seen["told"] = run("report", EVERYONE), run("describe", EVERYONE)
    def describe(self, b):
        return {"largest": b.x.max(0).values}  # of all samples of a client
counted = partwise.run(Counting(rounds=1), data=clinics, model=model, engine="loop")
seen["asked"].clients, seen["asked"].extras["means"].counts
seen["told"].extras["largest"].shape
""",
    ),
]
CALLS = """\
## What a program calls

Functions, and what they return or take. The guides show them at work: [comparing](comparing.md), [your own data and
model](your-own-data-and-model.md), [observing a run](observing-a-run.md), [taking models away](models.md).
"""

# By how it is called here: a public name, and the members that are for programs
CALLED = {
    "run": ("run", ""),
    "result": ("Result", "models metrics summary clients federation ledger worse_off to_pandas plot"),
    "PersonalModel": ("PersonalModel", ""),
    "compare": ("compare", ""),
    "comparison": ("Comparison", "standings to_pandas plot"),
    "load_model": ("load_model", ""),
    "model": ("ServedModel", "manifest predict predict_proba"),
    "join": ("join", ""),
    "observer": ("Observer", "begin round end"),
    "TensorBoard": ("TensorBoard", ""),
    "from_arrays": ("from_arrays", ""),
    "from_dataset": ("from_dataset", ""),
    "from_clients": ("from_clients", ""),
    "load": ("load", ""),
    "partition": ("partition", ""),
    "source": ("Source", "x y train centre feature_names"),
    "federation": ("Federation", "global_test names class_counts"),
    "column": ("Column", "code"),
    "ConfigError": ("ConfigError", ""),
    "DataError": ("DataError", ""),
    "Diverged": ("Diverged", ""),
    "PartwiseError": ("PartwiseError", ""),
}
# How what has no name of its own is written.
WRITTEN = {
    "__call__": "{}(x)",
    "__getattr__": "{}.body(x)",
    "__getitem__": '{}["head"]',
    "__setitem__": '{}["head"] = tensors',
    "__contains__": '"c" in {}',
}


def page() -> str:
    """The whole page."""
    names: dict[str, Any] = {"__name__": "looking"}
    exec(SCENE, names)
    pieces = [OPENING, f"```python\n{SCENE}```\n"]
    for section in SECTIONS:
        entries = [filled(f"- {entry(section, name)}") for name in section.members.split()]
        pieces += shown(section, "###", filled(section.opening), "".join(entries), names)
    pieces.append(SAYS)
    for section in SAID:
        entries = [filled(f"- {saying(section, name)}") for name in section.members.split()]
        opening = paragraphs(section.kind) if section.kind and not section.opening else filled(section.opening)
        pieces += shown(section, "###", opening, "".join(entries), names)
    pieces.append(CALLS)
    for called, (name, members) in CALLED.items():
        section = Section(called, getattr(partwise, name), "", members, "")
        entries = "".join(filled(f"- {entry(section, member)}") for member in members.split())
        pieces += [f"### `{name}`\n", paragraphs(section.kind), *([entries] if entries else [])]
    return "\n".join(pieces)


def shown(section: Section, level: str, opening: str, entries: str, names: dict[str, Any]) -> list[str]:
    """The pieces of a section, without those that are empty."""
    example = f"```python\n{carried_out(section.example, names)}```\n"
    return [piece for piece in (f"{level} `{section.name}`\n", opening, entries, example) if piece.strip()]


def paragraphs(kind: Any) -> str:
    """What the docstring of a class or function says; before it, how a function is called."""
    called = [filled(f"`{kind.__name__}{unannotated(kind)}`")] if inspect.isfunction(kind) else []
    said = [
        f"```text\n{each}\n```\n" if "\n  " in each else filled(" ".join(each.split()))  # indented: a list of its own
        for each in inspect.getdoc(kind).split("\n\n")
    ]
    return "\n".join([*called, *said])


def unannotated(function: Callable) -> inspect.Signature:
    """A signature without types."""
    signature = inspect.signature(function)
    plain = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    return signature.replace(parameters=plain, return_annotation=signature.empty)


def saying(section: Section, name: str) -> str:
    """The line of a field, as it is handed in with its default, or of a constant."""
    constant = re.search(rf"^{name} = .+?  # (.+)$", inspect.getsource(source), re.MULTILINE)
    if constant:
        return f"`{name}`: {constant[1]}"
    kind, comment = attribute(section.kind, name)
    return f"`{unannotated(section.kind).parameters[name]}` ({kind}): {comment}"


def filled(text: str) -> str:
    """A paragraph, or an entry of a list, in lines that fit."""
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) + "\n"


def entry(section: Section, name: str) -> str:
    """The line of a member: how it is written, its type, and what its source says of it."""
    member = inspect.getattr_static(section.kind, name, None)
    function = member.__func__ if isinstance(member, classmethod) else member
    if inspect.isfunction(function):
        signature = inspect.signature(function)
        taken = [str(each.replace(annotation=each.empty)) for each in signature.parameters.values()][1:]
        written = WRITTEN.get(name, f"{{}}.{name}({', '.join(taken)})").format(section.name)
        kind = plain(signature.return_annotation)
    elif isinstance(member, property | cached_property):
        function = member.fget if isinstance(member, property) else member.func
        written, kind = f"{section.name}.{name}", plain(inspect.signature(function).return_annotation)
    else:
        kind, comment = attribute(section.kind, name)
        return f"`{section.name}.{name}` ({kind}): {comment}"
    doc = inspect.getdoc(function).split("\n\n")[0].replace("\n", " ")
    returns = "" if name in ("__getattr__", "__setitem__") or kind == "None" else f" ({kind})"
    return f"`{written}`{returns}: {doc}"


def plain(annotation: Any) -> str:
    """A type without the modules that it comes from."""
    name = annotation.__name__ if isinstance(annotation, type) and not hasattr(annotation, "__args__") else annotation
    written = {"Tensors": "dict[str, Tensor]", "PerPart": str(source.PerPart), "Grouping": "Callable"}
    written["Epochs"] = "float | Callable | None"
    for short, long in written.items():
        name = str(name).replace(short, long)
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", name)


def attribute(kind: type, name: str) -> tuple[str, str]:
    """The type of an attribute and the comment beside it, or above it, in the source of its class."""
    lines = [line.strip() for line in inspect.getsource(kind).splitlines()]
    for before, line in zip(["", *lines], lines, strict=False):
        code, _, comment = line.partition("  # ")
        found = re.fullmatch(rf"(?:self\.)?{name}: ([^=]+?)(?: = .+)?", code)
        if found and (comment or before.startswith("# ")):
            return plain(found[1]), comment or before.removeprefix("# ")
    raise LookupError(f"{kind.__name__} has no attribute '{name}' with a comment that says what it is")


def carried_out(example: str, names: dict[str, Any]) -> str:
    """The lines of an example as an interpreter shows them, each with what came of it."""
    shown = []
    for statement in ast.parse(example).body:
        first, *others = example.splitlines()[statement.lineno - 1 : statement.end_lineno]
        shown += [f">>> {first}", *(f"... {line}" for line in others)]
        if not isinstance(statement, ast.Expr):
            exec("\n".join([first, *others]), names)
            continue
        try:
            shown.append(repr(eval(first, names)))
        except PartwiseError as error:
            shown.append(f"{type(error).__name__}: {error}")
    return "".join(f"{line}\n" for line in shown)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
