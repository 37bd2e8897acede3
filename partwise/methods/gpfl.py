"""GPFL: a conditional valve splits features into global and personal ones.

References:
    Zhang, Hua, Wang, Song, Xue, Ma, Cao, Guan: GPFL: Simultaneously Learning Global and Personalized Feature
    Information for Personalized Federated Learning. ICCV 2023.
"""

import torch
import torch.nn.functional as F
from torch import nn

from partwise.method import ALL, LOCAL, Method, Move, Phase
from partwise.options import option


class Embeddings(nn.Embedding):
    """The global category embeddings (GCE), a vector for each class; returns the cosines of features with them."""

    def forward(self, features):
        return F.normalize(features) @ F.normalize(self.weight).T


class Valve(nn.Module):
    """The conditional valve (CoV): turns a condition into a factor and a shift for every feature."""

    def __init__(self, size):
        super().__init__()
        self.gamma, self.beta = (
            nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.LayerNorm(size)) for _ in ("gamma", "beta")
        )

    def forward(self, condition):
        return self.gamma(condition), self.beta(condition)


class GPFL(Method):
    """Body, embeddings and valve are shared, every client has a head of its own (Algorithm 1)."""

    needs_classes = True
    share = {"*": ALL, "head": LOCAL}
    magnitude_weight: float = option(0.01, "Weight of the distance to the class's embedding (lambda).", minimum=0)
    guidance_decay: float = option(0.1, "Weight decay of the embeddings and the valve (mu).", minimum=0)
    predict_global = None

    def build(self, parts, sizes):
        embeddings = Embeddings(sizes.classes, sizes.features)
        return parts.add("embeddings", embeddings).add("valve", Valve(sizes.features))

    def phases(self):
        return Phase(Move("*", weight_decay={"embeddings": self.guidance_decay, "valve": self.guidance_decay}))

    def loss(self, net, b, me):
        z, received = net.body(b.x), me.got["embeddings"]["weight"]
        generic = self.through_valve(net, z, received.mean(0))
        distance = (generic - received[b.y]).norm(dim=1)
        guidance = b.ce(net.embeddings(generic)) + self.magnitude_weight * b.mean(distance)  # angle and magnitude
        return b.ce(net.head(self.personal(net, z, me))) + guidance

    def personal(self, net, z, me):
        """Return features under the personal condition: the received embeddings, weighed by the client's labels."""
        share = me.counts / me.samples.clamp(min=1)
        return self.through_valve(net, z, share @ me.got["embeddings"]["weight"])

    def through_valve(self, net, z, condition):
        gamma, beta = net.valve(condition)
        return torch.relu(z * (1 + gamma) + beta)

    def predict(self, net, x, me):
        return net.head(self.personal(net, net.body(x), me))
