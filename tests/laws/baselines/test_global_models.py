"""Which methods have no global model: where a network, or a part of it that nobody averages, is a client's own."""

import pytest

from partwise.methods import find, names

OWN_NETWORKS = {"local", "fedamp", "fedfomo", "fedproto"}
OWN_BODIES = {"lg_fedavg", "fedgh", "fedfcd"}
CLUSTERS = {"cfl", "pacfl", "fedclust"}
CONDITIONS = {"gpfl"}  # a client's own classes steer what its network computes


@pytest.mark.parametrize("method", names())
def test_where_there_is_a_global_model(method):
    assert (find(method).predict_global is None) == (method in OWN_NETWORKS | OWN_BODIES | CLUSTERS | CONDITIONS)
