"""A round, the same for every engine: plan, mini-batches, a client's job, messages, acceptance and mixing."""
