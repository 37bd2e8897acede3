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

from partwise.records.files import CLIENTS, LEDGER, METRICS, MODELS_FOLDER

METHODS = ("fedper", "fed3p2p", "fedfcd")
ENGINES = ("loop", "vector", "workers")


def command(method: str, engine: str) -> list[str]:
    """A run of some seconds, with a checkpoint after every round."""
    settings = "--data digits --clients 8 --participation 0.5 --rounds 12 --threads 1 --checkpoint-every 0 --quiet"
    own = "--coordinators-a 2 --coordinators-b 2" if method == "fed3p2p" else ""
    workers = "--workers 2" if engine == "workers" else ""
    return [sys.executable, "-m", "partwise", "run", method, *f"{settings} {own} {workers} --engine {engine}".split()]


def killed_and_resumed(run: list[str], out: Path, moments: random.Random) -> int:
    """Kill a run again and again, each time some rounds later and at a random moment of a round; returns the kills."""
    kills, again = 0, [*run, "--out", str(out), "--resume"]
    while True:
        process = subprocess.Popen(again, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wanted = rounds_in(out) + moments.randint(1, 4)
        while process.poll() is None and rounds_in(out) < wanted:
            time.sleep(0.01)
        try:
            process.wait(moments.uniform(0, 0.3))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
        else:
            if process.returncode:
                raise SystemExit(f"{' '.join(again)} ended with exit code {process.returncode}")
            return kills


def rounds_in(out: Path) -> int:
    """Rounds that are noted there."""
    metrics = out / METRICS
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def left(out: Path) -> dict[str, object]:
    """What a run wrote, but for seconds."""
    lines = [line[: line.rindex(', "seconds"')] for line in (out / METRICS).read_text().splitlines()]
    models = {path.name: path.read_bytes() for path in (out / MODELS_FOLDER).iterdir()}
    return {"metrics": lines, "models": models, **{name: (out / name).read_bytes() for name in (CLIENTS, LEDGER)}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="for each engine, at least")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for engine in arguments.engines:
        moments = random.Random(arguments.seed)  # the same, whichever engines go before
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
