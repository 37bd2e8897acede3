"""Real federations: the same methods on other machines, over Flower."""
