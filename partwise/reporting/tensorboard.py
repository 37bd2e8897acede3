"""A run's curves and settings for TensorBoard."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partwise.errors import needed
from partwise.options import as_written
from partwise.records.rounds import RoundRecord
from partwise.runs.config import label
from partwise.runs.observers import Observer, Seen
from partwise.studies.leaderboard import flat_settings

if TYPE_CHECKING:
    from partwise.runs.simulation import Simulation

CURVES = "tensorboard"  # the folder inside a run's
REACHED = "reached"  # the value by which TensorBoard's table compares runs


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
        for name, value in curves(seen.record).items():
            self.writer.add_scalar(name, value, seen.record.round)

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
        plain = {name: v if isinstance(v, bool | int | float) else as_written(v) for name, v in settings.items()}
        run = config.run
        reached = last.record.value(run.moment, run.metric)
        for summary in hparams(plain, {} if reached is None else {REACHED: reached}):
            self.writer.file_writer.add_summary(summary)
        if reached is not None:
            self.writer.add_scalar(REACHED, reached, last.record.round)


def in_run_folder(folder: Path) -> TensorBoard:
    """Return the observer that writes a run's curves into the run's own folder."""
    return TensorBoard(folder / CURVES)


def curves(record: RoundRecord) -> dict[str, float]:
    """Return the values of a round by path: every number at every moment, the loss, bytes and seconds."""
    scores = {**record.moments, **({"validation": own} if (own := record.validation.get("received")) else {})}
    found = {f"{moment}/{name}": value for moment, each in scores.items() for name, value in each.as_json().items()}
    if record.global_model is not None:
        found |= {f"global/{name}": value for name, value in record.global_model.as_json().items()}
    run = ("train_loss", "bytes_down", "bytes_up", "seconds")
    found |= {f"run/{name}": getattr(record, name) for name in run}
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}
