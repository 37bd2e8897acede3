"""Central: all training samples in one place, without a federation; the usual upper bound.

A round is an epoch over all clients' samples; every client tests the model. No model is sent: the ledger shows the
bytes of the samples, once.
"""

from partwise.method import Method


class Central(Method):
    """FedAvg's model and loss, trained on the pooled samples of all clients."""

    pooled = True
