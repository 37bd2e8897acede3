"""The transport of messages: Flower, its processes, keys, and the proxy in front of them."""
