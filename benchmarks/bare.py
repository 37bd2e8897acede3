"""The least code that trains a round of each method: one client after another, eager PyTorch, data on the device."""

from collections.abc import Callable
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partwise.losses import supervised_contrast
from partwise.network.models import build, projector
from partwise.network.view import Batch
from partwise.tasks import Classes


class Bare:
    """The state of a federation, and `round`."""

    def __init__(self, method: str, model: str, x: Tensor, y: Tensor, clients: list[Tensor], batch: int, lr: float):
        parts = build(model, tuple(x.shape[1:]), int(y.max()) + 1)
        features = parts.modules["head"].in_features
        self.net = nn.ModuleDict({"body": parts.modules["body"], "head": parts.modules["head"]})
        if method == "dualfed":
            self.net["p_head"] = nn.Linear(features, self.net["head"].out_features)
            self.net["projector"] = projector(features)
        self.net.to(x.device)
        self.method, self.x, self.y, self.clients, self.batch, self.lr = method, x, y, clients, batch, lr
        self.guide = deepcopy(self.net["head"])
        self.means = torch.zeros(self.net["head"].out_features, features, device=x.device)

    def round(self) -> None:
        start = {name: value.clone() for name, value in self.net.state_dict().items()}
        total = {name: torch.zeros_like(value, dtype=torch.float) for name, value in start.items()}
        for samples in self.clients:
            self.net.load_state_dict(start)
            for loss, frozen in EPOCHS[self.method]:
                learned = [p for name, p in self.net.named_parameters() if not name.startswith(frozen)]
                optimiser = torch.optim.SGD(learned, self.lr)
                for index in samples[torch.randperm(len(samples), device=samples.device)].split(self.batch):
                    x = (self.x[index].float() - 127.5) / 127.5
                    optimiser.zero_grad()
                    loss(self, x, self.y[index]).backward()
                    optimiser.step()
            for name, value in self.net.state_dict().items():
                total[name] += value * (len(samples) / sum(map(len, self.clients)))
        self.net.load_state_dict(total)

    @torch.no_grad()
    def predict(self, tested: list[Tensor]) -> list[Tensor]:
        """The logits of each client's test samples."""
        return [
            torch.cat(
                [
                    self.net["head"](self.net["body"]((self.x[index].float() - 127.5) / 127.5))
                    for index in own.split(256)
                ]
            )
            for own in tested
        ]


def plain(bare: Bare, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(bare.net["head"](bare.net["body"](x)), y)


def two_classifiers(bare: Bare, x: Tensor, y: Tensor) -> Tensor:
    z = bare.net["body"](x)
    return F.cross_entropy(bare.net["head"](z.detach()), y) + F.cross_entropy(F.linear(z, *fixed(bare.guide)), y)


def aligned(bare: Bare, x: Tensor, y: Tensor) -> Tensor:
    z = bare.net["body"](x)
    logits = F.linear(z, *fixed(bare.net["head"])) + F.linear(z, *fixed(bare.guide))
    return F.cross_entropy(logits, y) + F.mse_loss(z, bare.means[y])


def fused(bare: Bare, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        z = bare.net["body"](x)
    return F.cross_entropy(bare.net["head"](z) + F.linear(z, *fixed(bare.guide)), y)


def main_branch(bare: Bare, x: Tensor, y: Tensor) -> Tensor:
    u = bare.net["projector"](bare.net["body"](x))
    b = Batch(x, y, torch.ones_like(y, dtype=torch.bool), Classes.numbered(len(bare.means)))
    return F.cross_entropy(bare.net["p_head"](u), y) + supervised_contrast(u, b, 0.2)


def generic(bare: Bare, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        z = bare.net["body"](x)
    return F.cross_entropy(bare.net["head"](z), y)


def fixed(layer: nn.Module) -> list[Tensor]:
    return [value.detach() for value in layer.parameters()]


Loss = Callable[[Bare, Tensor, Tensor], Tensor]
# What a client does in turn: the loss of an epoch, and the names of what it leaves as it is.
EPOCHS: dict[str, list[tuple[Loss, tuple[str, ...]]]] = {
    "fedavg": [(plain, ())],
    "fed3p2p": [(plain, ())],
    "fedtc": [(two_classifiers, ())],
    "fedfcd": [(aligned, ("head",)), (fused, ("body",))],
    "dualfed": [(main_branch, ("head",)), (generic, ("body", "projector", "p_head"))],
    "anti": [(plain, ("body.conv1", "body.conv2", "head"))],
}
