"""Folders of runs that were never run, in the formats of real ones."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from partwise.records.metrics import FIELDS, METRICS_OF, RANKING
from partwise.records.rounds import MOMENTS, keys_over_clients, pooled_key
from partwise.records.summaries import column_of


def scores(value: float, clients: int = 2, task: str = "classes") -> dict[str, Any]:
    first, *others = METRICS_OF[task]
    over = keys_over_clients(task)
    numbers = {pooled_key(first): value, over["mean"]: value, over["std"]: 0.1, over["worst"]: value / 2}
    return numbers | dict.fromkeys(others, value) | {"clients": clients, "nonfinite": 0}


def write_run(
    folder: Path,
    method: str = "fedavg",
    seed: int = 0,
    values: Any = (0.5, 0.75),  # after each round what ranks: the accuracy of classes
    clients: Any = (0.5, 1.0),  # of each client, likewise
    finished: bool = True,
    sent: int = 100,  # bytes a round, down, and as many up
    flops: float = 1e9,
    names: Any = None,
    classes: Any = ("a", "b"),
    stages: Any = (1, 1),  # rounds of each
    share: Any = None,  # by tensor, in each stage
    groups: Any = None,  # by round
    events: Any = (),
    validation: float | None = None,
    moment: str = "received",
    task: str = "classes",
    **settings: Any,  # of training
) -> Path:
    """A run; returns its folder."""
    folder.mkdir(parents=True)
    names = list(names or map(str, range(len(clients))))
    train = {"rounds": len(values), "lr": 0.1, **settings}
    tables = {
        "method": {"name": method},
        "data": {"data": "made", "clients": len(clients), "partition": "iid"},
        "run": {"seed": seed, "moment": moment, "metric": "accuracy"},
        "train": train,
    }
    lines = []
    for table, own in tables.items():
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in own.items())]
    (folder / "config.toml").write_text("\n".join(lines))
    ends, rows = np.cumsum(stages), []
    for number, value in enumerate(values, start=1):
        row: dict[str, Any] = {"round": number, "stage": int(np.searchsorted(ends, number)), "refused": []}
        row |= {"participants": list(range(len(clients))), "train_loss": 1.0, "bytes_down": sent, "bytes_up": sent}
        row |= {"groups": groups[number]} if groups and number in groups else {}
        rows.append({**row, "received": scores(value, len(clients), task), "seconds": 0.5})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / "environment.json").write_text(
        json.dumps({"python": "3.11", "command": f"partwise run {method}", "notes": [], "started": "2024-01-01"})
    )
    share = share or [{"body.weight": "ALL", "head.weight": "LOCAL"}] * len(stages)
    counts = [[3 * client + 1] + [0] * (len(classes) - 1) for client in range(len(clients))]
    setup: dict[str, Any] = {
        "task": task,
        "data": "made",
        "partition": "iid",
        "clients": names,
        "classes": list(classes),
        "counts": counts,
    }
    setup["stages"] = [{"rounds": rounds, "share": own} for rounds, own in zip(stages, share, strict=True)]
    (folder / "setup.json").write_text(json.dumps(setup))
    (folder / "leaves.json").write_text(json.dumps({"body": {"numbers": 25, "classes": "", "rare": 0}}))
    if finished:
        write_end(folder, method, seed, rows, clients, names, sent, flops, task)
        summary = json.loads((folder / "summary.json").read_text()) | {"validation": validation, "moment": moment}
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_end(
    folder: Path, method: str, seed: int, rows: Any, clients: Any, names: Any, sent: int, flops: float, task: str
) -> None:
    """What a run writes after its last round."""
    moments = (*MOMENTS, "global")
    columns = [
        name
        for moment in moments
        for name in (*(column_of(moment, metric) for metric in METRICS_OF[task]), f"{moment}_best")
    ]
    with open(folder / "clients.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["client", "name", "train_samples", "test_samples", *columns])
        for client, (name, value) in enumerate(zip(names, clients, strict=True)):
            table.writerow([client, name, 10, 5, *(value if c.startswith("received") else "" for c in columns)])
    total = {"down": {"body": sent * len(rows)}, "up": {"body": sent * len(rows)}}
    rounds = [{"round": row["round"], "down": {"body": sent}, "up": {"body": sent}} for row in rows]
    ledger = {"total": total, "once": {"down": {"head": 7}, "up": {}}, "training_flops": flops, "rounds": rounds}
    (folder / "ledger.json").write_text(json.dumps(ledger))
    ranking = RANKING[task]
    best = max(rows, key=lambda row: FIELDS[ranking].sign * row["received"][pooled_key(ranking)])
    accuracy = {"received": {"last": rows[-1]["received"], "best": {**best["received"], "round": best["round"]}}}
    summary = {"method": method, "data": "made", "partition": "iid", "clients": len(clients), "seed": seed}
    summary |= {"rounds": len(rows), "moment": "received", "metric": ranking, "task": task, "accuracy": accuracy}
    summary |= {"seconds": 0.5 * len(rows), "bytes_per_participant": 2 * sent / len(clients)}
    (folder / "summary.json").write_text(json.dumps({**summary, "client_scores": list(clients)}))


def write_many(folder: Path, methods: int = 10, seeds: int = 5, rounds: int = 200, clients: int = 100) -> Path:
    """A comparison of this size."""
    random = np.random.default_rng(0)
    classes = [f"class {number}" for number in range(10)]
    for method in range(methods):
        for seed in range(seeds):
            values = (0.9 - 0.8 * np.exp(-np.arange(rounds) / 40) + random.normal(0, 0.01, rounds)).clip(0, 1)
            write_run(
                folder / f"method{method}" / f"seed-{seed}",
                f"method{method}",
                seed,
                values.tolist(),
                random.beta(8, 2, clients).tolist(),
                sent=1000 * 10**method // 1000,
                flops=1e9 * (method + 1),
                classes=classes,
                stages=(rounds // 2, rounds - rounds // 2),
                groups={1: random.integers(0, 5, clients).tolist()},
            )
    return folder
