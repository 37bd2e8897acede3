"""How messages travel: Flower, its processes, keys, and the proxy before them."""
