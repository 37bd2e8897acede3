"""FedPer: the body is shared, and every client has its own head.

References:
    Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers. 2019.
"""

from partwise.method import ALL, LOCAL, Method


class FedPer(Method):
    """Body and head train together; only the body travels (Algorithms 1 and 2)."""

    share = {"body": ALL, "head": LOCAL}
