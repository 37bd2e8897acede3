"""FedALA: every client learns, for each weight, how much of the received model to blend into its own.

References:
    Zhang, Hua, Wang, Song, Xue, Ma, Guan: FedALA: Adaptive Local Aggregation for Personalized Federated Learning.
    AAAI 2023.
"""

from functools import partial

import torch
from torch import nn

from partwise.errors import ConfigError
from partwise.method import GUIDE, LOCAL, Method, Move, Phase
from partwise.options import option

WATCHED = 10  # epochs whose losses say whether the weights have settled
NOTES = {"epoch": (), "steps": (), "settled": (), "losses": (WATCHED,)}  # of one learning, beside the weights


class FedALA(Method):
    """The last layers begin a round as a learned blend of own and received, others as received (Algorithm 1)."""

    share = {"*": GUIDE, "blend": LOCAL}
    last_layers: int = option(1, "Number of last layers to blend (p).", minimum=1)
    learning_share: float = option(0.8, "Fraction of samples for learning blending weights (s).", above=0, maximum=1)
    blend_rate: float = option(1.0, "Learning rate of the blending weights; 0: all stay 1 (FedAvg).", minimum=0)
    settled: float = option(
        0.1, "First blend: stop when the standard deviation of 10 epochs' losses is below this.", minimum=0
    )
    most_epochs: int = option(20, "First blend: largest number of epochs.", minimum=1)

    def build(self, parts, sizes):
        layers = [*(f"body.{layer}" for layer in parts.trained_layers("body")), "head"]
        if self.last_layers > len(layers):
            raise ConfigError(
                f"last_layers = {self.last_layers}, but there are {len(layers)} layers to blend: {', '.join(layers)}"
            )
        self.blended = [name for layer in layers[-self.last_layers :] for name in parts.select(layer)]
        self.blended = [name for name in self.blended if name not in parts.buffers]
        ones = {name: torch.ones_like(parts.tensors()[name]) for name in self.blended}
        held = {**ones, **{name: torch.zeros(shape) for name, shape in NOTES.items()}}
        named = {name.replace(".", "/"): nn.Parameter(value, requires_grad=False) for name, value in held.items()}
        return parts.add("blend", nn.ParameterDict(named), drawn=False)

    def prepare(self):
        """Return phases that learn the weights; the first time, one counts an epoch's mini-batches before."""
        phase = partial(Phase, sample_range=(0.0, self.learning_share), mode="eval")
        count = phase(Move("blend", update="count"), epochs=self.epochs_to_count, before="afresh")
        learn = phase(Move("blend", update="learn"), epochs=self.epochs_to_learn, after="begin_with")
        return count, learn

    def epochs_to_count(self, times):
        return 1 if times == 1 and self.blend_rate else 0

    def epochs_to_learn(self, times):
        return 0 if times == 0 or not self.blend_rate else self.most_epochs if times == 1 else 1

    def phases(self):
        return Phase(Move("body head"))

    def afresh(self, net, me):
        return {f"blend.{name}": torch.zeros_like(net["blend"][name]) for name in NOTES}

    def count(self, net, b, me):
        return {"blend.epoch": net["blend"]["epoch"] + 1}

    def weights(self, net):
        """Return the weights A by the full names of what they blend."""
        return {name: net["blend"][name.replace(".", "/")] for name in self.blended}

    def local_start(self, net, me, weights):
        """Return the start of training: w_i + (w - w_i) * A in the last layers, w in the others (Eq. 4)."""
        got, own = me.got["body head"], net["body head"]
        return got | {name: torch.lerp(own[name], got[name], weights[name]) for name in weights if name in got}

    def learn(self, net, b, me):
        held, weights = net["blend"], self.weights(net)

        def loss(weights):
            value = b.loss(net.with_tensors(self.local_start(net, me, weights))(b.x))
            return value, value.detach()

        slopes, value = torch.func.grad(loss, has_aux=True)(weights)
        new = {name: (weight - self.blend_rate * slopes[name]).clamp(0, 1) for name, weight in weights.items()}  # Eq. 5
        settled = held["settled"] > 0
        new = {name.replace(".", "/"): torch.where(settled, weights[name], weight) for name, weight in new.items()}
        steps, epoch = held["steps"] + 1, held["epoch"]  # mini-batches of an epoch; 0 but for the first time
        ends = (epoch > 0) & (steps % epoch.clamp(min=1) == 0)
        losses = torch.where(ends, torch.cat([held["losses"][1:], value[None]]), held["losses"])  # one an epoch
        quiet = ends & (steps > WATCHED * epoch) & (losses.std(correction=0) < self.settled)
        new |= {"losses": losses, "steps": steps, "settled": (settled | quiet).to(steps.dtype)}
        return {f"blend.{name}": value for name, value in new.items()}

    def begin_with(self, net, me):
        return self.local_start(net, me, self.weights(net))
