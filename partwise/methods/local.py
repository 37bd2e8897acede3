"""Local: every client trains alone, from the common initial model.

The reference that every personalised method must beat.
"""

from partwise.method import LOCAL, Method


class Local(Method):
    """No communication at all; `share` says the rest."""

    share = {"*": LOCAL}
    predict_global = None
