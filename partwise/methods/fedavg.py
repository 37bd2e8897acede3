"""FedAvg: all clients train one model; the server averages it.

References:
    McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks from
    Decentralized Data. AISTATS 2017.
"""

from partwise.method import ALL, Method


class FedAvg(Method):
    """The whole model is shared (Algorithm 1)."""

    share = {"*": ALL}

    def adapt(self):
        return self.phases()  # its local model, where tables ask for one: the global model after a local round
