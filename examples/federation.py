"""Three silos on this machine, from keys to a model of its own for each: `make demo-federation`.

Every process here is one that a real federation has on a machine of its own: `partwise serve` on the server's,
`partwise node` on each silo's, `partwise launch` on the server's again. TLS and node keys are on. The data are
scikit-learn's breast cancer patients, divided unequally among three hospitals.
"""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

from partwise.federation.transport.processes import free_port

SILOS = {"Graz": 0.5, "Linz": 0.3, "Wien": 0.2}  # the share of patients
RUN = """\
[method]
name = "fedper"

[train]
rounds = 10
lr = 0.05
batch = 16
"""
SILO = """\
name = "{name}"

[data]
data = "{name}.csv"
label = "diagnosis"

[run]
threads = 1

[allow]
methods = ["fedavg", "fedper", "fedrep"]
parts = ["body"]
min_clients = 3
"""


def write_data(folder: Path) -> None:
    """Write a table for each hospital; large tumours are more frequent in one than in the others."""
    data = load_breast_cancer(as_frame=True)
    patients = data.frame.rename(columns={"target": "diagnosis"})
    patients["diagnosis"] = patients["diagnosis"].map(dict(enumerate(data.target_names)))
    order = np.argsort(patients["mean radius"] + np.random.default_rng(0).normal(0, 4, len(patients)))
    ends = (np.cumsum(list(SILOS.values())) * len(patients)).round().astype(int)
    for name, rows in zip(SILOS, np.split(order, ends[:-1]), strict=True):
        patients.iloc[rows].to_csv(folder / f"{name}.csv", index=False)
        (folder / f"{name}.toml").write_text(SILO.format(name=name))
    (folder / "run.toml").write_text(RUN)


def main(folder: Path) -> int:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_data(folder)
    partwise, address = [sys.executable, "-m", "partwise"], f"127.0.0.1:{free_port()}"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    silos = [word for name in SILOS for word in ("--silo", name)]
    subprocess.run([*partwise, "keys", "keys", "--server", "localhost", *silos], cwd=folder, check=True)
    background: list[subprocess.Popen[bytes]] = []

    def begin(log: str, *command: str) -> None:
        print("$ partwise", *command, f"> {log}.log &", flush=True)
        with open(folder / f"{log}.log", "wb") as file:
            background.append(
                subprocess.Popen([*partwise, *command], stdout=file, stderr=file, cwd=folder, env=environment)
            )

    try:
        begin("server", "serve", "keys", "--address", address)
        for name in SILOS:
            key = f"keys/silos/{name}.key"
            begin(name, "node", f"{name}.toml", "--server", address, "--ca", "keys/ca.pem", "--key", key)
        command = ["launch", "run.toml", "--folder", "keys", "--out", "run", "--overwrite", "--wait", "120"]
        print("$ partwise", *command, flush=True)
        code = subprocess.run([*partwise, *command], cwd=folder, env=environment).returncode
    finally:
        for process in background:
            process.send_signal(signal.SIGTERM)
        for process in background:
            process.wait()
    for model in sorted(folder.glob("*-state/runs/*/models/*.safetensors")):
        print(model)
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/federation")))
