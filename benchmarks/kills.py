"""Kill a run at random moments until it is finished, and compare: python -m benchmarks.kills --help

Every run is one command line with `--resume`, started again whenever it was killed. What it leaves must be bit for bit
what a run leaves that nobody touched.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from partwise.runs.files import CLIENTS, LEDGER, METRICS, MODELS

METHODS = ("fedper", "fed3p2p", "fedfcd")


def command(method: str, engine: str) -> list[str]:
    """A run of some seconds, with a checkpoint after every round."""
    settings = "--data digits --clients 8 --participation 0.5 --rounds 12 --threads 1 --checkpoint-every 0 --quiet"
    own = "--coordinators-a 2 --coordinators-b 2" if method == "fed3p2p" else ""
    workers = "--workers 2" if engine == "workers" else ""
    return [sys.executable, "-m", "partwise", "run", method, *f"{settings} {own} {workers} --engine {engine}".split()]


def killed_and_resumed(run: list[str], out: Path, moments: random.Random) -> int:
    """Kill a run at random moments; once it has been killed twice as it trained, let it end. Returns the kills."""
    kills = trained = 0
    again = [*run, "--out", str(out), "--resume"]
    while trained < 2:
        process = subprocess.Popen(again, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_training(process, out)
        try:
            process.wait(moments.uniform(0, 1.5))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
            trained += (out / "checkpoints").exists()
        else:
            break
    subprocess.run(again, check=True, capture_output=True)
    return kills


def wait_for_training(process: subprocess.Popen[bytes], out: Path) -> None:
    """Until a process has read its data and begun: a moment of its imports would tell nothing."""
    before = newest(out)
    while process.poll() is None and newest(out) == before:
        time.sleep(0.02)


def newest(out: Path) -> float:
    """When something was last written there."""
    return max((path.stat().st_mtime for path in out.glob("*") if path.is_file()), default=0.0)


def left(out: Path) -> dict[str, object]:
    """What a run wrote, but for seconds."""
    lines = [line[: line.rindex(', "seconds"')] for line in (out / METRICS).read_text().splitlines()]
    models = {path.name: path.read_bytes() for path in (out / MODELS).iterdir()}
    return {"metrics": lines, "models": models, **{name: (out / name).read_bytes() for name in (CLIENTS, LEDGER)}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="for each engine, at least")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    moments = random.Random(arguments.seed)
    for engine in ("loop", "workers", "vector"):
        with tempfile.TemporaryDirectory() as folder:
            kills = equal = runs = 0
            for method in METHODS:
                subprocess.run([*command(method, engine), "--out", f"{folder}/{method}"], check=True)
            while kills < arguments.kills:
                method = METHODS[runs % len(METHODS)]
                runs += 1
                out = Path(folder, str(runs))
                kills += killed_and_resumed(command(method, engine), out, moments)
                equal += left(out) == left(Path(folder, method))
            print(
                f"{engine}: {kills} kills, {equal} of {runs} runs bit-equal to those that were left alone", flush=True
            )


if __name__ == "__main__":
    main()
