"""FedETF: a fixed classifier with class vectors as far apart as possible (a simplex ETF), and balanced softmax.

References:
    Li, Shang, He, Lin, Wu: No Fear of Classifier Biases: Neural Collapse Inspired Federated Learning with Synthetic and
    Fixed Classifier. ICCV 2023.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from partwise.errors import ConfigError
from partwise.losses import balanced_logits
from partwise.method import ALL, FROZEN, Method, Move, Phase, train
from partwise.options import option


class SimplexETF(nn.Linear):
    """A linear layer without bias: unit class vectors, any two with the cosine -1 / (classes - 1)."""

    def __init__(self, features, classes):
        super().__init__(features, classes, bias=False)

    def reset_parameters(self):
        nn.init.orthogonal_(self.weight)  # U
        classes = self.out_features
        centred = torch.eye(classes).to(self.weight) - 1 / classes
        self.weight.data = math.sqrt(classes / (classes - 1)) * centred @ self.weight.data


class Scale(nn.Module):
    """One number that learns: how steep the softmax is."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def reset_parameters(self):
        nn.init.ones_(self.factor)

    def forward(self, logits):
        return self.factor * logits


class FedETF(Method):
    """Body, projection layer and scale are shared; the head is fixed until a client makes it its own (Sec. 4)."""

    needs_classes = True
    share = {"body": ALL, "projector": ALL, "scale": ALL, "head": FROZEN}
    personal_rounds: int = option(20, "Rounds of personalisation: the head, then the projection.", minimum=0)
    personal_epochs: int = option(3, "Epochs on each of the two per round of personalisation.", minimum=1)
    personal_head_lr: float = option(0.1, "Learning rate of the head in personalisation.", minimum=0)
    personal_projector_lr: float = option(0.05, "Learning rate of the projection in personalisation.", minimum=0)

    def build(self, parts, sizes):
        if sizes.classes > sizes.features:
            given = f"{sizes.classes} classes and {sizes.features} features"
            raise ConfigError(f"fedetf needs at least as many features as classes; here are {given}")
        if "projector" in parts.layers("body"):  # the layer that --projector adds
            parts = parts.cut("body", projector="projector")
        elif "projector" not in parts.modules:
            parts = parts.add("projector", nn.Linear(sizes.features, sizes.features))
        fixed = parts.add("simplex", SimplexETF(sizes.features, sizes.classes))  # from the stream of its own name
        return parts.replace("head", fixed.modules["simplex"]).add("scale", Scale())

    def phases(self):
        return train("body projector scale")

    def loss(self, net, b, me):
        return b.ce(balanced_logits(self.predict(net, b.x, me), me.counts))

    def predict(self, net, x, me):
        return self.predict_global(net, x)

    def predict_global(self, net, x):
        return net.scale(net.head(F.normalize(net.projector(net.body(x)))))

    def adapt(self):
        head = Move("head", "personal", lr=self.personal_head_lr, momentum=0.0, weight_decay=0.0, decay=False)
        projector = Move(
            "projector", "personal", lr=self.personal_projector_lr, momentum=0.9, weight_decay=5e-4, decay=False
        )
        turn = [Phase(move, epochs=self.personal_epochs, restart_optimizer=True) for move in (head, projector)]
        return [self.phases(), *turn * self.personal_rounds]

    def personal(self, net, b, me):
        return b.ce(self.predict(net, b.x, me))
