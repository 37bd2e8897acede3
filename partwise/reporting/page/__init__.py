"""Runs to look at: what their folders hold, one page for a browser, and the same charts as pictures."""
