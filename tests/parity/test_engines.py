"""Vector equals loop, in float64 to 1e-10, over everything that a run leaves."""

from functools import lru_cache
from pathlib import Path

import pytest
import torch

from partwise import Federation, methods
from tests.support.parity import BLOCKS, CASES, CLUSTERED, DEEPER, SETTINGS, TRACED, assert_engines_agree, run_of
from tests.support.runs import awkward_federation, network, simulate
from tests.support.states import distance

# The tests of a case follow each other, so that they find the runs that they share.
every_case = pytest.mark.parametrize(("method", "net"), CASES, scope="module")


@lru_cache(maxsize=6)
def shared_run(method, net, **settings):
    """A run that several laws look at, made once."""
    adapted = {"moment": "adapted"} if "mlp" in net or method == "fedbn" else {}  # fine-tuning beside all else
    return run_of(method, net, **adapted, **settings)


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
