"""How fast a round is, beside a bare loop over clients in the same process: python -m benchmarks.speed --help

Both train on the same clients with the same mini-batches' sizes; a round of the one follows a round of the other, so
that both see the same machine. Partwise is measured end to end: sampling, download, training, upload, mixing, metrics.
Every tenth round is evaluated (`--eval-every 2`: every second); rounds with an evaluation are measured apart from those
without, so one run shows what evaluating costs. The share of the peak is that of
the largest matrix product that this device does in the same precision (float32 convolutions round as torch lets them:
to TF32 on CUDA).
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import torch
import torch._dynamo  # which the first vmap imports: that is no time of a trial

import partwise
from benchmarks import populations, seeds
from benchmarks.bare import Bare
from benchmarks.images import random_source
from partwise.data import Federation, partition
from partwise.engines.packing import makespan, pack_clients
from partwise.engines.vector import Vector
from partwise.records.rounds import RoundRecord
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare

IMAGES, TESTED = 45_000, 5_000  # as many as CIFAR-10 has for ten equal shares of training and test
MOMENTS = 3  # at which the clients' test samples are predicted in an evaluation
MANY = 100_000  # rounds: a run that is long enough for whatever pays in a long one


class Enough(Exception):
    """All rounds that are measured are done."""


@dataclass(frozen=True)
class Case:
    name: str
    method: str = "fedavg"
    model: str = "cnn-5x5"
    clients: int = 20
    batch: int = 10
    rule: str = "equal"  # or dir:0.1
    dtype: str = "float32"
    images: int = IMAGES
    tested: int = TESTED


CNN = [
    Case(f"CNN, {n} clients, batch {b}", clients=n, batch=b)
    for n, b in ((20, 10), (20, 64), (10, 10), (10, 64), (100, 10))
]
RESNET = [Case(f"ResNet-18, 20 clients, batch {b}", model="resnet18", batch=b, images=9_000) for b in (10, 64)]
MLP = [Case("MLP-100, 20 clients, batch 10", model="mlp-100")]
METHODS = [
    Case(f"{method} on CNN, 20 clients, batch 10", method)
    for method in ("fedtc", "dualfed", "fedfcd", "anti", "fed3p2p")
]
CASES = [*CNN, *RESNET, *MLP, *METHODS]


def federation(case: Case) -> Federation:
    """The clients of a case."""
    source = random_source(case.model, case.images, case.tested, torch.Generator().manual_seed(0))
    if case.rule != "equal":
        return partition(source, case.rule, case.clients, seed=0, split="original")
    train = list(torch.arange(case.images).chunk(case.clients))
    test = list((case.images + torch.arange(case.tested)).chunk(case.clients))
    return Federation(source, train, test, torch.cat(test))


def measured(case: Case, arguments: argparse.Namespace, engine: str) -> dict[str, Any]:
    """Seconds of a round of each, interleaved."""
    device, rounds, warm_up = torch.device(arguments.device), arguments.rounds, arguments.warm_up
    data = federation(case)
    settings = {"model": case.model, "batch": case.batch, "lr": 0.01, "device": str(device), "dtype": case.dtype}
    settings |= {"rounds": MANY, "eval_every": arguments.eval_every}
    settings |= {"compile": arguments.compile} if engine in ("auto", "vector") else {}  # no other engine compiles
    settings |= {"momentum": 0.0, "weight_decay": 0.0, "clients": case.clients, "engine": engine}
    settings["threads"] = torch.get_num_threads()  # the bare loop runs inside a run's rounds
    if case.method == "anti":
        settings["unfreeze"] = (0, MANY - 1, MANY - 1)
    if case.method == "fed3p2p":
        settings |= {"rounds_1": MANY, "rounds_2": 1}
    simulation = prepare(make_config(case.method, settings), data)
    x, y = data.source.x.to(device), data.source.y.to(device)
    trained = data.train[: arguments.bare_clients]
    bare = Bare(case.method, case.model, x, y, [own.to(device) for own in trained], case.batch, 0.01)
    whole = sum(map(len, data.train)) / sum(map(len, trained))
    ours: list[float] = []
    evaluated: list[float] = []
    theirs: list[float] = []
    flops: list[float] = []
    first = mark = 0.0

    def note(record: RoundRecord) -> None:
        nonlocal first, mark
        wait(device)
        spent = time.perf_counter() - mark
        if record.round == 1:
            first = spent
        if record.round > warm_up:
            (evaluated if "received" in record.moments else ours).append(spent)
            flops.append(simulation.server.ledger.flops)
            if arguments.bare == "yes":
                theirs.append(timed(bare.round, device) * whole)
        if len(ours) + len(evaluated) == rounds:
            raise Enough
        mark = time.perf_counter()

    if arguments.bare == "yes":
        bare.round()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    mark = time.perf_counter()
    with suppress(Enough):
        simulation.run(note)
    steps = [-(-len(own) // case.batch) for own in data.train]
    seconds, samples = statistics.median(ours or evaluated), sum(map(len, data.train))
    result = {
        **asdict(case),
        "engine": simulation.notes[0],
        "seconds": seconds,
        "samples_per_second": samples / seconds,
    }
    result |= {"rounds": len(ours), "evaluated_rounds": len(evaluated)}
    if evaluated:
        result["seconds_evaluated"] = statistics.median(evaluated)
    if evaluated and ours:
        result["evaluated_over_not"] = statistics.median(evaluated) / seconds
    if evaluated and arguments.bare == "yes":  # what an evaluation cannot do without: received, trained, global
        passes = MOMENTS * timed(lambda: bare.predict([own.to(device) for own in data.test]), device)
        result |= {
            "bare_passes": passes,
            "evaluated_over_bare_passes": result["seconds_evaluated"] / (seconds + passes),
        }
    result |= {"first_round": round(first, 1)}  # steps are compiled and captured then
    result["trials"] = simulation.engine.purity.seconds / (100 * seconds)  # of what a method brings, once a stage
    if isinstance(simulation.engine, Vector) and case.method != "fed3p2p":  # its clients take turns within groups
        width = simulation.engine.caller.widest
        result |= {"width": width, "slots": sum(steps) / (width * max(1, makespan(steps, pack_clients(steps, width))))}
    if len(flops) > 1:
        done = (flops[-1] - flops[0]) / (len(flops) - 1) / seconds
        result |= {"flops_per_second": done, "share_of_peak": done / peak(device, case.dtype)}
    if theirs:
        result |= {"bare_seconds": statistics.median(theirs), "ratio": statistics.median(theirs) / seconds}
    if device.type == "cuda":
        result["gigabytes"] = torch.cuda.max_memory_allocated(device) / 1e9
    return result


@cache
def peak(device: torch.device, dtype: str) -> float:
    """Operations a second of the largest matrix product, as exact as convolutions are."""
    size, before = 8192 if device.type == "cuda" else 2048, torch.backends.cuda.matmul.allow_tf32
    one = torch.randn(size, size, device=device, dtype=getattr(torch, dtype))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32
    for _ in range(3):
        one @ one
    seconds = min(timed(lambda: one @ one, device) for _ in range(10))
    torch.backends.cuda.matmul.allow_tf32 = before
    return 2 * size**3 / seconds


def timed(work: Callable[[], Any], device: torch.device) -> float:
    wait(device)
    begun = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - begun


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="write the results into this file, case by case")
    parser.add_argument("--only", default="", help="cases whose name begins so")
    parser.add_argument("--rule", default="equal", help="equal, or a partition such as dir:0.1")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--compile", default="yes", choices=["auto", "yes", "no"])
    parser.add_argument("--eval-every", type=int, default=10, help="evaluate every so many rounds")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--engine", default="auto", help="auto, loop, workers, vector, or all: which is the fastest?")
    parser.add_argument("--images", type=int, help="training images; unset: 45,000 (9,000 for ResNet-18)")
    parser.add_argument("--tested", type=int, default=TESTED, help="test images")
    parser.add_argument("--bare", default="yes", choices=["yes", "no"], help="measure the bare loop too")
    parser.add_argument("--bare-clients", type=int, help="clients of the bare loop, its time scaled up; unset: all")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    machine = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    )
    results: dict[str, Any] = {"machine": machine, "torch": torch.__version__, "partwise": partwise.__version__}
    results |= {"date": time.strftime("%Y-%m-%d"), "threads": torch.get_num_threads(), "cases": []}

    def note(result: dict[str, Any]) -> None:
        print(told(result), flush=True)
        results["cases"].append(result)
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump(results, file, indent=2)

    for case in CASES:
        if not case.name.lower().startswith(arguments.only.lower()):
            continue
        case = replace(case, rule=arguments.rule, dtype=arguments.dtype, tested=arguments.tested)
        case = replace(case, images=arguments.images or case.images)
        if arguments.engine != "all":
            note(measured(case, arguments, arguments.engine))
            continue
        others = []
        for engine in ("loop", "vector", *(["workers"] if device.type == "cpu" else [])):
            others.append(measured(case, arguments, engine))
            note(others[-1])
        auto = measured(case, arguments, "auto")
        others = [result for result in others if result["engine"] != auto["engine"]]
        note(auto | ({"faster_than_others": min(r["seconds"] for r in others) / auto["seconds"]} if others else {}))
    settings = {"dtype": arguments.dtype, "compile": arguments.compile}
    for others in (populations, seeds):
        for result in others.measured(arguments.only, arguments.rounds, arguments.warm_up, device, **settings):
            note(result)


def told(result: dict[str, Any]) -> str:
    """A result in a line."""
    words = [result["name"], *([result["rule"]] if "rule" in result else []), result["dtype"], result["engine"]]
    words += [f"{result['seconds']:.4f} s a round", f"{result['samples_per_second']:,.0f} samples/s"]
    words += [f"x{result['ratio']:.2f} of the bare loop"] if "ratio" in result else []
    words += [f"{result['slots']:.0%} of {result['width']} slots"] if "slots" in result else []
    words += [f"{result['share_of_peak']:.1%} of the peak"] if "share_of_peak" in result else []
    words += [f"auto: x{result['faster_than_others']:.2f} of the next"] if "faster_than_others" in result else []
    words += [f"x{result['over_first']:.2f} of the first"] if "over_first" in result else []
    words += [f"evaluated x{result['evaluated_over_not']:.2f}"] if "evaluated_over_not" in result else []
    if "evaluated_over_bare_passes" in result:
        words.append(f"x{result['evaluated_over_bare_passes']:.2f} of training and bare forward passes")
    words += [f"trials {result['trials']:.2%} of 100 rounds"] if "trials" in result else []
    words += [f"{result['gigabytes']:.1f} GB"] if "gigabytes" in result else []
    return ", ".join(words)


if __name__ == "__main__":
    main()
