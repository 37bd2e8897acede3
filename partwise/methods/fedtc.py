"""FedTC: two classifiers; the client's own is kept and trained, and the received one trains the extractor.

References:
    Liu, Wang, Liu, Gheisari, Xu, Jiang, Zhang: FedTC: A Personalized Federated Learning Method with Two Classifiers.
    Computers, Materials & Continua, 2023.
"""

from typing import Literal

from partwise.errors import ConfigError
from partwise.method import ALL, GUIDE, LOCAL, Method, Move, Phase, Stage
from partwise.options import option


class FedTC(Method):
    """Both classifiers are averaged, but the average only guides: a client never loses its own (Sec. 4)."""

    lr_classifier: float | None = option(None, "Learning rate of a client's own classifier; unset: --lr.", minimum=0)
    reset_local_classifier: bool = option(
        False, "Start every round from the received classifier (line 13).", when="share_classifier"
    )
    guide: Literal["global", "local"] = option("global", "Classifier whose loss trains the extractor.")
    share_classifier: bool = option(True, "Share the classifier; otherwise --guide must be local.")

    def stages(self):
        if not self.share_classifier and self.guide == "global":
            raise ConfigError(
                "guide = global needs the received classifier: set share_classifier = yes or guide = local"
            )
        head = LOCAL if not self.share_classifier else ALL if self.reset_local_classifier else GUIDE
        yield Stage(self.phases(), share={"body": ALL, "head": head}, rounds=self.rounds)

    def phases(self):
        return Phase(Move("body head", "two_classifiers", lr={"head": self.lr_classifier}))

    def two_classifiers(self, net, b, me):
        z = net.body(b.x)  # one forward pass serves both
        teacher = me.got if self.guide == "global" else net.fixed("head")
        return b.loss(net.head(z.detach())) + b.loss(teacher.head(z))  # Eq. 5: my classifier; Eq. 6: my extractor
