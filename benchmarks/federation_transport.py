"""Seconds until silos have answered a message with one of the same size: python -m benchmarks.federation_transport

Server and silos are on this machine and share its cores: what is measured is Flower and the gate, and no network.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from partwise.federation.transport.keys import make_keys
from partwise.federation.transport.link import FlowerLink

SERVE = """
import sys
from pathlib import Path
from partwise.federation.transport.superlink import serve_superlink
serve_superlink(Path(sys.argv[1]), "127.0.0.1:0", begun=lambda address: print(address, flush=True))
"""
NODE = """
import sys
from pathlib import Path
from partwise.federation.transport.supernode import run_supernode
folder, server, name = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
keys = {"ca": folder / "ca.pem", "key": folder / "silos" / f"{name}.key"}
run_supernode(lambda content, run: content, server, name, folder / "nodes" / name, **keys)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--silos", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2_300_000, 45_000_000], help="bytes")
    parser.add_argument("--times", type=int, default=10, help="of which the median is shown")
    settings = parser.parse_args()
    silos = [f"silo-{n}" for n in range(settings.silos)]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_keys(folder, ["127.0.0.1"], silos)
        server = subprocess.Popen([sys.executable, "-c", SERVE, place], stdout=subprocess.PIPE, text=True)
        assert server.stdout
        address = server.stdout.readline().strip()
        nodes = [subprocess.Popen([sys.executable, "-c", NODE, place, address, silo]) for silo in silos]
        try:
            with FlowerLink(folder) as link:
                while len(link.nodes()) < len(silos):
                    time.sleep(0.1)
                for size in settings.sizes:
                    seconds = [asked(link, silos, size) for _ in range(settings.times)]
                    print(f"{size:>12,} bytes down and up, {len(silos)} silos: {median(seconds):.2f} s")
        finally:
            for process in (*nodes, server):
                process.terminate()
                process.wait()


def asked(link: FlowerLink, silos: list[str], size: int) -> float:
    content = os.urandom(size)
    began = time.perf_counter()
    answers = link.ask(dict.fromkeys(silos, content), 600)
    assert len(answers) == len(silos) and all(answer.content == content for answer in answers.values())
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
