import os
import signal

import torch

# One thread a worker: sums do not depend on how many there are, and workers do not fight for cores.
torch.set_num_threads(int(os.environ.get("TEST_THREADS", 1)))

# A shell ignores Ctrl-C in what runs in its background, and Python leaves it so: here tests send it to themselves.
signal.signal(signal.SIGINT, signal.default_int_handler)
