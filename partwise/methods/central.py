"""Central: all training samples in one place, without a federation; the usual upper bound.

One model learns from everybody's samples, an epoch over all of them in a round, and is tested at every client. No model
travels; what would have to travel are the samples, once, and that is what the ledger shows.
"""

from partwise.method import Method


class Central(Method):
    pooled = True
