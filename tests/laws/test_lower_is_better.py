"""Where lower is better: rounds, early stopping, the kept checkpoint, worse-off and ranks follow the metric."""

import pytest

from partwise.records.metrics import Score
from partwise.records.rounds import MomentScores, RoundRecord
from partwise.records.summaries import Headline, RunSummary
from partwise.runs.checkpoints import CHECKPOINTS_KEPT, Checkpoints
from partwise.runs.metrics import History, Scores, worse_off
from partwise.runs.pace import Pace
from partwise.runs.result import Result
from partwise.runs.stopping import Stopping
from partwise.studies.leaderboard import standings
from tests.support.runs import awkward_federation, network, simulate

ERRORS = [5.0, 3.0, 4.0, 2.0, 6.0]  # of five rounds


def number(rmse, r2=None):
    return Score(4, rmse=rmse, r2=r2, task="numbers")


def history(metric="rmse"):
    """Five rounds of two clients: RMSE as above and above by 1; R2 is higher where RMSE is lower."""
    found = History(metric)
    for at, error in enumerate(ERRORS):
        pooled = number(error + 0.5, -error)
        each = {0: number(error), 1: number(error + 1)}
        moment, beside = found.note("received", Scores(each, pooled)), MomentScores(2, pooled)
        found.rounds.append(RoundRecord(at + 1, moments={"received": moment}, validation={"received": beside}))
    return found


@pytest.mark.parametrize("metric", ["rmse", "r2"])
def test_the_best_round_has_the_lowest_error(metric):
    found = history(metric)
    headline = found.headlines()["received"]
    assert (headline.best.round, headline.best.value("rmse"), headline.best_mean.mean) == (4, 2.5, 2.5)
    assert headline.last.value("rmse") == 6.5
    assert headline.best_per_client_mean == (2 + 3) / 2  # each client's own best round
    assert found.chosen().round == 4
    assert found.best == {"received": {0: 2, 1: 3}}


def test_a_client_whose_error_is_unknown_has_no_best_one():
    found = History("rmse")
    found.note("received", Scores({0: number(None), 1: number(4.0)}, number(4.0)))
    assert found.best == {"received": {1: 4.0}}
    found.note("received", Scores({0: number(3.0), 1: number(None)}, number(3.0)))
    assert found.best == {"received": {0: 3.0, 1: 4.0}}


def test_the_worst_tenth_and_who_is_worse_off_have_larger_errors():
    line = History("rmse").note("received", Scores({n: number(float(n)) for n in range(20)}, number(9.5)))
    assert (line.mean, line.worst) == (9.5, 18.5)
    assert worse_off([1.0, 2.0, 3.0, None], [2.0, 2.0, 2.0, 2.0], sign=-1) == 1 / 3


def test_patience_waits_for_a_lower_error():
    class Server:
        plan, round = "only", 0
        plans = ("only",)

        def held(self):
            return self.round

    class Store:
        def snapshot(self):
            return ()

    watching = Stopping(2, "rmse", Server(), Store())
    over = []
    for value in [5.0, 3.0, None, 2.0, 2.0, 4.0]:
        watching.server.round += 1
        over.append(watching.over(value))
    assert over == [False, False, False, False, False, True]
    assert (watching.round, watching.best) == (4, -2.0)


SETTINGS = {"participation": 0.5, "lr": 0.3, "momentum": 0.5, "rounds": 12, "metric": "accuracy"}


def run(task, **settings):
    """A run whose learning rate is too high, so that errors go up and down; `accuracy` stands for the task's own."""
    net = network("places" if task == "places" else "mlp", task=task)
    federation = awkward_federation(tested=4, validated=4, task=task)
    return simulate("fedper", net, federation, **{**SETTINGS, **settings})


def test_a_run_stops_after_its_patience_and_goes_back_to_the_lowest_error():
    free, stopped = run("numbers"), run("numbers", patience=2)
    values = [row["validation"]["rmse"] for row in free.history.rows]
    best = 0
    for number, value in enumerate(values):
        if value < values[best]:
            best = number
        if number - best == 2:
            break
    assert best < number < 11, "the case must stop early, or it shows nothing"
    assert stopped.history.rows[-1]["restored"] == best + 1
    assert len(stopped.history.rows) == number + 1
    assert Result(free).summary.chosen.round == 1 + min(range(12), key=values.__getitem__)
    tested = [row["received"]["rmse"] for row in free.history.rows]
    assert Result(free).summary.best("received").round == 1 + min(range(12), key=tested.__getitem__)


def test_the_checkpoint_that_is_kept_beside_the_newest_has_the_lowest_error(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", Pace(0))
    rows = run("numbers", observers=[checkpoints]).history.rows
    values = [row["validation"]["rmse"] for row in rows]
    best = 1 + values.index(min(values))
    assert best <= 12 - CHECKPOINTS_KEPT and values.index(max(values)) != best - 1, "or it shows nothing"
    assert sorted(checkpoints.kept) == [best, *range(13 - CHECKPOINTS_KEPT, 13)]


def summary(method, errors, rmse):
    """A run in a few numbers: each client's RMSE, and that of all."""
    scores = MomentScores(len(errors), number(rmse))
    given = {"metric": "rmse", "task": "numbers", "client_scores": errors}
    return RunSummary(method, 1, 0.0, 0.0, moments={"received": Headline(best=scores, last=scores)}, **given)


def test_the_leaderboard_begins_with_the_lowest_error_and_counts_who_is_worse_off_than_alone():
    runs = [summary("local", [2.0, 4.0], 3.2), summary("fedavg", [3.0, 1.0], 2.1), summary("fedper", [5.0, 5.0], 5.0)]
    found = standings(runs)
    assert [own.method for own in found] == ["fedavg", "local", "fedper"]
    assert [own.worse for own in found] == [0.5, None, 1.0]
