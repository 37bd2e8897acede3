"""Runs over real nodes: what the server and the silos say to each other, and how it travels."""
