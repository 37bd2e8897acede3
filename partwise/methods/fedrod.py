"""FedRoD: a generic head trained with a balanced loss, and a personal head for the client's own distribution.

References:
    Chen, Chao: On Bridging Generic and Personalized Federated Learning for Image Classification. ICLR 2022.
"""

from torch import nn

from partwise.losses import balanced_logits
from partwise.method import ALL, LOCAL, Method, Stage
from partwise.options import option


class FedRoD(Method):
    """Two heads on one body, two losses on one forward pass (Sec. 4)."""

    needs_classes = True
    balance_strength: float = option(1.0, "Exponent gamma of class counts in the balanced softmax.", minimum=0)
    hypernetwork: bool = option(
        False, "Generate the personal head from the client's class shares, by a shared network."
    )
    hypernetwork_hidden: int = option(
        16, "Hidden units of the hypernetwork.", minimum=1, maximum=4096, when="hypernetwork"
    )

    def build(self, parts, sizes):
        if not self.hypernetwork:
            return parts.like("head", name="p_head")
        size = sum(value.numel() for value in parts.module("head").parameters())
        first, second = nn.Linear(sizes.classes, self.hypernetwork_hidden), nn.Linear(self.hypernetwork_hidden, size)
        return parts.add("maker", nn.Sequential(first, nn.ReLU(), second))

    def stages(self):
        personal = {} if self.hypernetwork else {"p_head": LOCAL}
        yield Stage(self.phases(), share={"*": ALL, **personal}, rounds=self.rounds)

    def loss(self, net, b, me):
        z = net.body(b.x)
        generic = net.head(z)
        personal = self.p_head(net, z.detach(), me)  # it teaches neither the body nor the generic head
        balanced = b.ce(balanced_logits(generic, me.counts, self.balance_strength))
        return balanced + b.ce(generic.detach() + personal)

    def p_head(self, net, z, me):
        if not self.hypernetwork:
            return net.p_head(z)
        made = net.maker((me.counts / me.samples.clamp(min=1))[None])[0]
        head = net["head"]
        pieces = zip(head.items(), made.split([value.numel() for value in head.values()]), strict=True)
        return net.with_tensors({f"head.{name}": piece.view_as(value) for (name, value), piece in pieces}).head(z)

    def predict(self, net, x, me):
        z = net.body(x)
        return net.head(z) + self.p_head(net, z, me)
