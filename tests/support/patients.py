"""Small runs whose models are taken away, and what their clients predicted in them."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import partwise
from partwise import Result
from partwise.runs.saving import global_model

CITIES = ("Graz", "Linz", "Wien")
COLUMNS = ("age", "dose", "sex", "blood pressure")
HEADER = ",".join((*COLUMNS, "client", "ill"))


def patients(rows: int = 90) -> str:
    """A table of patients in three cities, as text: two numbers, a text that may be empty, a number; who is ill."""
    random = np.random.default_rng(3)
    lines = [HEADER]
    for row in range(rows):
        age, dose, pressure = random.integers(20, 90), random.normal(5, 2), random.normal(120, 15)
        sex = ("f", "m", "")[random.integers(0, 3)]
        ill = "yes" if age + 3 * dose + 10 * (sex == "m") > 70 else "no"
        lines.append(f"{age},{dose:.3f},{sex},{pressure:.2f},{CITIES[row % 3]},{ill}")
    return "\n".join(lines) + "\n"


def run_patients(folder: Path, method: str = "fedper", **settings: Any) -> Result:
    """A run on that table, which lies beside the run's folder."""
    table = folder / "patients.csv"
    table.write_text(patients())
    common = {"label": "ill", "rounds": 2, "lr": 0.1, "dtype": "float64", "batch": 8}
    return partwise.run(method, data=str(table), out=folder / "run", **common, **settings)


def taken(run: Path, to: Path) -> Path:
    """What of a run's folder its models need, elsewhere."""
    to.mkdir()
    shutil.copytree(run / "models", to / "models")
    for path in (run / "model.json", run / "method-copy.py", run / "network-copy.py"):
        if path.exists():
            shutil.copy(path, to)
    return to


def in_the_run(result: Result, rows: int = 20) -> tuple[Tensor, dict[str, Tensor]]:
    """Raw samples, and the logits that every client's model, and the global one, gives of them in the run."""
    x = result.federation.source.x[:rows]
    models = {str(client): model for client, model in result.models.some(list(result.models)).items()}
    if (together := global_model(result.simulation)) is not None:
        models["global"] = together
    with torch.no_grad():
        return x, {name: model(x) for name, model in models.items()}
