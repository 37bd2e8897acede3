"""Anti layer scheduling: base layers unfreeze one after another, from the output to the input.

References:
    Jang, Choi: Personalized Federated Learning via Sequential Layer Expansion in Representation Learning. 2024.
"""

from partwise.methods.fedbabu import FedBABU
from partwise.schedule import Schedule


class Anti(Schedule(FedBABU, "backwards")):
    """FedBABU, or another host, that trains and sends what is unfrozen (Algorithm 1, Eq. 6)."""
