"""MOON: FedAvg with a contrastive loss that pulls features to the received model and away from the last local one.

References:
    Li, He, Song: Model-Contrastive Federated Learning. CVPR 2021.
"""

import torch
import torch.nn.functional as F

from partwise.method import ALL, Method
from partwise.options import option


class Moon(Method):
    """Algorithm 1 without a projection head; `me.keep` holds the client's model after its last round."""

    share = {"*": ALL}
    contrast_weight: float = option(1.0, "Weight mu of the contrast between models.", minimum=0)
    temperature: float = option(0.5, "Temperature tau of the contrast.", above=0)

    def keep(self, net):
        own = net["*"]
        return {**own, "took_part": next(iter(own.values())).new_zeros(())}

    def loss(self, net, b, me):
        z = net.body(b.x)
        models = z, me.got.body(b.x), self.previous(net, me).body(b.x)
        own, received, previous = (features.flatten(1) for features in models)
        near = F.cosine_similarity(own, received, dim=1)  # the denominator is at least 1e-8
        far = F.cosine_similarity(own, previous, dim=1)
        contrast = -F.logsigmoid((near - far) / self.temperature)  # Eq. 3: a softmax over the two
        return b.loss(net.head(z)) + self.contrast_weight * b.mean(contrast)  # Eq. 4

    def previous(self, net, me):
        """Return the client's last model, or the received one before its first round."""
        received, took_part = me.got["*"], me.keep["took_part"] > 0  # what a schedule still freezes is the same in all
        last = {name: torch.where(took_part, me.keep[name], value) for name, value in received.items()}
        return net.with_tensors(last)

    def finish(self, net, me):
        return {**net["*"], "took_part": torch.ones_like(me.keep["took_part"])}, {}

    def adapt(self):
        return self.phases()
