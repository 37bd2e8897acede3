"""Silos whose data is a table of patients."""

import numpy as np
import pandas as pd

from partwise.federation.protocol.launch import federated
from partwise.federation.protocol.node import Node
from partwise.federation.protocol.policy import Allowed
from partwise.federation.protocol.silo import Silo
from tests.support.nodes import InProcess, members

SETTINGS = {"rounds": 2, "lr": 0.05, "batch": 8, "dtype": "float64", "threads": 1}
ALLOW = {"min_clients": 1, "min_test_samples": 1}  # besides the defaults: 20 training samples, 5 of a class or text
OWN = {"label": "sick", "missing": "mean", "test_share": 0.2}
RANGES = {"age": (0.0, 100.0), "size": (100.0, 220.0)}
NOISY = {"upload_clip": 1.0, "upload_noise": 1.0}


def table(rows, seed=0, **columns):
    """Patients with an age and a size, by whom some illness can be told."""
    random = np.random.default_rng(seed)
    age = random.normal(50, 9, rows).round(1)
    made = {"age": age, "size": random.normal(170, 10, rows).round(1), "sick": np.where(age > 50, "yes", "no")}
    return pd.DataFrame({**made, **columns})


def silo(folder, frame, name="Graz", data=(), ranges=(), **allow):
    """A silo whose table lies in a folder as everybody's."""
    (folder / "tables").mkdir(exist_ok=True)
    path = folder / "tables" / f"{name}.csv"
    frame.to_csv(path, index=False)
    allowed = Allowed(**{**ALLOW, **allow})
    return Silo(name, folder / name, {"data": str(path), **OWN, **dict(data)}, allow=allowed, ranges=dict(ranges))


def run(config, own, name="a-run"):
    link = InProcess({name: Node(each) for name, each in own.items()})
    return federated(config, members(link, config, name))


def three(rows=60):
    """Three silos: cells are missing, one column is hardly there in Graz, and texts are not the same everywhere."""
    frames = {}
    for seed, name in enumerate(("Graz", "Linz", "Wien")):
        frame = table(rows, seed, cp=np.resize(["a", "b", "c"][: seed + 1], rows), ca=1.0 * np.arange(rows))
        holes = np.random.default_rng(seed).random((rows, 2)) < 0.2
        frame[["age", "size"]] = frame[["age", "size"]].mask(holes)
        frame.loc[2 if name == "Graz" else rows :, "ca"] = np.nan
        frame.loc[frame.index % 7 == 0, "cp"] = None
        frames[name] = frame
    return frames
