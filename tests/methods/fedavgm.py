"""FedAvgM (Hsu et al. 2019): the server steps towards the mean with momentum."""

from partwise import Method


class FedAvgM(Method):
    server_momentum = 0.9
