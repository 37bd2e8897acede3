"""Whether two checkouts train the same models, bit for bit: python -m benchmarks.same_models BEFORE AFTER

Each checkout makes the runs of benchmarks/made_runs.py: every method in the loop, in the vector engine and in workers,
what stands around a round (failures, filters, optimisers, stopping, newcomers), and seeds side by side. All that they
leave is compared: tensors by name, tables and JSON by value, checkpoints wherever a client's row lies.
Then AFTER goes on with what BEFORE left, killed and finished runs in folders and silos' disks, and reads its models and
comparisons. What has other names in AFTER stands in made_runs.RENAMED.
"""

import argparse
import csv
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from benchmarks.made_runs import ERROR, RENAMED

RUNS = Path(__file__).with_name("made_runs.py")
# What tells of time and place or of files' bytes, and what is drawn from other files.
IGNORED = {"seconds", "environment.json", ".lock", "files", "silos", "leaderboard.md", "leaderboard.tex"}
CHECKPOINTS, FORMAT = "checkpoints", 3  # of other formats only what goes on from them is compared
TOGETHER = ("loop", "vector", "workers", "edges")  # made by both
# Made by BEFORE; begun by it, and ended by AFTER.
GOES_ON = {"whole": ("killed", "resumed"), "silos": ("silos killed", "silos")}
SHOWN = 80  # letters of a value that differs
Found = dict[tuple[str, ...], Any]  # values by where they stand: file, field, field of it, ...


# ---- making


def make(checkout: Path, step: str, folder: Path, *flags: str) -> Path:
    """Let a checkout carry out a step of made_runs in a folder, and return the folder."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-P", str(RUNS), step, str(folder), *flags]
    done = subprocess.run(command, env=environment, cwd=checkout, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{checkout}: {step}: {done.stderr}")
    return folder


# ---- reading what a run left


def left(run: Path) -> Found:
    """Return the values in all files of a run's folder."""
    found: Found = {}
    for path in sorted(path for path in run.rglob("*") if path.is_file()):
        where = path.relative_to(run).parts
        if not {CHECKPOINTS, *IGNORED} & set(where):
            found |= {(*where, *below): value for below, value in flat(content(path))}
    for folder in run.rglob(CHECKPOINTS):
        where = folder.relative_to(run).parts
        found |= {(*where, *below): value for below, value in flat(checkpoint(folder))}
    return {where: value for where, value in found.items() if not IGNORED & set(where)}


def content(path: Path) -> Any:
    """Return what a file holds, as its kind is read."""
    if path.suffix == ".safetensors":
        return load_file(path)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return json.loads(text)
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    if path.suffix == ".csv":
        return list(csv.DictReader(text.splitlines()))
    return tomllib.loads(text) if path.suffix == ".toml" else text.splitlines()


