"""The positive class of two: metrics of one class are about it, and nothing else of the data changes."""

import numpy as np
import pytest
import torch

import partwise
from partwise.errors import ConfigError
from partwise.runs.config import make_config
from partwise.runs.partitioning import partitioned
from tests.support.silo_tables import SETTINGS as SILOS
from tests.support.silo_tables import run as federated_run
from tests.support.silo_tables import silo, table

RUN = {"rounds": 2, "lr": 0.1, "dtype": "float64", "threads": 1, "eval_every": 2}


def patients(seed, rows=60):
    random = np.random.default_rng(seed)
    x = random.normal(0, 1, (rows, 3)).astype(np.float32)
    return x, np.where(x.sum(1) + random.normal(0, 1, rows) > 0.8, "died", "lived")


def run(data=None, **settings):
    return partwise.run(
        "fedper", data=data or {name: patients(seed) for seed, name in enumerate("AB")}, **RUN, **settings
    )


def test_metrics_of_one_class_are_about_the_positive_one():
    usual, named = run(), run(positive="died")
    assert (usual.summary.positive, named.summary.positive) == ("lived", "died")
    assert named.federation.source.labels == ("lived", "died")
    assert torch.equal(named.federation.source.y, 1 - usual.federation.source.y)
    score, labels = named.summary.last("received").pooled, named.federation.source.y
    assert score.average_precision is not None
    samples = torch.cat(list(named.federation.test))
    logits = torch.cat([named.models[k](named.federation.source.x[own]) for k, own in enumerate(named.federation.test)])
    answers, true = logits.argmax(1), labels[samples]
    right = int((answers & true).sum())
    assert score.f1 == pytest.approx(2 * right / int(answers.sum() + true.sum()), abs=1e-12)


def test_the_class_that_is_the_second_already_changes_nothing():
    usual, named = run(), run(positive="lived")
    assert usual.federation.fingerprint() == named.federation.fingerprint()
    assert usual.summary.moments == named.summary.moments


def test_a_model_keeps_the_order_and_a_newcomer_gets_it(tmp_path):
    run(positive="died", out=tmp_path)
    assert partwise.load_model(tmp_path, "A").classes == ("lived", "died")
    joined = partwise.join(tmp_path, patients(7), name="Graz", join_rounds=1).model()
    assert joined.classes == ("lived", "died")
    assert (joined.predict(patients(8)[0]) == patients(8)[1]).mean() > 0.5


def test_the_partition_is_that_of_the_data_as_they_are_read_again():
    """Runs beside one another take over data in which the class is the second already."""
    config = make_config("fedper", {"data": "a file", "positive": "died", "clients": 3, "partition": "dir:0.5"})
    once = partitioned(config, patients(0))
    again = partitioned(config, once.source)
    assert all(map(torch.equal, once.train, again.train)) and once.fingerprint() == again.fingerprint()


@pytest.mark.parametrize("name", ["no", "yes"])
def test_all_nodes_of_a_federation_agree_on_it(name, tmp_path):
    own = {city: silo(tmp_path, table(60, seed), city) for seed, city in enumerate(("Graz", "Linz"))}
    there = federated_run(make_config("fedavg", {**SILOS, "positive": name}), own)
    there.run()
    sources = [node.run.simulation.federation.source for node in there.engine.nodes.link.nodes.values()]
    for source in (there.federation.source, *sources):
        assert source.labels[1] == name
    ages = {city: torch.tensor(table(60, seed)["age"].tolist()) for seed, city in enumerate(("Graz", "Linz"))}
    for source, city in zip(sources, ages, strict=True):
        assert torch.equal(source.y == 1, (ages[city] > 50) == (name == "yes"))


@pytest.mark.parametrize(
    ("data", "positive", "line"),
    [
        (patients(0), "dead", "unknown class 'dead'; did you mean 'died'? known: died, lived"),
        ((patients(0)[0], np.arange(60) % 3), "2", "positive = 2 needs two classes, but 'data' has 3 classes"),
        ((patients(0)[0], patients(0)[0][:, 0]), "y", "positive = y needs two classes, but 'data' has 1 number (y)"),
    ],
)
def test_another_class_is_refused(data, positive, line):
    with pytest.raises(ConfigError) as refused:
        run(data, clients=2, partition="iid", positive=positive)
    assert str(refused.value) == line
