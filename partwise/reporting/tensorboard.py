"""A run's curves and settings for TensorBoard."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partwise.errors import needed
from partwise.options import spelled
from partwise.runs.config import label
from partwise.runs.metrics import METRICS, MOMENTS
from partwise.runs.observers import Observer, Seen
from partwise.studies.leaderboard import flat_settings

if TYPE_CHECKING:
    from partwise.runs.simulation import Simulation

CURVES = "tensorboard"  # the folder inside a run's


class TensorBoard(Observer):
    """Writes every round's numbers into a folder that TensorBoard reads: `partwise.run(observers=[TensorBoard(DIR)])`.

    A run that goes on from a checkpoint, or begins again, hides what the folder held from its round on.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(os.path.expanduser(folder))
        needed("tensorboard", "tensorboard")
        self.writer: Any = None

    def begin(self, simulation: "Simulation") -> None:
        from torch.utils.tensorboard import SummaryWriter  # needs tensorboard

        self.writer = SummaryWriter(str(self.folder), purge_step=simulation.server.round + 1)

    def round(self, seen: Seen) -> None:
        for name, value in curves(seen.row).items():
            self.writer.add_scalar(name, value, seen.row["round"])

    def end(self, last: Seen | None) -> None:
        if self.writer is None:
            return
        if last is not None:
            self.write_settings(last)
        self.writer.close()

    def write_settings(self, last: Seen) -> None:
        """Write the settings beside the results: a row of TensorBoard's table of runs."""
        from torch.utils.tensorboard.summary import hparams

        config = last.simulation.config
        settings = {"method": label(config.name), **flat_settings(config)}
        plain = {name: v if isinstance(v, bool | int | float) else spelled(v) for name, v in settings.items()}
        run = config.run
        reached = {"reached": last.row.get(run.moment, {}).get(METRICS[run.metric])}
        for summary in hparams(plain, {name: value for name, value in reached.items() if value is not None}):
            self.writer.file_writer.add_summary(summary)
        for name, value in reached.items():
            if value is not None:
                self.writer.add_scalar(name, value, last.row["round"])


def curves(row: dict[str, Any]) -> dict[str, float]:
    """Return the values of a round by path: every number at every moment, the loss, bytes and seconds."""
    found = {
        f"{moment}/{name}": value
        for moment in (*MOMENTS, "validation", "global")
        for name, value in row.get(moment, {}).items()
    }
    found |= {f"run/{name}": row.get(name) for name in ("train_loss", "bytes_down", "bytes_up", "epsilon", "seconds")}
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}
