"""FedAMP: every client is regularised towards a mix of all models, in which similar models weigh most.

References:
    Huang, Chu, Zhou, Wang, Liu, Pei, Zhang: Personalized Cross-Silo Federated Learning on Non-IID Data. AAAI 2021.
"""

from typing import Literal

import torch

from partwise.method import MIXED_GUIDE, Method
from partwise.options import option


class FedAMP(Method):
    """The server makes a cloud model u_i for each, a client trains its own near it (Algorithm 1)."""

    share = {"*": MIXED_GUIDE}
    penalty: float | None = option(
        None,
        "Weight lambda, divided by alpha, of the pull towards the mix; unset: sigma/participants, with cosine 1.",
        minimum=0,
    )
    similarity: Literal["distance", "cosine"] = option(
        "distance", "Similarity of two models: by their distance (FedAMP), or by their angle (HeurFedAMP)."
    )
    scale: float | None = option(
        None, "Scale sigma; unset: the median squared distance between a round's models, with cosine 1.", above=0
    )
    step: float | None = option(
        None,
        "Step alpha; unset: the largest that leaves own models at least 1/participants of their mix, with cosine 1.",
        above=0,
    )
    self_weight: float | None = option(
        None,
        "Weight of a client's own model in its mix; unset: 1/participants.",
        minimum=0,
        maximum=1,
        when="similarity=cosine",
    )
    start_from: Literal["own", "cloud"] = option(
        "own", "Model from which a client's round starts: its own, or its mix."
    )
    predict_global = None

    def begin(self, server, run):
        if self.similarity == "cosine":  # no alpha is in its mix: it is the same in all rounds
            self.couple(server, alpha=self.step or 1.0, unset=1.0)
        else:  # nothing is mixed yet: without an alpha or a lambda nothing pulls
            self.couple(server, alpha=self.step or torch.inf, unset=0.0)

    def couple(self, server, alpha, unset):
        """Set the weight of the pull, by the alpha of the mix."""
        penalty = unset if self.penalty is None else self.penalty
        server.memory["pull"] = next(iter(server.copies.values())).values.new_tensor(float(penalty / alpha))

    def down(self, server):
        return {"pull": server.memory["pull"]}

    def start(self, net, me):
        return me.got["*"] if self.start_from == "cloud" else {}

    def loss(self, net, b, me):
        mine, cloud = net["*"], me.got["*"]  # without what a schedule still freezes
        distance = sum((mine[name] - value).square().sum() for name, value in cloud.items())
        return b.loss(net(b.x)) + me.got.pull / 2 * distance  # lambda / (2 alpha)

    def mix(self, server, updates):
        if len(updates.clients) == 1:
            return None  # nobody to mix with: the own model
        models = [value.flatten(1) for value in updates.parts.values()]
        matrix = torch.zeros(server.clients, len(updates.clients), dtype=torch.float64)
        if self.similarity == "cosine":
            matrix[updates.clients] = self.by_angle(models)
        else:
            matrix[updates.clients], scale, alpha = self.by_distance(models)
            self.couple(server, alpha, unset=scale / len(updates.clients))
        return matrix

    def by_distance(self, models):
        """Return xi_ij = alpha A'(|w_i - w_j|^2), A(x) = 1 - exp(-x / sigma), xi_ii the rest of 1; sigma and alpha."""
        plain = "donot_use_mm_for_euclid_dist"  # by a product of matrices, small distances would be lost
        squares = [torch.cdist(each, each, compute_mode=plain).square() for each in models]
        distance = torch.stack(squares).sum(0).double().cpu()
        distance.fill_diagonal_(torch.inf)
        scale = self.scale or distance[distance.isfinite()].quantile(0.5).clamp(min=1e-12)
        derivative = torch.exp(-distance / scale) / scale
        most = derivative.sum(1).max().clamp(min=1e-300)
        alpha = (1 / most).clamp(max=self.step) if self.step else (1 - 1 / len(distance)) / most
        return alpha * derivative + torch.diag(1 - alpha * derivative.sum(1)), scale, alpha

    def by_angle(self, models):
        """Return xi_ij ~ exp(sigma cos(w_i, w_j)), j != i, which share 1 - xi_ii."""
        products = torch.stack([each @ each.T for each in models]).sum(0).double().cpu()
        length = products.diagonal().sqrt()
        cosine = (products / (length[:, None] * length).clamp(min=1e-300)).fill_diagonal_(-torch.inf)
        own = 1 / len(cosine) if self.self_weight is None else self.self_weight
        return ((1 - own) * torch.softmax((self.scale or 1) * cosine, 1)).fill_diagonal_(own)
