"""Facts about methods, as text and for programs."""

import ast
import dataclasses
import inspect
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import click

from partwise import method as shares
from partwise.method import Method, Share
from partwise.methods import names, source
from partwise.options import allowed, as_written, condition
from partwise.published import OTHERS, summaries
from partwise.training import Training

OLD_SHARES = {"CLOUD": "MIXED_GUIDE"}  # names in the folders of older runs, and what they are now
COPIES = {
    "all": "the mean of all participants",
    "group": "the mean of the participants of a client's group",
    "mix": "a mix made for each client",
    "server": "trained on the server",
}


@dataclass(frozen=True)
class OptionFacts:
    """An option of a method."""

    name: str
    default: object
    help: str
    allowed: str
    when: object  # a condition under which it has an effect


@dataclass(frozen=True)
class MethodFacts:
    """A method and its own options."""

    name: str
    summary: str
    options: Sequence[OptionFacts]


def methods_overview() -> str:
    """Return a line for every installed method, from its file: none is imported."""
    formatter = click.HelpFormatter(max_width=120)
    formatter.write_dl([(name, headline(name)) for name in names()])
    if others := summaries("method", names()):
        with formatter.section(OTHERS):
            formatter.write_dl(others)
    return formatter.getvalue().rstrip()


def method_page(name: str, method: type[Method]) -> str:
    """Return everything about one method."""
    formatter = click.HelpFormatter(max_width=120)
    formatter.write("\n\n".join(documentation(method)) + "\n")
    stages = list(method().stages())
    for number, stage in enumerate(stages, start=1):
        title = f"stage {number}, {stage.rounds} rounds: " if len(stages) > 1 else ""
        with formatter.section(f"{title}who shares each part".capitalize()):
            width = max(map(len, stage.share))
            formatter.write_dl(
                [(f"{part:<{width}}  {share}", explain_share(share)) for part, share in stage.share.items()]
            )
    with formatter.section(f"Own options and defaults of {name}"):
        own = [(f"--{spec.name.replace('_', '-')}", option_help(spec)) for spec in own_fields(method)]
        formatter.write_dl(own or [("none", "")])
    return formatter.getvalue().rstrip()


def method_facts(name: str, method: type[Method]) -> MethodFacts:
    """Return the facts that `partwise methods --json` prints."""
    options = [
        OptionFacts(spec.name, spec.default, spec.metadata.get("help", ""), allowed(spec), spec.metadata.get("when"))
        for spec in own_fields(method)
    ]
    return MethodFacts(name, summary(method), options)


def documentation(method: type[Method]) -> list[str]:
    """Return the docstrings of the method's file and class, without one that `dataclass` wrote."""
    module = sys.modules.get(method.__module__)
    texts = [inspect.getdoc(module) if module else None, inspect.getdoc(method)]
    return [text for text in texts if text and not text.startswith(f"{method.__name__}(")]


def headline(name: str) -> str:
    """Return the first line of a method's file, its summary."""
    return (ast.get_docstring(ast.parse(source(name))) or "").partition("\n")[0]


def summary(method: type[Method]) -> str:
    """Return the first line of a method's documentation."""
    return next((text.splitlines()[0] for text in documentation(method)), "")


def own_fields(method: type[Method]) -> list[dataclasses.Field]:
    """Return the options that only this method has, and those to which it gives another default."""
    shared = {spec.name: spec.default for spec in dataclasses.fields(Training)}
    fields = dataclasses.fields(method)
    return [spec for spec in fields if spec.name not in shared or spec.default != shared[spec.name]]


def option_help(spec: dataclasses.Field) -> str:
    """Return a field's sentence, when it has an effect, what it takes and its default."""
    takes, when = allowed(spec).removesuffix(" (or unset)") + "; ", condition(spec)
    if takes in ("a text; ", "true or false; "):  # says nothing beside the option itself
        takes = ""
    default = as_written(spec.default) if spec.default is None or isinstance(spec.default, bool) else spec.default
    return f"{spec.metadata.get('help', '')}{f' ({when})' if when else ''} [{takes}default: {default}]".lstrip()


def share_named(name: str) -> Share | None:
    """Return the share of a name in a run's folder, an older name too; None where it is no share."""
    share = getattr(shares, OLD_SHARES.get(name, name), None)
    return share if isinstance(share, Share) else None


def share_kind(share: str) -> str:
    """Return which look a share has, by its name: that of its copy, `guide`, `own`, `frozen`, or `several`."""
    known = share_named(share)
    if known is None:
        return "several"
    if known.copy is None:
        return "frozen" if known.adopt else "own"
    return known.copy if known.adopt or known.copy == "mix" else "guide"


def share_words(share: str) -> str:
    """Return a share in words, by its name."""
    known = share_named(share)
    return "its tensors differ: running values stay at the client" if known is None else explain_share(known)


def explain_share(share: Share) -> str:
    """Return a share in words."""
    if share.copy is None:
        own = "each client's own, sent to be looked at" if share.upload else "each client's own, never sent"
        return "common to all, never trained or sent" if share.adopt else own
    return COPIES[share.copy] + ("" if share.adopt else "; the client keeps its own beside it")
