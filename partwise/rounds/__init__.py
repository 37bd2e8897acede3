"""A round, whatever carries it out: plan, batches, a client's part in it, what travels, the gate, the mixing."""
