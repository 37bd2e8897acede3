"""Per-FedAvg: an initial model that is good after one gradient step on a client's own data.

References:
    Fallah, Mokhtari, Ozdaglar: Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
    Meta-Learning Approach. NeurIPS 2020.
"""

from typing import Literal

from partwise.method import ALL, Method, Move, Phase
from partwise.options import option


class PerFedAvg(Method):
    """Algorithm 1 with the paper's two ways around the Hessian, FO and HF; the outer rate beta is the run's `lr`."""

    share = {"*": ALL}
    order: Literal["first", "hessian_free"] = option(
        "first", "Approximation: without the Hessian (FO), or by a difference of gradients (HF)."
    )
    inner_lr: float | None = option(None, "Learning rate alpha of the inner step; unset: --lr.", minimum=0)
    difference: float = option(
        1e-3, "Step size delta of the difference of gradients.", above=0, when="order=hessian_free"
    )
    adaptation: Literal["step", "epoch"] = option(
        "step", "Adaptation before a client is tested: one inner step, or an epoch."
    )

    def phases(self):
        return Phase(Move("*", gradient="outer", batches=2 if self.order == "first" else 3))

    def outer(self, net, b, me):
        rate = me.lr if self.inner_lr is None else self.inner_lr * me.lr / max(self.lr, 1e-30)  # with the run's decay
        adapted = net.step(net.grad(self.loss, b[0], me), rate)  # the inner step
        grads = adapted.grad(self.loss, b[1], me)
        if self.order == "first":
            return grads  # FO: as if the inner step did not depend on w
        ahead, behind = (net.step(grads, way).grad(self.loss, b[2], me) for way in (-self.difference, self.difference))
        curved = {name: (ahead[name] - behind[name]) / (2 * self.difference) for name in grads}  # H g
        return {name: grad - rate * curved[name] for name, grad in grads.items()}  # HF: (I - alpha H) g

    def adapt(self):
        inner = Move("*", lr=self.inner_lr, momentum=0.0, weight_decay=0.0)
        return Phase(inner, steps=1) if self.adaptation == "step" else Phase(inner, epochs=1)
