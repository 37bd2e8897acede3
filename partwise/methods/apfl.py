"""APFL: every client predicts with a mixture of the shared model and its own, and learns the mixing weight.

References:
    Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning. 2020.
"""

import torch
from torch import nn

from partwise.method import ALL, LOCAL, Method, Move, Phase
from partwise.options import option


class APFL(Method):
    """A network of the client's own is trained through the mixture alpha v + (1 - alpha) w (Algorithm 1)."""

    share = {"*": ALL, "mine": LOCAL, "mixing": LOCAL}
    mixing_weight: float = option(0.5, "Initial weight alpha of the client's own network.", minimum=0, maximum=1)
    learn_mixing: bool = option(True, "Learn alpha, one step per round; otherwise it stays fixed.")

    def build(self, parts, sizes):
        share = torch.tensor(self.mixing_weight, dtype=torch.float64)  # exact until the run's dtype is known
        alpha = nn.Parameter(share, requires_grad=False)
        return parts.copy("*", name="mine").add("mixing", nn.ParameterDict({"alpha": alpha}), drawn=False)

    def phases(self):
        both = Phase(Move("mine", "through_mixture"), Move("body head"))  # v first: the mixture has the old w
        return [Phase(Move("mixing", update="mix_better"), steps=1), both] if self.learn_mixing else both

    def mixture(self, net, alpha):
        """Return the network whose part `mine` is the mixture; running values of batch-norm stay there."""
        shared = net["body head"]
        mixed = {f"mine.{name}": alpha * own + (1 - alpha) * shared[name] for name, own in net["mine"].items()}
        return net.with_tensors(mixed)

    def through_mixture(self, net, b, me):
        mixture = self.mixture(net.fixed("body head"), net["mixing"]["alpha"])
        loss = b.loss(mixture.mine(b.x))
        net.tensors.update(mixture.running)
        return loss

    def mix_better(self, net, b, me):
        alpha = net["mixing"]["alpha"]
        slope = torch.func.grad(lambda alpha: b.loss(self.mixture(net, alpha).mine(b.x)))(alpha)
        return {"mixing.alpha": (alpha - me.lr * slope).clamp(0, 1)}  # Eq. 10

    def predict(self, net, x, me):
        return self.mixture(net, net["mixing"]["alpha"]).mine(x)
