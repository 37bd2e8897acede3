"""Carry out the server's requests: one client at a time, in several processes, or in blocks of clients side by side."""
