"""The law of the engines: they agree in float64, at settings where every method is stable."""

from pathlib import Path
from typing import Any

import pytest

from partwise import methods
from partwise.engines import tracing
from tests.support.runs import awkward_federation, network, simulate
from tests.support.states import apart, state

SETTINGS = {"participation": 0.5, "momentum": 0.5, "weight_decay": 1e-3, "lr_decay": 0.9, "epochs": 2, "lr": 0.02}
SETTINGS |= {"augment": "flip,rotate:30,crop:2", "finetune_epochs": 1, "rounds": 3}
# Where a method is stable by itself only at other settings than these.
CALMER = {"dualfed": {"lr": 1e-3, "contrast_weight": 1.0, "temperature": 1.0}}
# And what makes a run shorter without leaving anything out.
CALMER |= {"fed3p2p": {"rounds_1": 2, "rounds_2": 1, "coordinators_a": 3, "coordinators_b": 3}}
CALMER |= {"fedetf": {"personal_rounds": 1, "personal_epochs": 1}}
# And what lets a short run do all that a long one does.
CALMER |= {"cfl": {"first_split_round": 1, "epsilon_1": 100.0, "epsilon_2": 0.0}}
CALMER |= {"scaffold": {"momentum": 0.0}}  # which takes plain SGD alone
CALMEST = {("dualfed", "cnn+bn"): {"lr": 1e-4}}
NETWORKS = ["mlp", "cnn", "cnn+bn"]
DEEPER = {"fed3p2p", "vanilla", "anti"}  # they need a body of several layers
CASES = [
    (method, "mlp of two layers" if net == "mlp" and method in DEEPER else net)
    for method in methods.names()
    for net in NETWORKS
    if method != "fedbn" or net == "cnn+bn"
]
# They need one class a sample, in their loss or in what they send.
OF_CLASSES = ["dualfed", "fedetf", "fedfcd", "fedgh", "fedpac", "fedproto", "fedrod", "gpfl", "pacfl", "spherefed"]
NETWORKS_OF = {"numbers": ("mlp of two layers", "cnn+bn"), "places": ("places", "places+bn")}  # the second for FedBN
NETWORKS_OF["labels"] = NETWORKS_OF["numbers"]
TASK_CASES = [  # every method that takes any task
    (task, method, NETWORKS_OF[task][method == "fedbn"])
    for task in ("numbers", "labels", "places")
    for method in methods.names()
    if method not in OF_CLASSES
]
CLUSTERED = str(Path(__file__).parents[1] / "methods" / "clustered.py")
BLOCKS: dict[str, Any] = {"engine": "vector", "block": 3}
TRACED: dict[str, Any] = {"engine": "vector", "filler": 40, "traced": True}


def stable(method, net, task="classes"):
    """Settings at which a method on a network does not blow up rounding errors."""
    still = {"augment": None} if task == "places" else {}  # else pixels move without their classes
    return {**SETTINGS, **CALMER.get(method, {}), **CALMEST.get((method, net), {}), **still}


def run_of(
    method,
    net,
    factor=1.0,
    engine="loop",
    block=None,
    filler=None,
    traced=False,
    rounds=None,
    task="classes",
    **settings,
):
    """What a run at stable settings leaves, by name; clients are adapted in every round."""
    rounds = rounds or (3 if "mlp" in net or method in DEEPER else 2)  # a stage for each of three layers
    options = {**stable(method, net, task), "rounds": rounds, "eval_at": tuple(range(1, rounds + 1)), **settings}
    with pytest.MonkeyPatch.context() as patch:
        if traced:
            patch.setattr(tracing, "TRACING_PAYS", 0)
        parts, federation = network(net, factor, dropout=0.25, task=task), awkward_federation(validated=2, task=task)
        run = simulate(method, parts, federation, engine, block, filler, **options)
    assert run.notes[0] == f"engine: {engine} on cpu"
    return state(run)


def assert_engines_agree(method, net, vector=BLOCKS, make=run_of, **settings):
    """The law of the engines, at settings where the problem itself is stable."""
    loop = make(method, net, **settings)
    if not apart(loop, make(method, net, **vector, **settings)) < 1e-10:
        nudged = make(method, net, factor=1 + 3e-16, **settings)
        assert apart(loop, nudged) < 1e-11, "the run itself is not stable at these settings"
        pytest.fail("vector is not loop")
