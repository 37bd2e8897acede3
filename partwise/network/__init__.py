"""The network as a method sees it: named parts, the layers that engines exchange, `net`, `b` and `me`."""
