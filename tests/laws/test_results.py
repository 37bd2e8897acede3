"""The Python interface: what `run` takes, and that its models and tables say the same as its metrics."""

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score
from torch import nn

import partwise
from partwise import ALL, GUIDE, LOCAL, ConfigError, Method, Parts, Source, option
from partwise.methods.fedper import FedPer
from partwise.runs.result import Models
from tests.support.runs import network, simulate

SMALL = {"data": "made", "clients": 5, "partition": "dir:1", "rounds": 2, "lr": 0.05, "batch": 16}
SMALL |= {"train_samples": 40}


@pytest.mark.parametrize(
    ("method", "moment"), [("fedper", "received"), ("fedbabu", "method_adapted"), ("local", "received")]
)
def test_a_clients_model_predicts_what_its_metrics_say(method, moment):
    result = partwise.run(method, **SMALL)
    federation = result.simulation.federation
    assert list(result.models) == [0, 1, 2, 3, 4]
    for client in (0, 3):
        x, y = (tensor[federation.test[client]] for tensor in (federation.source.x, federation.source.y))
        accuracy = (result.models[client](x).argmax(1) == y).double().mean()
        assert float(accuracy) == result.clients[client][moment]


def test_validation_chooses_the_round_and_reports_the_test_value_of_that_round():
    result = partwise.run("fedavg", **{**SMALL, "rounds": 4}, validation=0.2)
    rows = {row["round"]: row for row in result.metrics}
    best = max(rows.values(), key=lambda row: row["validation"]["acc_pooled"])
    assert result.summary.chosen.accuracy == best["received"]["acc_pooled"]
    assert result.summary.chosen.round == best["round"]
    for client, row in enumerate(result.clients):
        assert row["validation_samples"] == int(0.2 * (row["train_samples"] + row["validation_samples"]) + 1e-9), client


def rare(samples: int = 400, positives: float = 0.1) -> Source:
    """Two classes, one of them rare."""
    x = torch.randn(samples, 5, generator=torch.Generator().manual_seed(1))
    score = x[:, 0] + 0.5 * x[:, 1]
    return Source("rare", x, (score > score.quantile(1 - positives)).long(), 2, samples, (0.0,), (1.0,), "mlp-100")


@pytest.mark.parametrize(("method", "moment"), [("fedper", "received"), ("fedbabu", "method_adapted")])
def test_f1_and_auroc_are_those_of_the_clients_models(method, moment):
    result = partwise.run(method, data=rare(), clients=4, partition="iid", rounds=3, lr=0.2, batch=16)
    federation, labels, scores = result.simulation.federation, [], []
    for client in range(4):
        x, y = (tensor[federation.test[client]] for tensor in (federation.source.x, federation.source.y))
        logits = result.models[client](x).detach().double()
        labels.append(y.numpy())
        scores.append((logits[:, 1] - logits[:, 0]).numpy())
        row = result.clients[client]
        assert row[f"{moment}_auroc"] == pytest.approx(roc_auc_score(labels[-1], scores[-1]), abs=1e-12)
        assert row[f"{moment}_f1"] == pytest.approx(f1_score(labels[-1], scores[-1] > 0, zero_division=0), abs=1e-12)
    line = result.summary.last(moment).as_json()
    labels, scores = np.concatenate(labels), np.concatenate(scores)
    assert line["auroc"] == pytest.approx(
        roc_auc_score(labels, scores), abs=1e-12
    )  # of all samples, no mean of clients
    assert line["f1"] == pytest.approx(f1_score(labels, scores > 0), abs=1e-12)


@pytest.mark.parametrize(("metric", "key"), [("accuracy", "acc_pooled"), ("auroc", "auroc"), ("f1", "f1")])
def test_the_metric_chooses_rounds(metric, key):
    settings = {"clients": 4, "partition": "iid", "rounds": 6, "lr": 0.2, "batch": 16, "validation": 0.3}
    result = partwise.run("fedavg", data=rare(), **settings, metric=metric)
    for moment in ("received", "trained"):
        values = [row[moment][key] for row in result.metrics]
        assert result.summary.best(moment).round == 1 + values.index(max(values))
    values = [row["validation"][key] for row in result.metrics]
    assert result.summary.chosen.round == 1 + values.index(max(values))


