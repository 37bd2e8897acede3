"""FedGH: every client has its own body; the server trains one head for all on class means of features.

References:
    Yi, Wang, Liu, Shi, Yu: FedGH: Heterogeneous Federated Learning with Generalized Global Header. ACM Multimedia,
    2023.
"""

from partwise.losses import train_on_class_means
from partwise.method import LOCAL, SERVER, Method
from partwise.network.view import ClassRows
from partwise.options import option


class FedGH(Method):
    """Class means go up, the head that the server trained on them replaces everybody's (Algorithm 1)."""

    needs_classes = True
    share = {"body": LOCAL, "head": SERVER}
    server_lr: float | None = option(
        None, "Learning rate of the server's head, which follows the schedule of --lr; unset: --lr.", minimum=0
    )
    predict_global = None

    def report(self, net, b, me):
        return {"features": ClassRows.of(net.body(b.x), b)}

    def aggregate(self, server, updates):
        lr = self.lr if self.server_lr is None else self.server_lr
        rate, random = lr * server.decay(server.round), server.stream("head", server.round)
        train_on_class_means(server, "head", updates.extras["features"], rate, batch=1, epochs=1, random=random)

    def adapt(self):
        return self.phases()  # the authors test a client after its local round, with the head that it trained there
