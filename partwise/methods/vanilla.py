"""Vanilla layer scheduling: base layers unfreeze one after another, from the input to the output.

References:
    Jang, Choi: Personalized Federated Learning via Sequential Layer Expansion in Representation Learning. 2024.
"""

from partwise.methods.fedbabu import FedBABU
from partwise.schedule import Schedule


class Vanilla(Schedule(FedBABU, "forwards")):
    """FedBABU, or another host, that trains and sends what is unfrozen (Algorithm 1, Eq. 5)."""
