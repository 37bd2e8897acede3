"""SphereFed: features on the unit sphere are trained against a fixed classifier with orthonormal class vectors.

References:
    Dong, Zhang, Li, Kung: SphereFed: Hyperspherical Federated Learning. ECCV 2022.
"""

import torch
import torch.nn.functional as F
from torch import nn

from partwise.method import ALL, EVERYONE, FROZEN, Method, Stage, train
from partwise.options import option


class Orthonormal(nn.Linear):
    """A linear layer without bias, drawn so that its class vectors are orthonormal."""

    def __init__(self, features, classes):
        super().__init__(features, classes, bias=False)

    def reset_parameters(self):
        if self.out_features <= self.in_features:
            nn.init.orthogonal_(self.weight)  # QR of a Gaussian
        else:  # more classes than dimensions: random directions
            nn.init.normal_(self.weight)
            self.weight.data = F.normalize(self.weight.data)


class SphereFed(Method):
    """The body is shared; the head is the same for all and never trained, but calibrated in closed form at the end."""

    needs_classes = True
    calibration: bool = option(True, "Fit the head to the features of all clients after the last round.")
    calibration_ridge: float = option(1.0, "Ridge penalty gamma of the calibration.", above=0, when="calibration")

    def build(self, parts, sizes):
        drawn = parts.add("sphere", Orthonormal(sizes.features, sizes.classes))  # from the stream of its own name
        return parts.replace("head", drawn.modules["sphere"])

    def stages(self):
        yield Stage(train("body"), {"body": ALL, "head": FROZEN}, self.rounds, report=False)

    def loss(self, net, b, me):
        error = self.predict(net, b.x, me) - b.one_hot().to(b.x.dtype)
        return b.mean(error.square().mean(1))

    def features(self, net, x):
        return F.normalize(net.body(x))

    def predict(self, net, x, me):
        return self.predict_global(net, x)

    def predict_global(self, net, x):
        return net.head(self.features(net, x))

    def report(self, net, b, me):
        z = torch.where(b.mask[:, None], self.features(net, b.x), 0.0).to(b.x.dtype)
        return {"gram": z.T @ z, "labelled": z.T @ b.one_hot().to(z.dtype)}

    def end(self, server, run):
        if self.calibration:
            sums = run("report", EVERYONE).extras
            gram, labelled = sums["gram"].double().sum(0), sums["labelled"].double().sum(0)
            ridge = self.calibration_ridge * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
            fitted = torch.linalg.solve(gram + ridge, labelled).T
            server["head"] = {"weight": fitted.to(server["head"]["weight"].dtype)}
