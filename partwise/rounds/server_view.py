"""The server as hooks of methods see it: its model, the weights of a mean, decay and random numbers."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from partwise.errors import ConfigError, unknown
from partwise.method import Method
from partwise.network.layers import LayerScope
from partwise.network.parts import Parts
from partwise.network.view import Net, Tensors
from partwise.rounds.learning_rate import rate_factor
from partwise.rounds.messages import Updates
from partwise.rounds.mixing import Copies
from partwise.rounds.plan import Plan
from partwise.rounds.safeguards import Safeguards
from partwise.streams import stream


class ServerView:
    """What hooks read and set on the server, beside its attributes and what carries out a round."""

    method: Method
    parts: Parts
    scope: LayerScope
    plan: Plan
    seed: int
    safeguards: Safeguards
    copies: dict[str, Copies]

    def __getitem__(self, selector: str) -> Tensors:
        """Return the server's parameters of a selector, by `net`'s names; if it has several copies, use `copies`."""
        names = self.parts.parameters(selector)
        for name in names.values():
            if len(self.copies[name].values) > 1:
                part = name.split(".")[0]
                raise ConfigError(
                    f"the server has several copies of '{part}', one per group or client; use server.copies"
                )
        return {short: self.copies[name].values[0] for short, name in names.items()}

    def __setitem__(self, selector: str, tensors: Tensors) -> None:
        """Set the server's parameters of a selector, or some of them."""
        old, names = self[selector], self.parts.parameters(selector)
        for key, value in tensors.items():
            if key not in old:
                raise ConfigError(unknown(f"tensor of '{selector}'", key, old))
            if value.shape != old[key].shape or value.dtype != old[key].dtype:
                raise ConfigError(
                    f"'{names[key]}' is {tuple(old[key].shape)} {old[key].dtype}, not "
                    f"{tuple(value.shape)} {value.dtype}"
                )
            self.copies[names[key]] = replace(self.copies[names[key]], values=value.detach()[None])

    def net(self) -> Net:
        """Return the server's copies as a network like a client's; of several copies, the first."""
        return Net(self.parts, self.scope, {name: copies.values[0] for name, copies in self.copies.items()})

    def weights(self, updates: Updates) -> Tensor:
        """Return (participants,) float64 on the host: the weight of each in a mean."""
        samples = updates.samples.double().cpu()
        if self.method.aggregation == "uniform":
            return torch.ones_like(samples)
        return self.safeguards.capped(samples, updates.clients)

    def decay(self, round: int) -> float:
        """Return the factor on learning rates in a round of this stage: `server.decay(server.round)`."""
        return rate_factor(self.method, round - self.plan.rate_origin, self.plan.rate_rounds)

    def stream(self, *names: str | int) -> np.random.Generator:
        """Return a numpy generator seeded by names, for the server's own use: `server.stream("noise", round)`."""
        return stream(self.seed, "server", *names)
