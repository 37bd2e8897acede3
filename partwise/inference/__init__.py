"""Models that a run left, in another program: loaded, asked for predictions, exported."""
