"""Early stopping: the run ends where validation says, with the models of its best round."""

from functools import cache

import pytest
import torch

from partwise.errors import ConfigError, DataError
from partwise.runs.result import Result
from tests.support.runs import awkward_federation, network, simulate
from tests.support.states import distance

SETTINGS = {"participation": 0.5, "lr": 0.3, "momentum": 0.5, "lr_decay": 0.9}


@cache  # the same runs are looked at for several reasons
def watched(method, patience, rounds=12, **settings):
    federation = awkward_federation(tested=4, validated=4)
    return simulate(method, network("mlp"), federation, rounds=rounds, patience=patience, **{**SETTINGS, **settings})


@pytest.mark.parametrize("method", ["fedbabu", "fedavg", "fedper"])
def test_a_run_stops_after_its_patience_and_goes_back_to_its_best_round(method):
    free, stopped = watched(method, None), watched(method, 2)
    values = [row["validation"]["acc_pooled"] for row in free.history.rows]
    best = 0
    for number, value in enumerate(values):
        if value > values[best]:
            best = number
        if number - best == 2:
            break
    assert number < 11, "the case must stop early, or it shows nothing"
    assert [row["validation"]["acc_pooled"] for row in stopped.history.rows[:-1]] == values[:number]
    assert len(stopped.history.rows) == number + 1
    assert stopped.history.rows[-1]["restored"] == best + 1
    assert stopped.history.rows[-1]["received"] == free.history.rows[best]["received"]


@pytest.mark.parametrize("method", ["fedbabu", "fedper"])
def test_its_models_are_those_of_a_run_that_is_no_longer(method):
    stopped = watched(method, 2)
    best = stopped.history.rows[-1]["restored"]
    short = watched(method, None, rounds=best)
    one, other = (models.some(list(models)) for models in (Result(stopped).models, Result(short).models))
    for client in one:
        theirs = other[client].tensors
        for name, value in one[client].tensors.items():
            assert torch.equal(value, theirs[name]), (client, name)
    assert stopped.history.rows[-1].get("method_adapted") == short.history.rows[-1].get("method_adapted")


def test_patience_that_never_ends_still_goes_back_to_the_best_round():
    stopped = watched("fedavg", 50)
    assert len(stopped.history.rows) == 12
    values = [row["validation"]["acc_pooled"] for row in watched("fedavg", None).history.rows]
    assert stopped.history.rows[-1]["restored"] == values.index(max(values)) + 1


def test_both_engines_stop_alike():
    settings = {"lr": 0.02, "rounds": 8}  # where the run itself is stable
    loop, vector = (watched("fedper", 2, engine=engine, **settings) for engine in ("loop", "vector"))
    assert distance(loop, vector) < 1e-10


def test_patience_without_validation_samples_is_refused():
    with pytest.raises(ConfigError, match="patience needs validation samples"):
        simulate("fedavg", network("mlp"), patience=3)


def test_what_is_adapted_and_the_global_model_go_back_too():
    stopped = watched("fedbabu", 2, eval_at=(1, 12))
    best = stopped.history.rows[-1]["restored"]
    short = watched("fedbabu", None, rounds=best)
    assert stopped.history.rows[-1]["method_adapted"] == short.history.rows[-1]["method_adapted"]
    assert stopped.history.rows[-1]["global"] == short.history.rows[-1]["global"]


def test_patience_needs_a_value_to_watch():
    federation = awkward_federation(sizes=(8, 9), tested=4, validated=1)  # one sample each, of one class
    federation.source.y[torch.cat(federation.validation)] = 0
    with pytest.raises(DataError, match="the metric is undefined on all validation samples"):
        simulate("fedavg", network("mlp"), federation, patience=2, metric="auroc")
