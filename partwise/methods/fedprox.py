"""FedProx: FedAvg with a pull towards the received model.

References:
    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks. MLSys 2020.
"""

from partwise.method import ALL, Method
from partwise.options import option


class FedProx(Method):
    """The local objective is the loss plus mu/2 times the squared distance to the received model (Eq. 2)."""

    share = {"*": ALL}
    proximal_weight: float = option(0.01, "Weight mu of the pull towards the received model.", minimum=0)

    def loss(self, net, b, me):
        mine, received = net["*"], me.got["*"]  # without what a schedule still freezes
        distance = sum((mine[name] - value).square().sum() for name, value in received.items())
        return b.loss(net(b.x)) + self.proximal_weight / 2 * distance

    def adapt(self):
        return self.phases()
