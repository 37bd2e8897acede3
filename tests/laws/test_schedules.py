"""Learning-rate schedules: torch's own numbers, and the same in every engine, on nodes, and after a checkpoint."""

import math

import pytest
import torch
from torch.optim import lr_scheduler

from partwise import ALL, Method, Stage, train
from partwise.engines.workers import Workers
from partwise.errors import ConfigError
from partwise.runs.config import make_config
from partwise.runs.folder import RunFolder
from partwise.runs.joining import Joining
from partwise.runs.prepare import prepare
from tests.support.engines import InThisProcess
from tests.support.interrupted import assert_resumes
from tests.support.interrupted import begin as begin_in_folder
from tests.support.node_parity import HOSTED, SETTINGS, distance
from tests.support.nodes import in_process
from tests.support.parity import TRACED, run_of
from tests.support.runs import awkward_federation, network, simulate
from tests.support.seeds import concatenated, prepared, separately
from tests.support.states import apart

STEP = {"lr_schedule": "step", "lr_step": 2, "lr_factor": 0.5, "lr_decay": None}
COSINE = {"lr_schedule": "cosine", "lr_warmup": 1, "lr_decay": None}
WARM = {"lr_warmup": 2, "lr_decay": 0.5}
SCHEDULES = pytest.mark.parametrize("schedule", [STEP, COSINE, WARM], ids=["step", "cosine", "warm-up"])


def given(schedule):
    """The schedule's settings; None is the default."""
    return {name: value for name, value in schedule.items() if value is not None}


def rates(method="fedavg", rounds=8, **settings):
    """The factor that clients are sent in each round."""
    config = make_config(method, {"rounds": rounds, "model": "tabular", "engine": "loop", **settings})
    server = prepare(config, awkward_federation()).server
    result = []
    for server.round in range(rounds):
        server.plan = next(plan for plan in reversed(server.plans) if plan.first_round <= server.round)
        result.append(server.request("train", [1]).rate)
    return result


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({}, [1] * 8),
        ({"lr_decay": 0.5}, [1, 0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125]),
        ({"lr_decay": 0.5, "lr_warmup": 4}, [0.2, 0.4, 0.6, 0.8, 1, 0.5, 0.25, 0.125]),
        ({"lr_schedule": "step", "lr_step": 3}, [1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01]),
        ({"lr_schedule": "step", "lr_step": 3, "lr_factor": 0.5, "lr_warmup": 1}, [0.5, 1, 1, 1, 0.5, 0.5, 0.5, 0.25]),
        ({"lr_schedule": "cosine", "rounds": 4}, [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]),
        ({"lr_schedule": "cosine", "rounds": 5, "lr_warmup": 3}, [0.25, 0.5, 0.75, 1, 0.5]),
    ],
)
def test_rates_of_rounds(settings, expected):
    assert rates(**settings) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    "settings, scheduler",
    [
        ({"lr_decay": 0.9}, lambda sgd: lr_scheduler.ExponentialLR(sgd, 0.9)),
        ({"lr_schedule": "step", "lr_step": 7, "lr_factor": 0.3}, lambda sgd: lr_scheduler.StepLR(sgd, 7, 0.3)),
        ({"lr_schedule": "cosine"}, lambda sgd: lr_scheduler.CosineAnnealingLR(sgd, 20)),
    ],
)
def test_they_are_torchs(settings, scheduler):
    sgd = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    torchs, expected = scheduler(sgd), []
    for _ in range(20):
        expected.append(torchs.get_last_lr()[0])
        sgd.step()
        torchs.step()
    assert rates(rounds=20, **settings) == pytest.approx(expected, abs=1e-13)


def test_a_cosine_begins_at_1_and_ends_near_0():
    factors = rates(rounds=100, lr_schedule="cosine")
    assert factors[0] == 1 and 0 < factors[-1] < 0.001 and factors == sorted(factors, reverse=True)


class Restart(Method):
    def stages(self):
        yield Stage(train(), {"*": ALL}, rounds=2)
        yield Stage(train(), {"*": ALL}, rounds=2, restart_lr=True)
        yield Stage(train(), {"*": ALL}, rounds=2)


