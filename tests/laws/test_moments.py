"""The moments at which methods are compared: one for all, and fine-tuning that is the same for every method."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from partwise import ConfigError, Observer, methods
from partwise.runs.result import Models, personal_model
from tests.support.runs import network, simulate

SETTINGS = {"rounds": 2, "batch": 32, "participation": 0.5, "lr_decay": 0.9}  # nobody has more samples than a batch
CALM = {"dualfed": {"projector_norm": False}, "fed3p2p": {"coordinators_a": 2, "coordinators_b": 2}}
CALM |= {"fedetf": {"personal_rounds": 1, "personal_epochs": 1}}  # shorter, with nothing left out


def tuned(run, client):
    """What a client's copy holds after fine-tuning."""
    return run.engine.run(run.server.request("finetune", [client], models=True)).models[client]


@pytest.mark.parametrize("part", ["*", "head"])
@pytest.mark.parametrize("method", ["local", "central", "fedper", "fedtc", "dualfed", "fedfcd", "fed3p2p", "lg_fedavg"])
def test_fine_tuning_is_gradient_descent_on_the_methods_own_prediction(method, part):
    """One epoch of one mini-batch: every tensor of the part, a frozen one too, moves by rate times gradient."""
    settings = {**SETTINGS, "finetune_epochs": 1, "finetune_lr": 0.1, "finetune_part": part}
    run = simulate(method, network("mlp of two layers"), **settings, **CALM.get(method, {}), moment="adapted")
    for client in (2, 5):
        model, samples = Models(run)[client], run.federation.train[client]
        loss = cross_entropy(model(run.federation.source.x[samples]), run.federation.source.y[samples])
        own, after = model.own, tuned(run, client)
        used = torch.autograd.grad(loss, list(own.values()), allow_unused=True)
        for (name, value), gradient in zip(own.items(), used, strict=True):
            moves = gradient is not None and (part == "*" or name.startswith(f"{part}."))
            expected = value.detach() - 0.1 * gradient if moves else value.detach()
            assert torch.allclose(after[name], expected, rtol=0, atol=1e-12), name
        assert part == "head" or any(not torch.equal(after[name], value) for name, value in own.items())


class Last(Observer):
    """Keeps what the last round showed."""

    def round(self, seen):
        self.seen = seen


OPTIMISER = {"lr": 0.02, "momentum": 0.6, "weight_decay": 0.01, "lr_decay": 0.9, "clip_norm": 2.0}
NETWORK = {"fedbn": "cnn+gn"}  # which wants normalisation
PLAIN_SGD = {"scaffold": {"momentum": 0.0}}  # which refuses momentum
DECAYED = {"fed3p2p": 1.0}  # its second stage, one round old, begins the decay anew


@pytest.mark.parametrize("method", methods.names())
def test_adapted_is_the_runs_optimiser_on_the_plain_loss(method):
    """Fine-tuning repeated by hand: cross-entropy of the method's prediction, every tensor, from what is received."""
    last = Last()
    settings = {**SETTINGS, **OPTIMISER, "batch": 8, "finetune_epochs": 2, **PLAIN_SGD.get(method, {})}
    settings |= CALM.get(method, {}) | {"moment": "adapted"}
    run = simulate(method, network(NETWORK.get(method, "mlp of two layers")), observers=[last], **settings)
    exchange, predicted = last.seen.evaluations["adapted"], last.seen.predictions["adapted"]
    x, y = run.federation.source.x, run.federation.source.y
    request = run.server.request("predict", sorted(predicted), models=True)
    received = run.engine.run(request).models
    sent = [name for name, share in request.plan.share.items() if share.sent]  # `me.got` stays while a copy learns
    for client, logits in predicted.items():
        got = {f"got.{name}": request.copies[name].of([client])[0] for name in sent}
        model = personal_model(run, request, client, {**received[client], **got})
        before = [parameter.detach().clone() for parameter in model.parameters()]
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.SGD(trained, 0.02 * DECAYED.get(method, 0.9), settings["momentum"], weight_decay=0.01)
        for (samples,) in exchange.batches(client)[-1]:
            optimizer.zero_grad()
            cross_entropy(model(x[samples]), y[samples]).backward()
            torch.nn.utils.clip_grad_norm_([p for p in trained if p.grad is not None], 2.0)
            optimizer.step()
        with torch.no_grad():
            assert torch.allclose(model(x[run.federation.test[client]]), logits, rtol=0, atol=1e-9), client
        assert not all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize(("method", "settings"), [("fedbabu", {}), ("fedavg", {"epochs": 3}), ("anti", {})])
def test_where_a_method_fine_tunes_in_the_same_way_both_figures_are_one(method, settings):
    """FedBABU's fine-tuning is the common one; so are FedAvg's local epochs, where there are as many."""
    run = simulate(method, network("cnn"), rounds=3, lr_decay=0.9, finetune_epochs=3, moment="adapted", **settings)
    row = run.history.rows[-1]
    assert row["adapted"] == row["method_adapted"] != row["received"]


def test_fine_tuning_is_evaluated_where_it_is_asked_for():
    plain, asked = (simulate("fedper", network("mlp"), moment=moment) for moment in ("received", "adapted"))
    assert not any("adapted" in row for row in plain.history.rows)
    assert [row["round"] for row in asked.history.rows if "adapted" in row] == [5]
    some = simulate("fedper", network("mlp"), moment="adapted", eval_at=(2, 5))
    assert [row["round"] for row in some.history.rows if "adapted" in row] == [2, 5]
    assert not any("method_adapted" in row for row in some.history.rows)  # FedPer has no way of its own


def test_the_rate_is_that_of_the_round_just_finished_unless_it_is_set():
    """With the decay 0.5, two rounds leave half of the rate."""
    settings = {"rounds": 2, "lr": 0.2, "lr_decay": 0.5, "moment": "adapted"}
    last, half, other = (
        simulate("local", network("mlp"), **settings, finetune_lr=rate).history.rows[-1]["adapted"]
        for rate in (None, 0.1, 0.4)
    )
    assert last == half != other


def test_what_cannot_be_tuned_or_compared_is_refused():
    with pytest.raises(ConfigError, match="'nose'"):
        simulate("fedper", network("mlp"), finetune_part="nose")
    for settings in ({"participation": 0.5}, {"clients_per_round": 3}):
        with pytest.raises(
            ConfigError, match=r"^moment = trained measures a round's participants only: let all clients take part"
        ):
            simulate("fedper", network("mlp"), moment="trained", **settings)
    simulate("fedper", network("mlp"), moment="trained", rounds=1, clients_per_round=8)