def flat(value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the plain values of a tree and where they stand; a tensor is its type, shape and bytes."""
    if isinstance(value, np.ndarray):
        yield (), (value.dtype.str, value.shape, value.tobytes())
    elif isinstance(value, dict | list) and value:
        for name, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from (((str(name), *where), each) for where, each in flat(below))
    else:
        yield (), repr(value)  # in which nan equals nan, and 0.0 is not -0.0


def checkpoint(folder: Path) -> dict[str, Any]:
    """Return the newest checkpoint: the state with its tensors, and each client's rows wherever they lie."""
    text = max(folder.glob("round-*.json")).read_text(encoding="utf-8")
    manifest = json.loads(text.partition("\n")[2])  # after its SHA-256
    if manifest["format"] != FORMAT:
        return {"format": manifest["format"]}
    rows = dict[str, Any]()
    for use in ("clients", "best"):
        for name in manifest[use]:
            held = load_file(folder / name)
            for owners in (key for key in held if key.startswith("clients of ")):
                values = held[owners.replace("clients of ", "rows of ", 1)]
                rows |= {f"{use} {owners} {owner}": row for owner, row in zip(held[owners], values, strict=True)}
    state = filled(manifest["state"], load_file(folder / manifest["tensors"]))
    state["store"]["known"].sort()  # as they came back: of workers the first may be any
    return {"format": FORMAT, "made with": manifest["made with"], "state": state, "rows": rows}


def filled(state: Any, tensors: dict[str, Any]) -> Any:
    """Return a checkpoint's state with its tensors in their places."""
    if isinstance(state, list):
        return [filled(each, tensors) for each in state]
    if isinstance(state, dict) and state.get("$") in ("tensor", "array"):
        return tensors[state["name"]]
    return {name: filled(each, tensors) for name, each in state.items()} if isinstance(state, dict) else state


# ---- comparing


def renamed(found: Found) -> Found:
    """Return what a run left by the names that AFTER has, also where it goes on in a folder of BEFORE."""
    words = {repr(old): repr(new) for old, new in RENAMED.items()}
    return {
        tuple(RENAMED.get(name, name) for name in where): words.get(value, value) if isinstance(value, str) else value
        for where, value in found.items()
    }


def formats(found: Found) -> list[Any]:
    """Return the formats of a folder's checkpoints."""
    return [value for where, value in sorted(found.items()) if CHECKPOINTS in where and where[-1] == "format"]


def differences(before: Path, after: Path) -> list[str]:
    """Return what differs between two folders of a run, a line for each value."""
    failed = [path.read_text(encoding="utf-8") for path in (before / ERROR, after / ERROR) if path.exists()]
    if failed:
        return [f"failed: {text.splitlines()[-1]}" for text in failed]
    here, there = renamed(left(before)), renamed(left(after))
    if formats(here) != formats(there):
        here, there = ({w: value for w, value in found.items() if CHECKPOINTS not in w} for found in (here, there))
    lines = []
    for where in sorted(here.keys() | there.keys()):
        one, other = here.get(where, "nothing"), there.get(where, "nothing")
        if one != other:
            shown = (value[:2] if isinstance(value, tuple) else value for value in (one, other))
            lines.append(f"{'/'.join(where)}: {' and '.join(str(value)[:SHOWN] for value in shown)}")
    return lines


def compare(title: str, before: Path, after: Path) -> int:
    """Print how many runs of a step are equal, and how others differ; return the number of those."""
    names = sorted({path.name for folder in (before, after) for path in folder.iterdir()})
    different = {name: lines for name in names if (lines := differences(before / name, after / name))}
    print(f"{title}: {len(names) - len(different)} of {len(names)} runs are equal bit for bit", flush=True)
    for name, lines in different.items():
        print(f"  {name}: {len(lines)} values differ: " + "; ".join(lines[:3]), flush=True)
    return len(different)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--keep", type=Path, help="a new folder in which all runs are left")
    parser.add_argument("--only", nargs="+", default=[*TOGETHER, *GOES_ON, "read"], help="some of the steps")
    arguments = parser.parse_args()
    checkouts = {"before": arguments.before.resolve(), "after": arguments.after.resolve()}
    begun, different = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor() as both:
        folder = arguments.keep or Path(temporary)

        def together(step: str) -> list[Path]:
            jobs = [both.submit(make, checkouts[who], step, folder / who / step, *flags(who)) for who in checkouts]
            return [job.result() for job in jobs]

        for step in arguments.only:
            if step in GOES_ON:
                start, end = GOES_ON[step]
                whole = both.submit(make, checkouts["before"], step, folder / "before" / step)
                half = make(checkouts["before"], start, folder / "after" / step)
                ended = make(checkouts["after"], end, half, *flags("after"))
                different += compare(f"{step}, begun before", whole.result(), ended)
            else:
                if step == "read":  # what BEFORE left, in both
                    for who, made in itertools.product(checkouts, ("loop", "edges")):
                        shutil.copytree(folder / "before" / made, folder / who / step, dirs_exist_ok=True)
                different += compare(step, *together(step))
    print(f"{different} runs differ; {time.monotonic() - begun:.0f} s")
    sys.exit(different > 0)


def flags(who: str) -> list[str]:
    return ["--renamed"] if who == "after" else []


if __name__ == "__main__":
    main()