def test_a_schedule_restarts_over_the_rounds_until_the_next_restart():
    assert rates(Restart, rounds=6, lr_schedule="cosine") == pytest.approx(
        [1, 0.5, 1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]
    )


@SCHEDULES
def test_the_engines_agree(schedule, monkeypatch):
    monkeypatch.setattr(Workers, "executor", InThisProcess)
    settings = {"lr_decay": 1.0, **given(schedule), "rounds": 3}
    loop = run_of("fedgh", "mlp", **settings)  # whose server follows the schedule too
    assert apart(loop, run_of("fedgh", "mlp", **settings, **TRACED)) < 1e-10
    assert apart(loop, run_of("fedgh", "mlp", engine="workers", **settings)) == 0
    assert apart(loop, run_of("fedgh", "mlp", **{**settings, "lr_schedule": "constant", **PLAIN})) > 1e-4


PLAIN = {"lr_decay": 1.0, "lr_warmup": 0, "lr_step": 30, "lr_factor": 0.1}


@SCHEDULES
def test_a_resumed_run_is_the_uninterrupted_one(schedule, tmp_path):
    assert_resumes(tmp_path, "fedper", **schedule)


@SCHEDULES
def test_nodes_equal_the_simulation(schedule, tmp_path):
    federation = awkward_federation()
    config = make_config("fedper", {**SETTINGS, **given(schedule)})
    here = prepare(config, federation).run()
    assert distance(here, in_process(config, federation, tmp_path, HOSTED).run()) < 1e-10


def test_seeds_side_by_side_equal_separate_runs():
    runs = [each(prepared("fedper", **given(COSINE), lr_decay=1.0)) for each in (separately, concatenated)]
    for one, other in zip(*runs, strict=True):
        assert apart_of(one, other) < 1e-10


def apart_of(one, other):
    return max(
        float((copies.values - other.server.copies[name].values).abs().max())
        for name, copies in one.server.copies.items()
    )


def test_fine_tuning_has_the_rate_of_the_last_round():
    server = simulate("fedavg", network("mlp"), rounds=4, lr_schedule="cosine").server
    assert server.request("finetune", [1]).rate == pytest.approx((1 - math.sqrt(0.5)) / 2)


def test_newcomers_begin_the_schedule_again(monkeypatch):
    """After a cosine the rate is nearly 0: they would learn nothing."""
    seen, rate = [], Joining.rate
    monkeypatch.setattr(Joining, "rate", lambda *own: seen.append(rate(*own)) or seen[-1])
    settings = {"rounds": 3, "hold_out": 0.4, "join_rounds": 2}
    simulate("fedper", network("mlp"), lr_schedule="cosine", **settings)
    simulate("fedper", network("mlp"), lr_decay=0.5, **settings)
    assert seen == pytest.approx([1, 0.5, 0.125, 0.125])


def test_a_cosine_cannot_be_made_longer(tmp_path):
    begin_in_folder(tmp_path, "fedbabu", rounds=2, **COSINE)
    with pytest.raises(ConfigError, match="other settings: rounds = 2 there, rounds = 3 here"):
        begin_in_folder(tmp_path, "fedbabu", rounds=3, **COSINE)
    assert RunFolder(tmp_path, begin_in_folder(tmp_path, "fedbabu", rounds=2, **COSINE).config, resume=True).complete


@pytest.mark.parametrize(
    "settings, refusal",
    [
        ({"lr_schedule": "cosine", "lr_decay": 0.9}, "lr_decay = 0.9 has no effect with lr_schedule = cosine"),
        ({"lr_step": 3}, "lr_step = 3 has no effect with lr_schedule = constant"),
        ({"lr_schedule": "step"}, "lr_step = 30 is never reached: the schedule has 8 rounds"),
        ({"lr_warmup": 8}, "lr_warmup = 8 leaves no round after it: the schedule has 8"),
    ],
)
def test_what_has_no_effect_is_refused(settings, refusal):
    with pytest.raises(ConfigError, match=refusal):
        rates(**settings)
