"""FedRep: like FedPer, but first the head is trained on the received body, then the body.

References:
    Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated Learning.
    ICML 2021.
"""

from partwise.method import ALL, LOCAL, Method, Move, Phase
from partwise.options import option


class FedRep(Method):
    """Many steps on the head, then a few on the body (Algorithm 1)."""

    share = {"body": ALL, "head": LOCAL}
    head_epochs: int | None = option(
        None, "Epochs of training the head; unset: one less than --epochs, at least one.", minimum=1
    )
    body_epochs: int = option(1, "Epochs of training the body.", minimum=1)

    def phases(self):
        head_epochs = self.head_epochs or max(1, self.epochs - 1)
        return [Phase(Move("head"), epochs=head_epochs), Phase(Move("body"), epochs=self.body_epochs)]
