"""Whether two checkouts train the same models, bit for bit: python -m benchmarks.same_models BEFORE AFTER

Ten runs on digits by the command line of each checkout: the papers' six methods, every engine, seeds alone and side by
side. What is compared are the models' files, each client's scores and the rows of the metrics but for their seconds.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

COMMON = (
    "--data digits --clients 6 --partition dir:0.3 --rounds 4 --lr 0.02 --momentum 0.5 --batch 16 --threads 1 --quiet"
)
MLP = "--model tabular"  # vector's own choice on a CPU; the others have convolutions
RUNS = {
    "fed3p2p, loop": "run fed3p2p --engine loop --rounds-1 2 --rounds-2 2 --coordinators-a 2 --coordinators-b 2",
    "fedtc, loop": "run fedtc --engine loop --participation 0.5",
    "dualfed, vector": f"run dualfed --engine vector {MLP} --temperature 1",
    "fedfcd, vector": "run fedfcd --engine vector",
    "vanilla, vector": f"run vanilla --engine vector {MLP} --host fedavg",
    "anti, loop": "run anti --engine loop --moment adapted",
    "fedtc, workers": "run fedtc --engine workers --workers 2",
    "fedfcd, workers": "run fedfcd --engine workers --workers 2 --optimizer adamw --lr 0.001 --momentum 0",
    "fedavg and fedtc, two seeds": "compare fedavg fedtc --seeds 0,1 --engine vector",
    "anti and dualfed, two seeds": f"compare anti dualfed --seeds 0,1 --engine vector --temperature 1 {MLP}",
}


def digests(checkout: Path, command: str) -> dict[str, str]:
    """What a run leaves, by file: a hash of each."""
    with tempfile.TemporaryDirectory() as folder:
        first, *own = command.split()
        words = [first, *COMMON.split(), *own, "--save-models", "--out", folder]  # later options win
        environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-m", "partwise", *words], env=environment, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{checkout}: {command}: {done.stderr}")
        found = {}
        for path in sorted(Path(folder).rglob("*")):
            if path.suffix in (".safetensors", ".jsonl") or path.name == "clients.csv":
                found[str(path.relative_to(folder))] = hashlib.sha256(content(path)).hexdigest()
        return found


def content(path: Path) -> bytes:
    """A file's bytes; of metrics the rows without the time that they took."""
    if path.suffix != ".jsonl":
        return path.read_bytes()
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return json.dumps([{name: value for name, value in row.items() if name != "seconds"} for row in rows]).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    arguments = parser.parse_args()
    different = 0
    for name, command in RUNS.items():
        before, after = (digests(place.resolve(), command) for place in (arguments.before, arguments.after))
        off = sorted(file for file in before.keys() | after.keys() if before.get(file) != after.get(file))
        different += bool(off)
        print(f"{name}: {len(before)} files, {'all equal' if not off else f'{len(off)} differ: {off[:3]}'}", flush=True)
    print(f"{len(RUNS) - different} of {len(RUNS)} runs are equal bit for bit")
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
