"""Runs made inside one checkout, for benchmarks.same_models: PYTHONPATH=CHECKOUT python -P made_runs.py STEP FOLDER

It stands on what both checkouts have: `partwise.run`, `compare` and `load_model`, observers, and for a federation in
one process the tests' helpers. Every run of a step has a folder of its own in FOLDER; one that fails leaves its
error there.
"""

import importlib
import json
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from torch import no_grad

import partwise
from partwise import Observer, methods

# Files, fields, options and types that have other names in AFTER: {"before": "after"}; `--renamed` uses them here.
RENAMED: dict[str, str] = {"CLOUD": "MIXED_GUIDE", "client_accuracy": "client_scores"}

TEN = {"data": "digits", "clients": 6, "partition": "dir:0.3", "rounds": 4, "lr": 0.02, "momentum": 0.5, "batch": 16}
SMALL = {**TEN, "clients": 4, "partition": "dir:0.5", "rounds": 3, "train_samples": 48, "validation": 0.2}
SAVED = {"threads": 1, "device": "cpu", "save_models": True, "progress": False}
MLP = {"model": "tabular"}  # vector's own choice on a CPU; the others have convolutions
ENGINES: dict[str, dict[str, Any]] = {"loop": {}, "vector": MLP, "workers": {**MLP, "workers": 2}}
OWN: dict[str, dict[str, Any]] = {  # what a method needs in a run as short as this
    "cfl": {"first_split_round": 1, "epsilon_1": 100.0, "epsilon_2": 0.0},
    "dualfed": {"lr": 1e-3, "contrast_weight": 1.0, "temperature": 1.0},
    "fed3p2p": {"rounds_1": 2, "rounds_2": 1, "coordinators_a": 2, "coordinators_b": 2},
    "fedbn": {"batch_norm": True},
    "fedclust": {"clusters": 2},
    "fedetf": {"personal_rounds": 1, "personal_epochs": 1},
    "pacfl": {"clusters": 2},
    "scaffold": {"momentum": 0.0},
}
PAPERS: dict[str, tuple[str, dict[str, Any]]] = {  # longer runs of the papers' methods
    "fed3p2p, loop": ("fed3p2p", {"rounds_1": 2, "rounds_2": 2, "coordinators_a": 2, "coordinators_b": 2}),
    "fedtc, loop": ("fedtc", {"participation": 0.5}),
    "anti, loop": ("anti", {"moment": "adapted"}),
    "dualfed, vector": ("dualfed", {**MLP, "temperature": 1.0}),
    "fedfcd, vector": ("fedfcd", {}),
    "vanilla, vector": ("vanilla", {**MLP, "host": "fedavg"}),
    "fedtc, workers": ("fedtc", {"workers": 2}),
    "fedfcd, workers": ("fedfcd", {"workers": 2, "optimizer": "adamw", "lr": 0.001, "momentum": 0.0}),
}
SEEDS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "fedavg and fedtc, two seeds": (["fedavg", "fedtc"], {}),
    "anti and dualfed, two seeds": (["anti", "dualfed"], {**MLP, "temperature": 1.0}),
}
EDGES: dict[str, dict[str, Any]] = {  # what stands around a round: failures, filters, optimisers, choices, newcomers
    "failures": {"client_dropout": 0.4, "stragglers": 0.3, "robust": "median", "outliers": "clip"},
    "noise": {"upload_clip": 1.0, "upload_noise": 0.1, "histograms": "presence"},
    "fewer bits": {"upload_top": 0.5, "upload_bits": 8},
    "optimisers": {"server_optimizer": "adam", "persist_optimizer_state": True, "optimizer": "adamw", "momentum": 0.0},
    "stopping": {"patience": 1, "eval_every": 2, "eval_at": (1,), "rounds": 6},
    "newcomers": {"hold_out": 0.25, "join_rounds": 1, "moment": "adapted", "finetune_epochs": 1},
}
SILOS: dict[str, dict[str, Any]] = {"fedper": {}, "scaffold": {"momentum": 0.0}, "fedavg": {}}
ERROR = "error.txt"
HOSTED = [[0, 2], [1], [3]]  # the clients of three silos
PLACES = {  # where it stood and where it stands
    "federated": ("partwise.federation.launch", "partwise.federation.protocol.launch"),
    "Node": ("partwise.federation.node", "partwise.federation.protocol.node"),
    "make_config": ("partwise.runs.config",),
    "RunFolder": ("partwise.runs.folder",),
    "InProcess": ("tests.federation.helpers", "tests.support.nodes"),
    "members": ("tests.federation.helpers", "tests.support.nodes"),
    "silos": ("tests.federation.helpers", "tests.support.nodes"),
    "awkward_federation": ("tests.helpers", "tests.support.runs"),
}
Runs = Iterator[tuple[str, Callable[[Path], Any]]]  # names, and what makes a run in a folder


class Killed(BaseException):
    """Stands for the end of a process: nobody handles it."""


class KilledIn(Observer):
    """Ends the process in a round, before the checkpoint of it."""

    def __init__(self, number: int):
        self.left = number

    def round(self, seen: Any) -> None:
        self.left -= 1
        if not self.left:
            raise Killed


