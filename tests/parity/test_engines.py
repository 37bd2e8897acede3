"""Vector equals loop, in float64 to 1e-10, over everything that a run leaves."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

from partwise import Federation, methods
from partwise.engines import tracing
from tests.helpers import apart, awkward_federation, distance, network, simulate, state

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
# The tests of a case follow each other, so that they find the runs that they share.
every_case = pytest.mark.parametrize(("method", "net"), CASES, scope="module")
CLUSTERED = str(Path(__file__).parents[1] / "methods" / "clustered.py")
BLOCKS: dict[str, Any] = {"engine": "vector", "block": 3}
TRACED: dict[str, Any] = {"engine": "vector", "filler": 40, "traced": True}


def stable(method, net):
    """Settings at which a method on a network does not blow up rounding errors."""
    return {**SETTINGS, **CALMER.get(method, {}), **CALMEST.get((method, net), {})}


def run_of(method, net, factor=1.0, engine="loop", block=None, filler=None, traced=False, rounds=None, **settings):
    """What a run at stable settings leaves, by name; clients are adapted in every round."""
    rounds = rounds or (3 if "mlp" in net or method in DEEPER else 2)  # a stage for each of three layers
    options = {**stable(method, net), "rounds": rounds, "eval_at": tuple(range(1, rounds + 1)), **settings}
    with pytest.MonkeyPatch.context() as patch:
        if traced:
            patch.setattr(tracing, "TRACING_PAYS", 0)
        parts, federation = network(net, factor, dropout=0.25), awkward_federation(validated=2)
        run = simulate(method, parts, federation, engine, block, filler, **options)
    assert run.notes[0] == f"engine: {engine} on cpu"
    return state(run)


@lru_cache(maxsize=6)
def shared_run(method, net, **settings):
    """A run that several laws look at, made once."""
    adapted = {"moment": "adapted"} if "mlp" in net or method == "fedbn" else {}  # fine-tuning beside all else
    return run_of(method, net, **adapted, **settings)


def assert_engines_agree(method, net, vector=BLOCKS, make=run_of, **settings):
    """The law of the engines, at settings where the problem itself is stable."""
    loop = make(method, net, **settings)
    if not apart(loop, make(method, net, **vector, **settings)) < 1e-10:
        nudged = make(method, net, factor=1 + 3e-16, **settings)
        assert apart(loop, nudged) < 1e-11, "the run itself is not stable at these settings"
        pytest.fail("vector is not loop")


@every_case
def test_vector_equals_loop(method, net):
    assert_engines_agree(method, net, make=shared_run)


@every_case
def test_padded_rows_change_no_bit(method, net):
    first, second = shared_run(method, net, **BLOCKS), shared_run(method, net, **BLOCKS, filler=55)
    assert all(torch.equal(first[name], second[name]) for name in first)


@every_case
def test_evaluating_changes_nothing(method, net):
    often, once = shared_run(method, net), shared_run(method, net, eval_every=3, eval_at=None)
    assert len(often) > len(once)
    for name in once:
        assert torch.equal(often[name], once[name]), name


@pytest.mark.parametrize("method", methods.names())
def test_steps_that_are_traced_equal_loop(method):
    net = "cnn+bn" if method == "fedbn" else "mlp of two layers" if method in DEEPER else "mlp"
    assert_engines_agree(method, net, TRACED)


# A ResNet ends in batch-norm over a handful of numbers: it is stable at small learning rates only.
@pytest.mark.parametrize(("net", "lr"), [("cnn+gn", 0.02), ("resnet", 1e-5)])
@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_vector_equals_loop_with_other_networks(method, net, lr):
    assert_engines_agree(method, net, lr=lr)


@pytest.mark.parametrize(
    ("net", "settings"),
    [
        ("mlp", {"optimizer": "adamw", "lr": 1e-4, "momentum": 0.0}),
        ("cnn+bn", {"optimizer": "adamw", "lr": 1e-4, "momentum": 0.0}),
        ("cnn+bn", {"clip_norm": 0.5}),
        ("cnn+bn", {"bn_buffers": "average"}),
    ],
)
def test_vector_equals_loop_with_other_settings(net, settings):
    assert_engines_agree("fedavg", net, **settings)


def test_persistent_momentum_is_the_same_in_both_engines_and_matters():
    federation = awkward_federation()
    runs = [
        simulate("fedper", network("mlp"), federation, engine, **SETTINGS, persist_optimizer_state=persist)
        for engine, persist in (("loop", True), ("vector", True), ("loop", False))
    ]
    assert distance(runs[0], runs[1]) < 1e-10
    heads = [run.engine.store.own(4, ["head.weight"])["head.weight"] for run in runs]
    assert (heads[0] - heads[2]).abs().max() > 1e-6


def test_parity_notices_a_learning_rate_that_is_off_by_a_thousandth():
    loop = simulate("fedavg", network("mlp"), **SETTINGS)
    vector = simulate("fedavg", network("mlp"), engine="vector", **{**SETTINGS, "lr": SETTINGS["lr"] * 1.001})
    assert distance(loop, vector) > 1e-6


def test_augmentation_is_there_and_is_each_clients_own():
    plain, augmented = (simulate("local", network("mlp"), augment=text, rounds=2) for text in (None, "flip,rotate:30"))
    assert distance(plain, augmented) > 1e-3
    federation = awkward_federation()
    alone = Federation(federation.source, [federation.train[4]], [federation.test[4]], federation.test[4])
    # Client 0 of a federation of one and client 0 of eight: who else runs changes nothing.
    first = Federation(
        federation.source,
        [federation.train[4], *federation.train[:4]],
        federation.test[4:] + federation.test[:1],
        torch.cat(federation.test),
    )
    heads = [
        simulate("local", network("mlp"), each, engine, augment="flip,rotate:30,crop:2", rounds=2).engine.store.own(
            0, ["head.weight"]
        )
        for each, engine in ((alone, "loop"), (first, "vector"))
    ]
    assert (heads[0]["head.weight"] - heads[1]["head.weight"]).abs().max() < 1e-12


def test_parity_notices_an_adaptation_that_is_off_by_a_thousandth():
    runs = [
        simulate("fedbabu", network("mlp"), engine=engine, **SETTINGS, finetune_lr=rate)
        for engine, rate in (("loop", 0.02), ("vector", 0.02002))
    ]
    assert distance(*runs) > 1e-6


@pytest.mark.parametrize("net", ["mlp of two layers", "cnn+bn"])
def test_a_users_method_in_one_file_passes_the_parity_test(net):
    assert_engines_agree(CLUSTERED, net, rounds=3, warmup=1)


def test_a_users_method_is_a_short_file_that_runs_by_its_path(capsys):
    assert len(Path(CLUSTERED).read_text().splitlines()) < 40
    from partwise.cli import main  # here, because the GPU tests import this file and need neither click nor rich

    assert (
        main(["run", CLUSTERED, "--data", "made", "--clients", "6", "--rounds", "4", "--warmup", "1", "--quiet"]) == 0
    )
    assert "clustered: made, 6 clients" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["fedper", "fedrep", "fedbabu"])
def test_a_simple_method_is_a_short_file(name):
    assert len((Path(methods.__file__).parent / f"{name}.py").read_text().splitlines()) < 40
