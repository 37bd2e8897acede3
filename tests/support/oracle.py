"""What the oracles have in common: a run and its record, and plain PyTorch.

An oracle is a method written a second time, from its paper, with modules, `backward` and `torch.optim.SGD`. Of the run
that it is compared with it takes the initial model, who took part and in which order, the mini-batches, and what was
drawn at random.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from partwise import Observer
from partwise.runs.observers import Exchange, Seen
from tests.support.runs import OUTPUTS, awkward_federation, network, simulate
from tests.support.states import apart, distance

RATE, DECAY, MOMENTUM, WEIGHT_DECAY, BATCH, EPOCHS = 0.05, 0.8, 0.6, 1e-2, 8, 2
SETTINGS: dict[str, Any] = {"lr": RATE, "lr_decay": DECAY, "momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY}
SETTINGS |= {"batch": BATCH, "epochs": EPOCHS, "participation": 0.5, "rounds": 3}
FLOAT = 8  # bytes
CLIENTS = range(8)
TOLERANCE = 1e-9
NUDGE = 1 + 3e-16  # initial weights times this differ in their last bit

Tensors = dict[str, Tensor]


class Record(Observer):
    """A run in the loop engine, float64, from its first request to its last."""

    def __init__(self, method: str, net: str = "cnn", task: str = "classes", **settings: Any):
        self.rounds: list[Seen] = []
        self.shuffles: list[np.ndarray] = []  # the server's, in order
        federation = awkward_federation(task=task)
        self.x, self.criterion = (federation.source.x.double() - 127.5) / 127.5, LOSSES[task]
        self.train, self.test, self.global_test = federation.train, federation.test, federation.global_test
        self.samples = torch.tensor([float(len(own)) for own in federation.train], dtype=torch.float64)
        settings = {**SETTINGS, **settings}
        parts, nudged = (network(net, factor, task=task) for factor in (1.0, NUDGE))
        with torch.no_grad():
            assert apart(parts.tensors(), nudged.tensors()) > 0
        self.run = simulate(method, parts, federation, observers=[self], **settings)
        self.y = self.run.federation.source.y  # numbers as the run standardises them
        self.assert_stable(simulate(method, nudged, federation, **settings))

    @torch.no_grad()
    def assert_stable(self, nudged: Any) -> None:
        """Assert that the run does not blow up rounding errors: another CPU rounds otherwise."""
        drift = distance(self.run, nudged)
        assert drift < TOLERANCE / 100, f"the run itself is not stable at these settings: it drifts by {drift:.1e}"

    def begin(self, simulation: Any) -> None:
        self.initial = {name: value.detach().clone() for name, value in simulation.program.parts.tensors().items()}
        simulation.server.stream = self.watched(simulation.server.stream)

    def round(self, seen: Seen) -> None:
        self.rounds.append(seen)

    def watched(self, stream: Callable) -> Callable:
        record = self

        class Watched:
            def __init__(self, *names: Any):
                self.generator = stream(*names)

            def __getattr__(self, name: str) -> Any:
                return getattr(self.generator, name)

            def permutation(self, what: Any) -> Any:
                record.shuffles.append(self.generator.permutation(what))
                return record.shuffles[-1]

        return Watched

    def mini_batches(self, steps: Sequence[np.ndarray]) -> Iterator[tuple[Tensor, Tensor]]:
        """The samples and labels of every step."""
        for step in steps:
            index = torch.from_numpy(step[0])
            yield self.x[index], self.y[index]

    @torch.no_grad()
    def logits(self, client: int, predict: Callable) -> Tensor:
        """A client's predictions of its test samples."""
        return predict(self.x[self.test[client]])

    def own(self, client: int, names: Iterable[str]) -> Tensors:
        """What a client holds after the run."""
        return self.run.engine.store.own(client, list(names))


def trained_by(seen: Seen) -> list[Exchange]:
    """The training of a round: one exchange, or the hops of a relay."""
    return [exchange for exchange in seen.exchanges if exchange.job == "train"]


# -------------------------------------------------------------------------------------------------- plain PyTorch


def mean_of_known(losses: Tensor, known: Tensor) -> Tensor:
    """The mean over what is known; 0 where nothing is."""
    return losses[known].sum() / max(1, int(known.sum()))


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "classes": cross_entropy,
    "numbers": lambda output, y: mean_of_known((output - y.nan_to_num()) ** 2, ~y.isnan()),
    "labels": lambda output, y: mean_of_known(
        binary_cross_entropy_with_logits(output, y.nan_to_num(), reduction="none"), ~y.isnan()
    ),
    "places": lambda output, y: mean_of_known(cross_entropy(output, y, ignore_index=-1, reduction="none"), y >= 0),
}
# The small networks, by task: their name, and the layers of their body from the input to the output
NETS = dict.fromkeys(LOSSES, "cnn") | {"places": "places"}
LAYERS = dict.fromkeys(LOSSES, ("conv1", "conv2", "fc1")) | {"places": ("0", "1")}
OTHERS = [task for task in LOSSES if task != "classes"]


def layers(*names: str, norm: bool = False) -> nn.Sequential:
    """Some layers of the small network."""
    flat, relu = nn.Flatten(), nn.ReLU()
    every: dict[str, nn.Module] = {
        "conv1": nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), *[nn.BatchNorm2d(16)] * norm, relu),
        "conv2": nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), *[nn.BatchNorm2d(32)] * norm, relu, nn.MaxPool2d(2)),
        "fc1": nn.Sequential(flat, nn.Linear(512, 64), relu),
        "0": nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), relu),  # of the network that gives logits at each place
        "1": nn.Sequential(nn.Conv2d(6, 6, 3, padding=1), relu),
    }
    return nn.Sequential(OrderedDict((name, every[name]) for name in names))


