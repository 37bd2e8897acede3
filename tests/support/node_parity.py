"""Settings at which runs over nodes are compared with runs in simulation, and the comparison."""

HOSTED = [[0, 3, 4], [1, 6], [2, 5, 7]]
SETTINGS = {"rounds": 3, "lr": 0.05, "batch": 8, "dtype": "float64", "model": "tabular", "eval_every": 1, "threads": 1}
OWN = {"fed3p2p": {"coordinators_a": 2, "coordinators_b": 2}, "fedbn": {"model": "cnn-digits", "batch_norm": True}}


def distance(simulation, other):
    """How far the server's copies and the clients' own tensors are apart."""
    worst = 0.0
    for name, copies in simulation.server.copies.items():
        theirs = other.server.copies[name]
        assert copies.values.shape == theirs.values.shape, name
        worst = max(worst, float((copies.values - theirs.values).abs().max()))
    return worst
