"""FedAMP (Huang et al. 2021): everybody is pulled towards a mix of the models that are like its own."""

import torch

from partwise import CLOUD, Method, option


class FedAMP(Method):
    share = {"*": CLOUD}
    predict_global = None
    pull: float = option(1.0, "Weight of the pull towards the own mix (lambda / alpha).", minimum=0)
    width: float = option(1.0, "Scale of the squared distances between models (sigma), times their median.", above=0)

    def loss(self, net, b, me):
        cloud = me.got["*"]
        away = sum((value - cloud[name]).square().sum() for name, value in net["*"].items())
        return b.ce(net(b.x)) + self.pull / 2 * away  # Eq. 4

    def mix(self, server, updates):
        whole = torch.cat([value.flatten(1) for value in updates.parts.values()], 1)  # a row a model
        distance = torch.cdist(whole, whole).square()
        others = 1 - torch.eye(len(whole), dtype=whole.dtype, device=whole.device)
        near = torch.exp(-distance / (self.width * distance.median().clamp(min=1e-12))) * others / len(whole)
        matrix = whole.new_zeros(server.clients, len(whole))  # a copy for every client; those of absent ones stay
        matrix[updates.clients] = near + torch.diag(1 - near.sum(1))  # Eq. 3
        return matrix
