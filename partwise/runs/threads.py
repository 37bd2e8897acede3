"""How many threads torch gets on a CPU: one for small steps, however many processors there are.

Threads wait for each other in every operation. In a small one that costs more than the second thread brings; and where
other work takes a processor away, all of them wait for the one that lost it.
"""

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from partwise.engines.client_engine import ClientEngine
from partwise.engines.probe import outputs
from partwise.engines.vector import Vector
from partwise.engines.workers import TRAINING_PASSES, Workers
from partwise.rounds.batches import EVALUATION_BATCH
from partwise.rounds.client import ClientProgram
from partwise.runs.config import Run

# Operations of a step. On an idle machine two threads are a third to a half faster from 1e8 on; beside one busy process
# they take half as long again up to 1e10, beside several up to forty times as long. The number of threads changes the
# last bits of a result, so it depends on the step alone, not on what else the machine does; a run that has an idle
# processor to gain and many clients takes workers. `python -m benchmarks.threads` measures it.
THREADS_PAY = 1e10


def choose_threads(settings: Run, engine: ClientEngine, probed: Tensor) -> tuple[int, str]:
    """Return how many threads a run uses, and a note that says why; no note where there was nothing to choose.

    `probed` are samples to try the network with.
    """
    most = torch.get_num_threads()
    if settings.threads is not None or most == 1 or engine.device.type != "cpu":
        return settings.threads or most, ""
    if operations_of_step(engine, settings.block, forward_operations(engine.program, probed)) < THREADS_PAY:
        return 1, "threads: 1, because training steps are small"
    return most, f"threads: {most}, because training steps are large"


def forward_operations(program: ClientProgram, probed: Tensor) -> float:
    """Return the floating-point operations that the network needs for one of these samples."""
    with FlopCounterMode(display=False) as counter:
        outputs(program.parts, program.scope, probed)
    return counter.get_total_flops() / len(probed)


def operations_of_step(engine: ClientEngine, block: int | None, forward: float) -> float:
    """Return about how many operations this process does in one go."""
    if isinstance(engine, Workers):  # they train, one thread each; the global model is tested here
        return forward * EVALUATION_BATCH
    method, together = engine.program.method, 1.0
    if isinstance(engine, Vector):
        together = block or method.clients_per_round or method.participation * len(engine.train)
    return TRAINING_PASSES * forward * engine.drawing.batch * together
