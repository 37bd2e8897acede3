import os
import signal

import pytest
import torch

from tests.support.tiers import COLLECTED, TESTS, Collected, markers_of

# One thread a worker: sums do not depend on how many there are, and workers do not fight for cores.
torch.set_num_threads(int(os.environ.get("TEST_THREADS", 1)))

# A shell ignores Ctrl-C in what runs in its background, and Python leaves it so: here tests send it to themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before -m selects by the markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Function]) -> None:
    """Mark tests as the table says, tests/tiers.toml."""
    config.stash[COLLECTED] = []
    for item in items:
        case = item.callspec.id if hasattr(item, "callspec") else ""
        test = Collected(item.path.relative_to(TESTS).as_posix(), item.originalname, case)
        config.stash[COLLECTED].append(test)
        for marker in markers_of(test):
            item.add_marker(marker)
