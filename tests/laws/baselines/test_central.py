"""Central: one model on everybody's samples."""

import torch

from tests.support.plain import Followed, largest


def test_an_epoch_in_one_batch_is_a_step_on_all_samples():
    """The second epoch of a round begins where the first one ended for all, which no mean of clients does."""
    run = Followed("central", batch=100, epochs=2, participation=1.0, rounds=2)
    everything, w = torch.cat(run.train), run.start
    for number in range(2):
        for _ in range(2):
            w = run.step(w, run.x[everything], run.y[everything], run.lr)
        assert largest(w, run.copies(number)) < 1e-14
