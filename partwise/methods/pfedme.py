"""pFedMe: personal models are proximal points of the shared model (Moreau envelopes in place of losses).

References:
    Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes. NeurIPS 2020.
"""

from partwise.errors import ConfigError
from partwise.method import ALL, LOCAL, Method, Move, Phase
from partwise.options import option


class PFedMe(Method):
    """The personal model solves Eq. 3 for every mini-batch; the local model steps towards it (Algorithm 1).

    The server's beta is the run's `server_learning_rate`.
    """

    share = {"*": ALL, "personal": LOCAL}
    proximal_weight: float = option(15.0, "Weight lambda of the pull towards the local model.", above=0)
    inner_steps: int = option(5, "Number of steps K towards the proximal point of a mini-batch.", minimum=1)
    personal_lr: float | None = option(None, "Learning rate of the inner steps; unset: --lr.", minimum=0)

    def __post_init__(self):
        super().__post_init__()
        weight = self.proximal_weight
        share = self.lr * weight  # of the way to the personal model, in a local step
        if share > 2 and self.optimizer == "sgd":
            raise ConfigError(
                f"pfedme diverges at lr = {self.lr:g} x proximal_weight = {weight:g}, which is {share:g}; "
                f"at most 2 is allowed: set lr to {2 / weight:.3g} or less"
            )

    def build(self, parts, sizes):
        return parts.copy("*", name="personal")

    def phases(self):
        solve = Move(
            "personal", "proximal", lr=self.personal_lr, momentum=0.0, weight_decay=0.0, repeat=self.inner_steps
        )
        follow = Move("body head", gradient="envelope", momentum=0.0, weight_decay=0.0)
        return Phase(solve, follow, before="at_received", after="keep_up")

    def at_received(self, net, me):
        return {f"personal.{name}": value for name, value in me.got["*"].items()}

    def keep_up(self, net, me):
        """Copy the personal model's running values of batch-norm: the local model is never run."""
        running = {name: value for name, value in net.running.items() if name.startswith("personal.")}
        return {name.removeprefix("personal."): value for name, value in running.items()}

    def proximal(self, net, b, me):
        local = net["body head"]
        distance = sum((value - local[name]).square().sum() for name, value in net["personal"].items())
        return b.loss(net.personal(b.x)) + self.proximal_weight / 2 * distance  # Eq. 7

    def envelope(self, net, b, me):
        personal = net["personal"]
        return {name: self.proximal_weight * (value - personal[name]) for name, value in net["body head"].items()}

    def predict(self, net, x, me):
        return net.personal(x)