def classifier(task: str = "classes") -> nn.Module:
    return nn.Conv2d(6, OUTPUTS[task], 1) if task == "places" else nn.Linear(64, OUTPUTS[task])


def model(tensors: Tensors, **parts: nn.Module) -> nn.ModuleDict:
    """Parts with the values of a run, by the run's names."""
    made = nn.ModuleDict(parts).double()
    own = {name: tensors.get(name, value) for name, value in made.state_dict().items()}
    made.load_state_dict({name: value.clone() for name, value in own.items()})
    return made


def two_parts(tensors: Tensors, norm: bool, task: str = "classes") -> nn.ModuleDict:
    """The small network as extractor `body` and classifier `head`."""
    return model(tensors, body=layers(*LAYERS[task], norm=norm), head=classifier(task))


def predicting(net: nn.ModuleDict) -> nn.Module:
    """The same as one module, in evaluation mode."""
    return nn.Sequential(net["body"], net["head"]).eval()


def parameters(tensors: Tensors) -> Tensors:
    """What travels: no running values."""
    return {name: value for name, value in tensors.items() if "running" not in name}


def values(module: nn.Module, *prefixes: str) -> Tensors:
    """The numbers of some parts, or of all; integers left out."""
    return {
        name: value.detach().clone()
        for name, value in module.state_dict().items()
        if value.is_floating_point() and (not prefixes or name.startswith(prefixes))
    }


def sgd(module: nn.Module | Iterable[nn.Module], rate: float, momentum: float = MOMENTUM) -> torch.optim.SGD:
    parameters = [p for one in ([module] if isinstance(module, nn.Module) else module) for p in one.parameters()]
    return torch.optim.SGD(parameters, rate, momentum=momentum, weight_decay=WEIGHT_DECAY)


def step(optimizer: torch.optim.SGD, loss: Tensor) -> None:
    """One step of whatever the optimiser has; gradients of everything else are thrown away."""
    gradients = torch.autograd.grad(loss, optimizer.param_groups[0]["params"])
    for parameter, gradient in zip(optimizer.param_groups[0]["params"], gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()


def gradients(net: nn.Module, loss: Tensor) -> Tensors:
    """The gradient of a loss by the run's names."""
    names, parameters = zip(*net.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def descend(optimizer: torch.optim.SGD, net: nn.Module, gradient: Tensors, clip: float | None = None) -> None:
    """One step along a gradient that was made by hand; `clip` comes before weight decay and momentum."""
    for name, parameter in net.named_parameters():
        parameter.grad = gradient[name].clone()
    if clip is not None:
        nn.utils.clip_grad_norm_(net.parameters(), clip)
    optimizer.step()


def mean(models: Sequence[Tensors], weights: Tensor) -> Tensors:
    """The weighted mean of models."""
    shares = weights / weights.sum()
    return {name: sum(w * one[name] for w, one in zip(shares, models, strict=True)) for name in models[0]}


def with_average_running_values(record: Record, held: dict[int, Tensors], stepped: set[int]) -> dict[int, Tensors]:
    """What clients are tested with: one that never stepped has the others' running values, averaged by samples."""
    average = average_running_values(record, held, stepped)
    return {k: own if k in stepped else {**own, **average} for k, own in held.items()}


def average_running_values(record: Record, held: dict[int, Tensors], stepped: set[int]) -> Tensors:
    """The running values of those that stepped, averaged by samples: the global model is tested with them."""
    who = sorted(stepped)
    running = {k: {name: v for name, v in held[k].items() if "running" in name} for k in who}
    return mean([running[k] for k in who], record.samples[who])


def assert_close(ours: dict[Any, Tensor], theirs: dict[Any, Tensor], what: str) -> None:
    for name, value in ours.items():
        assert value.shape == theirs[name].shape, (what, name)
        error = float((value - theirs[name]).abs().max())
        assert error < TOLERANCE, f"{what}, {name}: {error:.1e}"


def assert_copies(ours: Tensors, seen: Seen, client: int = 0) -> None:
    """The server's copies after a round; where there are several, those of a client."""
    theirs = {name: seen.copies[name].of([client])[0] for name in ours}
    assert_close(ours, theirs, f"round {seen.record.round}, server")


def assert_predictions(ours: dict[int, Tensor], seen: Seen, moment: str) -> None:
    """The logits of every client that is tested at this moment."""
    theirs = seen.predictions[moment]
    assert set(ours) == set(theirs)
    assert_close(ours, theirs, f"round {seen.record.round}, {moment}")


@torch.no_grad()
def assert_global_predictions(predict: Callable, record: Record, seen: Seen) -> None:
    """The global model's logits of the global test samples."""
    assert seen.global_predictions is not None
    ours, theirs = predict(record.x[record.global_test]), seen.global_predictions
    assert_close({"logits": ours}, {"logits": theirs}, f"round {seen.record.round}, global")


def assert_bytes(seen: Seen, down: int, up: int, participants: int) -> None:
    """Floats that each participant gets and sends."""
    assert (seen.record.bytes_down, seen.record.bytes_up) == (FLOAT * down * participants, FLOAT * up * participants)


def size(tensors: Tensors) -> int:
    return sum(value.numel() for value in tensors.values())
