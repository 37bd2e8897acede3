"""FedBABU: the body is trained with a fixed head; clients fine-tune a copy before they are tested.

References:
    Oh, Kim, Yun: FedBABU: Toward Enhanced Representation for Federated Image Classification. ICLR 2022.
"""

from partwise.method import ALL, FROZEN, Method, Move, Phase


class FedBABU(Method):
    """Body aggregation and body update; the head stays at its common initial value (Algorithm 1)."""

    share = {"body": ALL, "head": FROZEN}

    def adapt(self):
        return Phase(Move(self.finetune_part, lr=self.finetune_lr, decay=False), epochs=self.finetune_epochs)
