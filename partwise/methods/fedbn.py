"""FedBN: FedAvg, but every client keeps its normalisation layers.

References:
    Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization. ICLR 2021.
"""

from partwise.method import ALL, LOCAL, Method


class FedBN(Method):
    """Scale, shift and running values of normalisation layers never travel (Algorithm 1)."""

    share = {"*": ALL, "@norm": LOCAL}
