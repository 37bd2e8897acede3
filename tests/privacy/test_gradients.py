"""DP-SGD: clipped gradients of single samples and noise on their sum, in every engine."""

import pytest
import torch

from partwise.engines import tracing
from partwise.engines.workers import Workers
from partwise.errors import ConfigError
from partwise.losses import supervised_contrast
from partwise.method import Method
from partwise.runs.observers import Observer
from tests.support.engines import InThisProcess
from tests.support.runs import awkward_federation, network, simulate
from tests.support.states import apart, distance, state


class Uploads(Observer):
    """What client 2 received and uploaded in the last round, and every client's step in all."""

    def __init__(self):
        self.steps = []

    def round(self, seen):
        [exchange] = seen.exchanges
        self.received, self.uploaded = exchange.received(2), exchange.uploaded(2)
        for client in exchange.updates.clients:
            received = exchange.received(client)
            self.steps.append({name: value - received[name] for name, value in exchange.uploaded(client).items()})

    def of(self, part, dims):
        """The name of a part's only tensor of so many dimensions."""
        [name] = [name for name, value in self.received.items() if name.startswith(part) and value.dim() == dims]
        return name


class Contrast(Method):
    """A loss in which samples meet in pairs."""

    def loss(self, net, b, me):
        return supervised_contrast(net.body(b.x), b, 0.5)


WIDE = {"dp_clip": 1e9, "rounds": 2}


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedrep", "fedfcd", "scaffold"])
def test_without_clip_and_noise_it_is_plain_sgd(method):
    parts = network("mlp")
    assert distance(simulate(method, parts, rounds=2), simulate(method, parts, **WIDE)) < 1e-12


def test_of_known_numbers_too():
    """A sample's loss is the mean over its numbers, and the loss of a mini-batch the mean over samples."""
    parts, federation = network("mlp", task="numbers"), awkward_federation(task="numbers")
    federation.source.y.nan_to_num_(nan=1.5)
    plain, private = (
        simulate("fedper", parts, federation, rounds=2, **settings) for settings in ({}, {"dp_clip": 1e9})
    )
    assert distance(plain, private) < 1e-12
    clipped = [simulate("fedper", parts, federation, engine, rounds=2, dp_clip=0.1) for engine in ("loop", "vector")]
    assert distance(plain, clipped[0]) > 1e-3 and distance(*clipped) < 1e-10


@pytest.mark.parametrize("method", ["fedavg", "fedrep", "fedfcd"])
@pytest.mark.parametrize("net", ["mlp", "cnn+gn"])
def test_vector_equals_loop(method, net):
    """With clients of one sample and padded rows, with momentum and dropout, which draws for every sample."""
    settings = {"dp_clip": 0.5, "dp_noise": 0.3, "rounds": 2, "momentum": 0.5, "lr": 0.02}
    parts = network(net, dropout=0.25)
    loop, vector = (simulate(method, parts, engine=engine, **settings) for engine in ("loop", "vector"))
    assert apart(state(loop), state(vector)) < 1e-10


def test_workers_and_traced_steps_are_the_loops(monkeypatch):
    settings = {"dp_clip": 0.5, "dp_noise": 0.3, "rounds": 2, "upload_clip": 1.0, "upload_noise": 0.1}
    parts = network("mlp", dropout=0.25)
    loop = simulate("fedper", parts, **settings)
    monkeypatch.setattr(Workers, "executor", InThisProcess)
    assert distance(loop, simulate("fedper", parts, engine="workers", workers=2, **settings)) == 0
    monkeypatch.setattr(tracing, "TRACING_PAYS", 0)
    assert distance(loop, simulate("fedper", parts, engine="vector", **settings)) < 1e-10


def test_one_step_by_hand():
    """Client 2 has 7 samples, less than a mini-batch: its one step is the mean of seven clipped gradients."""
    parts, clip, rate = network("mlp"), 0.05, 0.1
    run = simulate("fedavg", parts, rounds=1, dp_clip=clip, lr=rate, observers=[(seen := Uploads())])
    federation = run.federation
    expected = {name: torch.zeros_like(value) for name, value in seen.received.items()}
    clipped = 0
    for index in federation.train[2]:
        x = (federation.source.x[index][None].double() - 127.5) / 127.5
        weights = {name: value.clone().requires_grad_() for name, value in seen.received.items()}
        hidden = torch.relu(x.flatten(1) @ weights[seen.of("body", 2)].T + weights[seen.of("body", 1)])
        logits = hidden @ weights["head.weight"].T + weights["head.bias"]
        loss = torch.nn.functional.cross_entropy(logits, federation.source.y[index][None])
        grads = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))
        norm = sum(float(grad.square().sum()) for grad in grads.values()) ** 0.5
        clipped += norm > clip
        for name, grad in grads.items():
            expected[name] += grad * min(1, clip / norm) / 7
    assert clipped > 0
    for name, value in seen.received.items():
        assert torch.allclose(seen.uploaded[name], value - rate * expected[name], atol=1e-14)


def test_the_noise_has_its_deviation_over_the_size_of_the_mini_batch():
    """Nothing is learned at a clip of 1e-9, so the step of a client with seven samples is noise: 1e-9 x 1e9 / 7."""
    settings = {"dp_clip": 1e-9, "dp_noise": 1e9, "lr": 1.0, "rounds": 1}
    simulate("fedavg", network("mlp"), observers=[(seen := Uploads())], **settings)
    noise = torch.cat([(seen.uploaded[name] - value).flatten() for name, value in seen.received.items()])
    assert abs(float(noise.std()) * 7 - 1) < 4 / (2 * len(noise)) ** 0.5
    assert abs(float(noise.mean()) * 7) < 4 / len(noise) ** 0.5


def test_no_two_steps_have_the_same_noise():
    settings = {"dp_clip": 1e-9, "dp_noise": 1e9, "lr": 1.0, "rounds": 2}
    simulate("fedavg", network("mlp"), observers=[(seen := Uploads())], **settings)
    assert len(seen.steps) == 2 * 8
    values = torch.stack([step["head.weight"].flatten() for step in seen.steps])
    assert torch.corrcoef(values).fill_diagonal_(0).abs().max() < 5 / values.shape[1] ** 0.5


@pytest.mark.parametrize(
    ("method", "net", "settings", "line"),
    [
        (Contrast, "mlp", {}, "loss is not a mean of one number per sample"),
        ("fedavg", "cnn+bn", {}, "in batch-norm samples meet"),
        ("per_fedavg", "mlp", {}, "per_fedavg's move 'outer' is no gradient of a loss"),
        ("fedpac", "mlp", {}, "fedpac's move 'measure' is no gradient of a loss"),
        ("fedavg", "mlp", {"class_weights": "balanced"}, "class_weights = balanced depends on a client's labels"),
        ("fedavg", "mlp", {"sampling": "balanced"}, "sampling = balanced depends on a client's labels"),
    ],
)
def test_what_has_no_gradient_of_one_sample_is_refused(method, net, settings, line):
    with pytest.raises(ConfigError, match=line):
        simulate(method, network(net), trials=True, dp_clip=1.0, rounds=1, **settings)


def test_losses_of_single_samples_pass_the_trial():
    simulate("fedprox", network("mlp", dropout=0.25), trials=True, dp_clip=1.0, rounds=1, engine="vector")
