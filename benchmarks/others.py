"""A round of another library beside the bare loop: python -m benchmarks.others fluke|flower, with a Python that has it.

    python -m venv others && others/bin/pip install torch==2.13.0 fluke-fl "flwr[simulation]"
    PYTHONPATH=. others/bin/python -m benchmarks.others fluke

The work is that of `benchmarks.speed`: FedAvg, clients of equal size, one epoch, SGD, random images, nothing evaluated.
A round of the one follows a round of the other.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.bare import Bare
from benchmarks.images import shape_of
from benchmarks.speed import CASES, Case, federation, timed
from partwise.network.models import build

RATE = 0.01


def network(case: Case) -> nn.Module:
    parts = build(case.model, shape_of(case.model), 10)
    return nn.Sequential(parts.modules["body"], parts.modules["head"])


def clients_of(case: Case) -> list[tuple[Tensor, Tensor]]:
    """Every client's samples as the others want them: float32, normalised beforehand."""
    data = federation(case)
    x = (data.source.x.float() - 127.5) / 127.5
    return [(x[own], data.source.y[own]) for own in data.train]


def fluke(case: Case) -> Iterator[None]:
    """Rounds of fluke-fl, one at a time."""
    without_torchvision()
    from fluke import DDict, FlukeENV
    from fluke.algorithms.fedavg import FedAVG
    from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader

    FlukeENV().set_device("cpu")
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    loaders = [FastDataLoader(x, y, num_labels=10, batch_size=case.batch) for x, y in clients_of(case)]
    container = DummyDataContainer(loaders, [None] * len(loaders), None, 10)
    client = {"batch_size": case.batch, "local_epochs": 1, "loss": "CrossEntropyLoss"}
    client |= {"optimizer": DDict(name="SGD", lr=RATE), "scheduler": DDict(name="StepLR", step_size=1, gamma=1.0)}
    settings = DDict(model=network(case), client=DDict(**client), server=DDict(weighted=True))
    algorithm = FedAVG(case.clients, DataSplitter(container, distribution="iid"), settings)
    while True:
        algorithm.run(1, 1.0)
        yield


def without_torchvision() -> None:
    """PyPI's torchvision may not fit this torch; fluke asks for it when it is imported, and not for this work."""
    try:
        import torchvision  # noqa: F401
    except Exception:
        for name in ("torchvision", "torchvision.datasets", "torchvision.models", "torchvision.transforms"):
            module = sys.modules[name] = ModuleType(name)
            module.__getattr__ = lambda name: type(name, (), {})  # type: ignore[method-assign]


def flower(case: Case, rounds: int) -> list[float]:
    """Seconds of the rounds of flwr's simulation: Ray's processes, one thread each."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    marks: list[float] = []
    held: dict[int, tuple[Tensor, Tensor]] = {}
    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        if not held:
            held.update(enumerate(clients_of(case)))
        x, y = held[int(context.node_config["partition-id"])]
        net = network(case)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(net.parameters(), RATE)
        for index in torch.randperm(len(y)).split(case.batch):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x[index]), y[index]).backward()
            optimiser.step()
        content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
        return Message(content=RecordDict(content), reply_to=message)

    class Timed(FedAvg):
        def aggregate_train(self, *arguments: Any, **keywords: Any) -> Any:
            result = super().aggregate_train(*arguments, **keywords)
            marks.append(time.perf_counter())
            return result

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Timed(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=case.clients)
        strategy.start(grid, ArrayRecord(network(case).state_dict()), num_rounds=rounds + 1)

    run_simulation(server_app, client_app, case.clients, backend_config={"client_resources": {"num_cpus": 1}})
    return [after - before for before, after in pairwise(marks)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=["fluke", "flower"])
    parser.add_argument("--only", default="CNN, 20 clients, batch 10", help="the case whose name begins so")
    parser.add_argument("--images", type=int, default=9_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    found = [case for case in CASES if case.name.lower().startswith(arguments.only.lower())]
    if not found:
        parser.error(f"no case begins with '{arguments.only}'; there are {', '.join(case.name for case in CASES)}")
    case = replace(found[0], method="fedavg", images=arguments.images)
    data, device = federation(case), torch.device("cpu")
    bare = Bare("fedavg", case.model, data.source.x, data.source.y, list(data.train), case.batch, RATE)
    if arguments.library == "flower":  # its rounds follow each other: those of the bare loop come before and after
        loop = [timed(bare.round, device) for _ in range(2)]
        theirs = flower(case, arguments.rounds)
        loop = [*loop[1:], timed(bare.round, device)]
    else:
        rounds = fluke(case)
        step = partial(next, rounds)
        pairs = [(timed(bare.round, device), timed(step, device)) for _ in range(arguments.rounds + 1)][1:]
        loop, theirs = [list(column) for column in zip(*pairs, strict=True)]
    ours, others = statistics.median(loop), statistics.median(theirs)
    told = f"{arguments.library} {others:.2f} s a round, bare loop {ours:.2f} s: x{ours / others:.2f} of the bare loop"
    print(f"{case.name}, {arguments.images} images, {torch.get_num_threads()} threads: {told}")


if __name__ == "__main__":
    main()
