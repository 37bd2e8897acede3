"""Ditto: FedAvg, and a personal model for every client that is regularised towards the received one.

References:
    Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021.
"""

from partwise.method import ALL, LOCAL, Method, Move, Phase
from partwise.options import option


class Ditto(Method):
    """Algorithm 1: the personal model solves (Ditto) beside the rounds of FedAvg, which do not see it."""

    share = {"*": ALL, "mine": LOCAL}
    proximal_weight: float = option(1.0, "Weight lambda of the pull towards the received model.", minimum=0)
    personal_epochs: int | None = option(None, "Epochs of training the personal model; unset: --epochs.", minimum=1)

    def build(self, parts, sizes):
        return parts.copy("*", name="mine")

    def phases(self):
        # Both look at the received model, so the order is free; this one gives `mine` the mini-batches of Local.
        return [Phase(Move("mine", "personal"), epochs=self.personal_epochs), Phase(Move("body head"))]

    def personal(self, net, b, me):
        mine, received = net["mine"], me.got["*"]  # without what a schedule still freezes
        distance = sum((mine[name] - value).square().sum() for name, value in received.items())
        return b.loss(net.mine(b.x)) + self.proximal_weight / 2 * distance  # h_k(v; w)

    def predict(self, net, x, me):
        return net.mine(x)
