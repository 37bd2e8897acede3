"""A federation on this machine: the server, and silos that answer with what they were sent, backwards."""

import os
import subprocess
import sys
import time
from pathlib import Path

PATIENCE = 300  # seconds until a test gives up: a slow machine, not a slow answer

SERVE = """
import sys
from pathlib import Path
from partwise.errors import PartwiseError
from partwise.federation.transport.superlink import serve_superlink
from partwise.writing import write
folder, address, plain = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "True"
try:
    told = lambda where: write(folder / "address", where.encode())
    serve_superlink(folder, address, plain=plain, body=8 << 20, begun=told)
except PartwiseError as error:
    sys.exit(str(error))
"""
# `wait FILE` answers once that file is there, `refuse` and `fail` not at all.
NODE = """
import sys, time
from pathlib import Path
from partwise.errors import PartwiseError
from partwise.federation.transport.supernode import run_supernode

def handle(content, run):
    if content == b"refuse":
        raise PartwiseError("this silo has no labels")
    if content == b"fail":
        raise KeyError("patient 7")
    if content.startswith(b"wait "):
        while not Path(content[5:].decode()).exists():
            time.sleep(0.02)
    return content[::-1]

folder, server, name, plain = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4] == "True"
keys = {} if plain else {"ca": folder / "ca.pem", "key": folder / "silos" / f"{name}.key"}
try:
    run_supernode(handle, server, name, folder / "nodes" / name, plain=plain, debug=True, **keys)
except PartwiseError as error:
    sys.exit(str(error))
"""


def until(condition, seconds=PATIENCE):
    """Wait for it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return found


def alive(process):
    """Whether a process of this number is there, and not just dead and not fetched yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(process):
    """The numbers of the processes that a process has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == process:
                found.append(int(stat.parent.name))
        except OSError:  # it has ended meanwhile
            pass
    return found


class Federated:
    """Processes of a federation in a folder."""

    def __init__(self, folder: Path, plain: bool = False):
        self.folder, self.plain = folder, plain
        self.processes: dict[str, subprocess.Popen] = {}

    def start(self, name: str, program: str, *arguments: str) -> subprocess.Popen:
        command = [sys.executable, "-c", program, str(self.folder), *arguments, str(self.plain)]
        with open(self.folder / f"{name}.out", "ab") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | {"OMP_NUM_THREADS": "1"})
        self.processes[name] = process
        return process

    def serve(self, address: str = "127.0.0.1:0", program: str = SERVE) -> None:
        (self.folder / "address").unlink(missing_ok=True)
        server = self.start("server", program, address)
        until(lambda: (self.folder / "address").exists() or server.poll() is not None)
        self.address = (self.folder / "address").read_text()

    def node(self, name: str) -> None:
        self.start(name, NODE, self.address, name)

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text()

    def end(self) -> None:
        """End the silos and then the server, and wait for Flower's processes, which end by themselves."""
        silos = [process for name, process in self.processes.items() if name != "server"]
        for group in (silos, [self.processes["server"]]):
            theirs = [child for process in group for child in children(process.pid)]
            for process in group:
                process.terminate()
            for process in group:
                process.wait(PATIENCE)
            until(lambda theirs=theirs: not any(alive(each) for each in theirs))
