"""FedBABU: the body is trained against a head that never changes; clients fine-tune a copy before they are tested.

References:
    Oh, Kim, Yun: FedBABU: Toward Enhanced Representation for Federated Image Classification. ICLR 2022.
"""

from typing import Literal

from partwise.method import ALL, FROZEN, Method, Move, Phase
from partwise.options import option


class FedBABU(Method):
    """Body aggregation and body update; the head stays at its common initial value (Algorithm 1)."""

    share = {"body": ALL, "head": FROZEN}
    finetune_epochs: int = option(5, "Epochs of fine-tuning before a client is tested.", minimum=1)
    finetune_lr: float | None = option(None, "Learning rate of fine-tuning; unset: that of the last round.", minimum=0)
    finetune_part: Literal["all", "head"] = option("all", "What is fine-tuned.")

    def adapt(self):
        tuned = "*" if self.finetune_part == "all" else "head"
        return Phase(Move(tuned, lr=self.finetune_lr, decay=False), epochs=self.finetune_epochs)
