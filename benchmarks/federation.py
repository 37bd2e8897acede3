"""What a round costs over real nodes on this machine, over the training itself: python -m benchmarks.federation

Three nodes with TLS and keys, one client each that takes a single step; and, with `--scale-out`, two nodes that host a
thousand simulated clients each beside one process that runs all two thousand. Server and nodes share the machine's
cores: what is measured is processes and messages, and no network.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from partwise.federation.transport.keys import make_keys
from partwise.runs.config import make_config

PARTWISE = [sys.executable, "-m", "partwise"]
SMALL, LARGE = "cnn-digits", "resnet18-3x3"
ANSWERED = re.compile(r"round (\d+): (?:train|predict) .* ([\d.]+) s")


def launched(hosts: list[str], settings: dict[str, Any]) -> tuple[list[float], list[float], str]:
    """Seconds of each round, those of them in which the slowest node was at work, and the bytes of a train message."""
    with tempfile.TemporaryDirectory() as name:
        folder, started = Path(name), list[subprocess.Popen[bytes]]()
        make_keys(folder / "keys", ["localhost"], [f"n{number}" for number in range(len(hosts))])

        def begin(log: str, *command: str) -> None:
            with open(folder / f"{log}.log", "wb") as file:
                environment = os.environ | {"OMP_NUM_THREADS": "1"}
                command_line = [*PARTWISE, *command]
                started.append(subprocess.Popen(command_line, stdout=file, stderr=file, cwd=folder, env=environment))

        try:
            begin("serve", "serve", "keys", "--address", "127.0.0.1:0")
            while "at " not in (told := (folder / "serve.log").read_text()):
                time.sleep(0.1)
            address = told.split("at ")[-1].split()[0]
            allowed = []
            for number, hosted in enumerate(hosts):
                first, last = map(int, hosted.split("-"))
                allowed += ["--hosts", f"n{number}={last - first + 1}"]
                text = f'name = "n{number}"\nhosts = "{hosted}"\n[run]\nthreads = 1\n'
                (folder / f"n{number}.toml").write_text(text)
                key = f"keys/silos/n{number}.key"
                begin(f"n{number}", "node", f"n{number}.toml", "--server", address, "--ca", "keys/ca.pem", "--key", key)
            (folder / "run.toml").write_text(make_config("fedavg", settings).to_toml())
            launch = ["launch", "run.toml", "--folder", "keys", "--out", "out", "--quiet", *allowed]
            subprocess.run([*PARTWISE, *launch], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        finally:
            for process in started:
                process.send_signal(signal.SIGTERM)
            for process in started:
                process.wait()
        rows = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
        logs = [(folder / f"n{number}.log").read_text() for number in range(len(hosts))]
        working = []
        for row in rows:
            own = [sum(float(s) for r, s in ANSWERED.findall(log) if int(r) == row["round"]) for log in logs]
            working.append(max(own))
        megabytes = f"{rows[0]['bytes_up'] / len(rows[0]['participants']) / 1e6:.1f} MB"
        return [row["seconds"] for row in rows], working, megabytes


def over_training(model: str, rounds: int, evaluate: bool) -> None:
    settings = {"data": "made", "image_size": 32, "clients": 3, "partition": "iid", "train_samples": 8, "batch": 8}
    settings |= {"model": model, "rounds": rounds, "eval_every": 1 if evaluate else rounds, "moment": "received"}
    seconds, working, size = launched(["0-0", "1-1", "2-2"], settings)
    beside = [whole - work for whole, work in zip(seconds, working, strict=True)][1:-1]  # the last one adapts too
    how = "trained and evaluated" if evaluate else "trained alone"
    print(f"{model}, {size}, {how}: {median(beside):.2f} s a round beside {median(working[1:-1]):.2f} s of work")


def scale_out(data: list[str], clients: int, rounds: int) -> None:
    settings: dict[str, Any] = {"data": data[0], "clients": clients, "partition": "iid", "batch": 10, "rounds": rounds}
    settings |= {"model": "cnn-5x5", "eval_every": rounds, "threads": 1, "engine": "vector", "moment": "received"}
    # What a round's participants upload must fit into one machine's memory; what follows the rounds is not measured.
    settings |= {"participation": 0.2, "finetune_epochs": 1, "save_models": False}
    if len(data) > 1:
        settings["data_root"] = data[1]
    half = clients // 2
    seconds, _, _ = launched([f"0-{half - 1}", f"{half}-{clients - 1}"], settings)
    with tempfile.TemporaryDirectory() as name:
        config = Path(name, "run.toml")
        config.write_text(make_config("fedavg", settings).to_toml())
        subprocess.run(
            [*PARTWISE, "run", "--config", str(config), "--out", f"{name}/out", "--quiet"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        alone = [json.loads(line)["seconds"] for line in Path(name, "out", "metrics.jsonl").read_text().splitlines()]
    two, one = median(seconds[1:-1]), median(alone[1:-1])
    print(f"{clients} clients: one process {one:.1f} s a round, two nodes {two:.1f} s, x{one / two:.2f} as fast")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--scale-out", nargs="+", metavar="DATA [DATA_ROOT]", help="2,000 clients of these data")
    parser.add_argument("--clients", type=int, default=2000)
    settings = parser.parse_args()
    if settings.scale_out:
        scale_out(settings.scale_out, settings.clients, min(settings.rounds, 4))
        return
    for model in (SMALL, LARGE):
        for evaluate in (False, True):
            over_training(model, settings.rounds, evaluate)


if __name__ == "__main__":
    main()
