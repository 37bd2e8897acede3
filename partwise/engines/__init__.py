"""Engines carry out the server's requests: one client at a time, here or in several processes, or blocks of clients
side by side, also those of several runs; and the store of what clients keep."""
