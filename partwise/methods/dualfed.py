"""DualFed: a generalised representation before a personal projector, and a personalised one after it.

References:
    DualFed: Enjoying both Generalization and Personalization in Federated Learning via Hierarchical Representations.
    ACM Multimedia, 2024.
"""

from typing import Literal

import torch

from partwise.losses import supervised_contrast
from partwise.method import ALL, LOCAL, Method, Move, Phase, Stage, train
from partwise.network.models import projector
from partwise.options import option


class DualFed(Method):
    """Encoder and global classifier are shared; projector and personal classifier stay (Algorithm 1)."""

    needs_classes = True
    aggregation = "uniform"
    contrast_weight: float = option(1.0, "Weight of the contrastive loss (lambda).", minimum=0)
    temperature: float = option(0.2, "Temperature of the contrastive loss (tau).", above=0)
    strategy: Literal["stagewise", "simultaneous"] = option(
        "stagewise", "Train the global classifier after the rest, or at the same time."
    )
    classifier_position: Literal["dualfed", "p", "g"] = option(
        "dualfed",
        "Input of the global classifier: the encoder's output, or that of a personal (p) or shared (g) projector.",
    )
    projector_depth: int = option(2, "Number of linear layers in the projector.", minimum=1, maximum=16)
    projector_hidden: int = option(
        256, "Width of the projector's hidden layers.", minimum=1, maximum=8192, when="not projector_depth=1"
    )
    projector_norm: bool = option(True, "Use batch-norm in the projector.")
    stage2_bn: Literal["train", "eval"] = option(
        "train", "Mode of batch-norm while the global classifier trains.", when="strategy=stagewise"
    )
    ensemble: Literal["logits", "probs", "personal", "global"] = option(
        "logits", "Combination of both branches for prediction."
    )

    def __post_init__(self):
        super().__post_init__()
        if self.classifier_position == "p":  # the global classifier follows a projector that is not shared
            self.predict_global = None

    def build(self, parts, sizes):
        made = projector(sizes.features, self.projector_depth, self.projector_hidden, self.projector_norm)
        return parts.like("head", name="p_head").add("projector", made)

    def stages(self):
        shared = ALL if self.classifier_position == "g" else LOCAL
        share = {"body": ALL, "head": ALL, "projector": shared, "p_head": LOCAL}  # running values stay local
        yield Stage(self.phases(), share=share, rounds=self.rounds)

    def phases(self):
        if self.strategy == "simultaneous":
            return train("*", "together")
        return [
            Phase(Move("body projector p_head", "main")),  # stage 1
            Phase(Move("head", "generic"), mode=self.stage2_bn),  # stage 2
        ]

    def main(self, net, b, me):
        u = net.projector(net.body(b.x))
        return b.ce(net.p_head(u)) + self.contrast_weight * supervised_contrast(u, b, self.temperature)  # line 19

    def generic(self, net, b, me):
        z = net.body(b.x)
        u = net.projector(z)  # where the classifier is on z, only for its running values
        return b.ce(net.head(self.seen(z, u).detach()))

    def together(self, net, b, me):
        z = net.body(b.x)
        u = net.projector(z)
        contrast = self.contrast_weight * supervised_contrast(u, b, self.temperature)
        return b.ce(net.p_head(u)) + contrast + b.ce(net.head(self.seen(z, u)))

    def seen(self, z, u):
        """Return the input of the global classifier."""
        return z if self.classifier_position == "dualfed" else u

    def predict(self, net, x, me):
        z = net.body(x)
        u = net.projector(z)
        personal, generic = net.p_head(u), net.head(self.seen(z, u))
        if self.ensemble == "probs":
            return torch.logaddexp(personal.log_softmax(1), generic.log_softmax(1))  # no probability rounded to 0
        return {"logits": personal + generic, "personal": personal, "global": generic}[self.ensemble]

    def predict_global(self, net, x):
        z = net.body(x)
        return net.head(self.seen(z, net.projector(z)))