@pytest.mark.parametrize("moment", ["received", "adapted"])
def test_worse_off_is_the_share_of_clients_that_lose_against_the_reference(moment):
    settings = {**SMALL, "model": "mlp-100", "moment": moment}
    local, shared = (partwise.run(method, **settings) for method in ("local", "fedbabu"))
    rows = list(zip(local.clients, shared.clients, strict=True))
    assert shared.worse_off(local) == sum(there[moment] < here[moment] for here, there in rows) / 5
    assert local.worse_off(shared) == sum(here[moment] < there[moment] for here, there in rows) / 5
    assert shared.worse_off(local) + local.worse_off(shared) > 0 and local.worse_off(local) == 0.0
    two = partwise.run("local", **{**settings, "lr": 1e-9}, eval_clients=2)
    assert two.worse_off(local) == 1.0  # of the two that both have


class Tuned(FedPer):
    lr = 0.2
    depth: int = option(3, "How deep.", minimum=1)


def test_a_method_may_be_a_name_a_class_or_an_object_and_brings_its_own_defaults():
    assert Tuned().lr == 0.2 and Tuned(lr=0.1).lr == 0.1 and FedPer().lr == 0.01
    assert partwise.run(Tuned, data="made", clients=3, rounds=1).config.method.lr == 0.2
    assert partwise.run(Tuned(depth=5), data="made", clients=3, rounds=1).config.method.depth == 5
    with pytest.raises(ConfigError, match="depth = 0 is not allowed: depth takes a whole number at least 1"):
        Tuned(depth=0)


class Clash(Method):
    share = {"*": LOCAL}
    seed: int = option(0, "Not this one.")


def test_a_method_cannot_take_the_name_of_a_setting_of_every_run():
    with pytest.raises(ConfigError, match=r"Clash.seed: every run has a setting of this name"):
        partwise.run(Clash, **SMALL)


def test_a_network_of_ones_own():
    torch.manual_seed(0)
    net = nn.Module()
    net.backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU())
    net.fc = nn.Linear(32, 10)
    weight = net.fc.weight.clone()
    result = partwise.run(
        "fedper", model=Parts(net, body="backbone", head="fc"), **{**SMALL, "rounds": 8, "train_samples": None}
    )
    assert torch.equal(net.fc.weight, weight)  # what was handed in is left alone
    assert result.summary.last("received").accuracy > 0.3
    assert result.ledger["rounds"][0]["up"] == {"body": 5 * 4 * (64 * 32 + 3 * 32)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("engine", ["loop", "vector"])
def test_lower_precision_trains_finite_models(dtype, engine):
    result = partwise.run("fedper", **SMALL, batch_norm=True, dtype=dtype, engine=engine)
    model = result.models[2]
    assert all(value.dtype is torch.float32 and torch.isfinite(value).all() for value in model.tensors.values())


def test_a_fixed_sample_of_clients_is_evaluated():
    result = partwise.run("fedavg", **SMALL, eval_clients=2)
    assert {row["received"]["clients"] for row in result.metrics} == {2}
    assert sum(row["received"] is not None for row in result.clients) == 2


def test_evaluation_and_adaptation_happen_when_they_are_asked_for():
    result = partwise.run("fedbabu", **{**SMALL, "rounds": 5}, eval_every=2, eval_at=(3, 5))
    assert [row["round"] for row in result.metrics if "received" in row] == [2, 4, 5]
    assert [row["round"] for row in result.metrics if "method_adapted" in row] == [3, 5]


class ReadsAll(Method):
    """Predicts with what it received of a shared body, and with the rate."""

    share = {"body": ALL, "head": GUIDE}

    def predict(self, net, x, me):
        return me.got.head(me.got.body(x)) + sum(v.sum() for v in me.got["*"].values()) + me.lr * net(x)


def test_a_clients_model_reads_what_the_client_reads():
    run = simulate(ReadsAll, network("mlp"), rounds=2, lr_decay=0.5)
    clients = run.server.eligible.tolist()
    logits = run.engine.run(run.server.request("predict", clients, evaluate=True)).logits
    for client, model in Models(run).some(clients).items():
        x = run.federation.source.x[run.federation.test[client]]
        assert torch.allclose(model(x), logits[client], rtol=0, atol=1e-12)
