"""Ditto (Li et al. 2021, Algorithm 1): FedAvg, and beside it a network of one's own that is pulled towards it."""

from partwise import ALL, LOCAL, Method, Move, Phase, option


class Ditto(Method):
    share = {"*": ALL, "mine": LOCAL}
    pull: float = option(1.0, "Weight of the pull towards the received network (lambda).", minimum=0)

    def build(self, parts, task):
        return parts.copy("*", name="mine")

    def phases(self):
        return [Phase(Move("mine", "personal")), Phase(Move("body head"))]

    def personal(self, net, b, me):
        received = me.got["*"]
        away = sum((value - received[name]).square().sum() for name, value in net["mine"].items())
        return b.ce(net.mine(b.x)) + self.pull / 2 * away

    def predict(self, net, x, me):
        return net.mine(x)
