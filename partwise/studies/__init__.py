"""Several runs: comparisons, sweeps, significance, and what can be learned from one run about its method."""
