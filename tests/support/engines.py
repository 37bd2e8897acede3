"""Engines at their limits: workers without processes, blocks that do not fit into memory."""

import pickle
from concurrent.futures import Executor, Future
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from partwise.engines.shared_memory import Mapped
from partwise.engines.vector import Vector
from partwise.engines.workers import learn


class InThisProcess(Executor):
    """Stands for the processes of workers: jobs run here, but all that would cross processes is pickled as there."""

    def __init__(self, workers: int, begin: Any, known: tuple[Any, ...]):
        learn(*(crossed(each) if isinstance(each, Mapped) else each for each in known))

    def kill(self) -> None:
        pass

    def submit(self, function: Any, /, *arguments: Any, **keywords: Any) -> Future[Any]:
        future: Future[Any] = Future()
        function, arguments = crossed((function, arguments))
        try:
            future.set_result(crossed(function(*arguments)))
        except Exception as error:
            future.set_exception(crossed(error))
        return future


def crossed(message: Any) -> Any:
    """What another process makes of a message."""
    return pickle.loads(ForkingPickler.dumps(message))


def short_of_memory(monkeypatch: Any, most: int) -> list[int]:
    """Blocks of more than `most` clients do not fit; returns the widths that were tried."""
    execute, tried = Vector.execute, list[int]()

    def limited(self: Vector, request: Any, client: Any, common: Any, batches: Any) -> Any:
        tried.append(len(batches))
        if len(batches) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return execute(self, request, client, common, batches)

    monkeypatch.setattr(Vector, "execute", limited)
    return tried