def found(name: str) -> Any:
    """Return a class or function of the checkout, wherever it stands there."""
    for place in PLACES[name]:
        try:
            return getattr(importlib.import_module(place), name)
        except (ImportError, AttributeError):
            pass
    raise ImportError(f"{name} is in none of {PLACES[name]}")


def named(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings by the names that they have in this checkout."""
    return {RENAMED.get(name, name) if "--renamed" in sys.argv else name: value for name, value in settings.items()}


def run(folder: Path, method: str, **settings: Any) -> None:
    partwise.run(method, out=folder, **named({**SAVED, **settings}))


def compare(folder: Path, several: list[str], **settings: Any) -> None:
    (folder / "leaderboard.csv").unlink(missing_ok=True)  # of the runs that lie there a new one is made
    partwise.compare(several, seeds=(0, 1), out=folder, **named({**TEN, **SAVED, "engine": "vector", **settings}))


def methods_in(engine: str) -> Runs:
    """Yield a small run of every method that this checkout lists, and of the papers' methods a longer one."""
    for method in methods.names():
        settings = {**SMALL, **ENGINES[engine], **OWN.get(method, {}), "engine": engine, "checkpoint_every": 0.0}
        yield f"{method}, {engine}", partial(run, method=method, **settings)
    for name, (method, own) in PAPERS.items():
        if name.endswith(engine):
            settings = {**TEN, "engine": engine, **own}
            yield f"{name}, longer", partial(run, method=method, **settings)


def edges() -> Runs:
    """Yield runs with what stands around a round, and several seeds side by side."""
    for name, own in EDGES.items():
        for method, engine in (("fedavg", "loop"), ("fedper", "vector")):
            settings = {**SMALL, **ENGINES[engine], "engine": engine, "checkpoint_every": 0.0, **own}
            yield f"{name}, {method}", partial(run, method=method, **settings)
    for name, (several, own) in SEEDS.items():
        yield name, partial(compare, several=several, **own)


def interrupted(killed: int | None, resume: bool) -> Runs:
    """Yield a run of every method in the vector engine that ends in a round, or goes on with what lies there.

    Beside them stands a run that finishes, and is continued with more rounds than it was to have.
    """
    for method in methods.names():
        settings = {**SMALL, **MLP, **OWN.get(method, {}), "engine": "vector", "checkpoint_every": 0.0}
        settings |= {"observers": [KilledIn(killed)] if killed else [], "resume": resume}
        yield f"{method}, goes on", partial(run, method=method, **settings)
    rounds = [3] if killed else [5] if resume else [3, 5]
    yield "fedavg, more rounds", partial(one_after_another, rounds=rounds)


def one_after_another(folder: Path, rounds: list[int]) -> None:
    """Run with a number of rounds, and go on with more."""
    for number in rounds:
        run(folder, "fedavg", resume=True, **{**SMALL, "engine": "loop", "checkpoint_every": 0.0, "rounds": number})


def over_silos(killed: int | None) -> Runs:
    """Yield runs over silos of this process, which end in a round, or go on with what lies there."""
    for method, own in SILOS.items():

        def over(folder: Path, method: str = method, own: dict[str, Any] = own) -> None:
            settings = {**MLP, "rounds": 4, "lr": 0.05, "batch": 4, "dtype": "float64", "threads": 1}
            settings |= {"checkpoint_every": 0.0, "save_models": False, **own}
            config = found("make_config")(method, named(settings))
            silos = found("silos")(found("awkward_federation")((7, 6, 9, 11)), folder / "silos", HOSTED)
            link = found("InProcess")({name: found("Node")(silo) for name, silo in silos.items()})
            kept = found("RunFolder")(folder / "run", config, resume=True)
            simulation = found("federated")(config, found("members")(link, config), before=kept.made_with)
            kept.record(simulation, observers=[KilledIn(killed)] if killed else [])

        yield f"{method}, silos", over


def read() -> Runs:
    """Yield what reads the finished runs of a folder: each client's predictions, and a comparison's leaderboard."""
    from partwise.data import load

    for method in methods.names():

        def predicted(run: Path) -> None:
            models = {client: partwise.load_model(run, client=client) for client in (0, 3)}
            samples = load("digits").x[:20]
            with no_grad():
                said = {client: model(samples).tolist() for client, model in models.items()}
            (run / "predicted.json").write_text(json.dumps(said))

        yield f"{method}, loop", predicted
    for name, (several, own) in SEEDS.items():
        yield name, partial(compare, several=several, resume=True, **own)


STEPS: dict[str, Callable[[], Runs]] = {
    "loop": lambda: methods_in("loop"),
    "vector": lambda: methods_in("vector"),
    "workers": lambda: methods_in("workers"),
    "edges": edges,
    "whole": lambda: interrupted(None, resume=False),
    "killed": lambda: interrupted(2, resume=False),
    "resumed": lambda: interrupted(None, resume=True),
    "silos": lambda: over_silos(None),
    "silos killed": lambda: over_silos(3),
    "read": read,
}


def main() -> None:
    step, folder = sys.argv[1], Path(sys.argv[2])
    for name, make in STEPS[step]():
        try:
            make(folder / name)
        except Killed:
            pass
        except Exception:
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / ERROR).write_text(traceback.format_exc())


if __name__ == "__main__":
    main()
