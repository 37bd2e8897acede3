"""Accuracy against epsilon: python -m benchmarks.privacy --rounds 30 --noise 0.01,0.1,1

FedAvg, FedPer and FedFCD, once with noise on every client's upload (the privacy of a client) and once with DP-SGD (the
privacy of a record): personal accuracy after the last round, and epsilon as Opacus counts it with sampling, and without
counting on sampling. The first row has no noise and no clip, the second a clip alone.
"""

import argparse
import logging
from typing import Any

import partwise

METHODS = ("fedavg", "fedper", "fedfcd")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--data", default="digits")
    parser.add_argument("--model", default="auto")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--partition", default="dir:0.3")
    parser.add_argument("--participation", type=float, default=0.5)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--upload-clip", type=float, default=1.0)
    parser.add_argument("--gradient-clip", type=float, default=5.0, help="of one sample's gradient")
    parser.add_argument("--noise", default="0.01,0.1,1", help="standard deviations, in clips")
    parser.add_argument("--kind", choices=("upload", "dp", "both"), default="both")
    parser.add_argument("--seed", type=int, default=0)
    given = vars(parser.parse_args())
    methods, noises, kind = (given.pop(name) for name in ("methods", "noise", "kind"))
    clips = {"upload": given.pop("upload_clip"), "dp": given.pop("gradient_clip")}
    logging.disable(logging.WARNING)
    print("| method | noise on | noise | epsilon | epsilon, no sampling | accuracy in % |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for method in methods.split(","):
        show(method, "nothing", "-", given)
        for prefix, what in {"upload": "uploads", "dp": "gradients"}.items():
            if kind in (prefix, "both"):
                for noise in (0.0, *map(float, noises.split(","))):
                    show(
                        method, what, f"{noise:g}", given | {f"{prefix}_clip": clips[prefix], f"{prefix}_noise": noise}
                    )


def show(method: str, what: str, noise: str, settings: dict[str, Any]) -> None:
    """A line of the table."""
    result = partwise.run(method, progress=False, eval_every=settings["rounds"], threads=1, **settings)
    spent = result.metrics[-1].get("epsilon", {})
    told = [f"{spent[name]:.3g}" for name in spent if name.startswith(("client", "record"))] or ["-", "-"]
    accuracy = result.summary.last("received").accuracy
    print(f"| {' | '.join([method, what, noise, *told, f'{100 * accuracy:.2f}'])} |", flush=True)


if __name__ == "__main__":
    main()
