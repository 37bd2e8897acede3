"""LG-FedAvg: every client has its own representation; the head is shared.

References:
    Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally: Federated Learning
    with Local and Global Representations. 2020.
"""

from partwise.errors import ConfigError
from partwise.method import ALL, LOCAL, Method, Stage
from partwise.options import option


class LgFedAvg(Method):
    """Body and head train together; only the head travels (Algorithm 1)."""

    share = {"body": LOCAL, "head": ALL}
    warmup_rounds: int = option(0, "Rounds of FedAvg before bodies become personal.", minimum=0)
    predict_global = None

    def stages(self):
        if self.warmup_rounds >= self.rounds:
            raise ConfigError(
                f"warmup_rounds = {self.warmup_rounds} is not allowed: at most rounds - 1 = {self.rounds - 1}"
            )
        if self.warmup_rounds:
            yield Stage(self.phases(), {"*": ALL}, rounds=self.warmup_rounds)
        yield Stage(self.phases(), self.share, rounds=self.rounds - self.warmup_rounds)
