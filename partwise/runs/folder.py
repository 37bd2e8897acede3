"""A run's folder: its settings, metrics, clients, bytes and models, in files that outlive the process.

`metrics.jsonl` and `events.jsonl` grow as the run goes. Every other file is written under another name and then
renamed. Where `summary.json` stands the run is finished, unless `models.part` says that models are still missing: those
come last.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from partwise.errors import ConfigError
from partwise.records.files import (
    CHECKPOINTS_FOLDER,
    CONFIG,
    EVENTS,
    METHOD,
    METRICS,
    MODEL,
    MODELS_FOLDER,
    NETWORK_COPY,
    SUMMARY,
)
from partwise.records.lock import Lock
from partwise.records.record import fields_of
from partwise.records.rounds import RoundRecord
from partwise.records.summaries import RunSummary
from partwise.runs.checkpoints import (
    Checkpoint,
    Checkpoints,
    checkpoints_in,
    device_name,
    is_ours,
    manifests_in,
)
from partwise.runs.choose import MadeWith, choose_device
from partwise.runs.config import LIES_AT, Config
from partwise.runs.files import AT_FIRST, AT_LAST, EVERY_ROUND, EventsFile
from partwise.runs.observers import Observer
from partwise.runs.pace import Pace
from partwise.runs.result import Result
from partwise.runs.saving import GLOBAL_STEM, ModelFiles, code_copies
from partwise.runs.settings import RESULT_NEUTRAL_SETTINGS
from partwise.runs.simulation import Progress, Simulation
from partwise.writing import PART, make_folder, write

ROUNDS = ("rounds", "rounds_1", "rounds_2")  # a run may go on with more of them
FITTING = ("method", "clients", "network")  # without which a state is of no use
FORCE = "; --force continues anyway"
MISSING = f"{MODELS_FOLDER}{PART}"  # an empty file: models are still to be written
MODELS_TOGETHER = 64  # clients whose models are made together: a thousand of them need not lie in memory at once


class RunFolder:
    """The folder of a run: empty, or with this same run, finished (`complete`) or not; refuse anything else."""

    def __init__(
        self,
        path: str | Path,
        config: Config,
        overwrite: bool = False,
        resume: bool = False,
        force: bool = False,
    ):
        if overwrite and resume:
            raise ConfigError("overwrite and resume cannot be combined: one replaces the run, the other continues it")
        self.path, self.config, self.lock = Path(path), config, Lock(Path(path))
        self.check_links()
        self.lock.check()
        self.overwrite, self.force = overwrite or resume, force
        self.checkpoints = Checkpoints(self.path / CHECKPOINTS_FOLDER, Pace(config.run.checkpoint_every))
        self.usable: list[Checkpoint] = []  # from which this run may go on, the newest first
        self.left_aside = False  # one at least, for it is broken
        begun = self.finished or self.has(CONFIG) or bool(manifests_in(self.path / CHECKPOINTS_FOLDER))
        other = resume and begun and self.check_same_settings()
        self.complete = resume and self.finished and not other
        if resume and not self.complete:
            every = list(checkpoints_in(self.path / CHECKPOINTS_FOLDER))
            self.left_aside = len(every) < len(manifests_in(self.path / CHECKPOINTS_FOLDER))
            self.usable = [each for each in every if not (other and each.over)]  # a longer one goes on before its end
            self.check_unchanged({"torch": torch.__version__, "device": self.device})
        if not self.complete:
            self.check_free()
            self.check_writable()

    # ---- before the run

    def check_free(self) -> None:
        """Refuse to replace an earlier run unless the user asked for it."""
        if self.overwrite:
            return
        present = [path.name for path in self.files()]
        if self.finished:
            raise ConfigError(f"'{self.path}' holds a finished run: --resume shows it, --overwrite replaces it")
        if present:
            raise ConfigError(
                f"'{self.path}' holds an unfinished run ({', '.join(present[:3])}): --resume continues it, "
                "--overwrite replaces it"
            )

    @property
    def finished(self) -> bool:
        """Return whether the run has finished and all its files are written."""
        return self.has(SUMMARY) and not self.has(MISSING)

    def files(self) -> Iterator[Path]:
        """Yield the files that a run has written here, complete or not; never a user's other files."""
        written = (CONFIG, *AT_FIRST, METHOD, NETWORK_COPY, MODEL, *EVERY_ROUND, *AT_LAST)
        names = [*(f"{name}{end}" for name in written for end in ("", PART)), MISSING]
        yield from (self.path / name for name in names if self.has(name))
        yield from self.models()
        if os.path.isdir(self.path / CHECKPOINTS_FOLDER):
            yield from (path for path in sorted((self.path / CHECKPOINTS_FOLDER).iterdir()) if is_ours(path))

    def models(self) -> list[Path]:
        """Return the models that a run has written here, complete or not."""
        stems = ("client-*", GLOBAL_STEM, f"{GLOBAL_STEM}.extra")
        patterns = [f"{stem}.safetensors{end}" for stem in stems for end in ("", PART)]
        folder = self.path / MODELS_FOLDER
        return (
            [path for pattern in patterns for path in sorted(folder.glob(pattern))] if self.has(MODELS_FOLDER) else []
        )

    def has(self, name: str) -> bool:
        """Return whether a file, folder or link of this name is in the folder."""
        # Unlike Path.exists it never raises: what is wrong with an odd path is said by check_writable. A link is there
        # wherever it leads.
        return os.path.lexists(self.path / name)

    def check_same_settings(self) -> bool:
        """Refuse stored results of other settings, unless they only have fewer rounds or changes are allowed.

        Return whether the settings differ.
        """
        if not self.has(CONFIG):
            raise ConfigError(f"'{self.path}' holds a run without its {CONFIG}; --overwrite runs it again")
        texts = self.read(CONFIG), self.config.to_toml()
        stored, wanted = ([line for line in text.splitlines() if matters(line)] for text in texts)
        there = [line for line in stored if line not in wanted]
        # A setting that partwise has gained since is not stored: the run did what its default does.
        known, usual = set(map(setting_of, stored)), self.config.with_defaults().to_toml().splitlines()
        gained = {line for line in wanted if setting_of(line) not in known and line in usual}
        here = [line for line in wanted if line not in stored and line not in gained]
        names = {setting_of(line) for line in (*there, *here)}
        method = self.config.method
        longer = names <= set(ROUNDS) and method.rounds > rounds_in(stored) and method.lr_schedule != "cosine"
        if names and not longer and not self.force:
            raise ConfigError(
                f"'{self.path}' holds a run with other settings: {', '.join(there) or 'nothing'} there, "
                f"{', '.join(here) or 'nothing'} here{'' if self.finished else FORCE}"
            )
        return bool(names)

    def check_unchanged(self, here: Mapping[str, str | int]) -> None:
        """Refuse to continue with another torch, device or data, and always with what the state does not fit."""
        before = fields_of(self.usable[0].made_with) if self.usable else here
        other = {n: f"{n} was {before[n]} and is {value}" for n, value in here.items() if before[n] != value}
        fits = not any(name in other for name in FITTING)
        if other and not (fits and self.force):
            how, way_out = (" bit for bit", FORCE) if fits else ("", "; --overwrite begins again")
            raise ConfigError(f"'{self.path}' cannot continue{how}: {', '.join(other.values())}{way_out}")

    @property
    def device(self) -> str:
        """Return the name of the run's device."""
        return device_name(choose_device(self.config.run.device))

    def check_links(self) -> None:
        """Refuse symlinked subfolders."""
        for name in (MODELS_FOLDER, CHECKPOINTS_FOLDER):
            folder_inside(self.path, name)

    def check_writable(self) -> None:
        """Refuse a folder that cannot be written. Try it, because permission bits do not suffice; leave no trace."""
        for folder in (self.path, self.path / MODELS_FOLDER, self.path / CHECKPOINTS_FOLDER):
            if os.path.exists(folder) and not os.path.isdir(folder):
                raise ConfigError(f"cannot write results into '{folder}': it is not a folder")
        for path in self.files():
            if os.path.isdir(path) and not os.path.islink(path):
                raise ConfigError(f"cannot write '{path}': it is a folder")
        missing = [folder for folder in (self.path, *self.path.parents) if not os.path.exists(folder)]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path) as trial:
                trial.write(b"partwise")
        except OSError as error:
            raise ConfigError(f"cannot write results into '{self.path}': {error.strerror}") from None
        finally:
            for folder in missing:
                with suppress(OSError):
                    folder.rmdir()

    # ---- going on

    @property
    def notes(self) -> list[str]:
        """Return notes for the user before the run begins."""
        at = [f"goes on after round {self.usable[0].round}, from a checkpoint"] if self.usable else []
        return [*filter(None, [self.lock.note]), *at]

    @property
    def made_with(self) -> MadeWith | None:
        """Return how the run to continue was made; None if there is none, or it ran on another device."""
        before = self.usable[0].made_with if self.usable else None
        return before if before and before.device == self.device else None

    def go_on_from(self, rounds: set[int]) -> None:
        """Go on from a checkpoint of one of these rounds, or begin again: runs side by side go on together."""
        self.usable = [each for each in self.usable if each.round in rounds]

    def go_on(self, simulation: Simulation) -> None:
        """Bring a prepared run to the state of its newest checkpoint."""
        self.checkpoints.begin(simulation)
        here = self.checkpoints.made_with(simulation)
        self.check_unchanged({name: getattr(here, name) for name in FITTING})
        self.check_unchanged({"data": here.data})
        self.checkpoints.restore(simulation, self.usable[0])  # which may refuse; then all stays as it is
        if not simulation.over:  # what is there is of a run that was shorter
            for path in (*(self.path / name for name in (*AT_LAST, MISSING)), *self.models()):
                path.unlink(missing_ok=True)
        write(self.path / CONFIG, self.config.to_toml().encode())
        if not simulation.over:
            ModelFiles(self.path, simulation).describe()
        rows = "".join(json.dumps(each.as_json()) + "\n" for each in simulation.history.rounds)
        write(self.path / METRICS, rows.encode())
        events = EventsFile(self.path / EVENTS)
        events.begin(simulation)
        events.write()

    # ---- the run

    def record(
        self, simulation: Simulation, progress: Progress = lambda _: None, observers: Sequence[Observer] = ()
    ) -> Result:
        """Carry out the run and keep everything that it leaves behind."""
        make_folder(self.path)
        with self.lock.held():
            self.check_links()
            self.check_free()  # since it was first looked at, another run may have been here
            if self.usable:
                self.go_on(simulation)
            else:
                self.begin(simulation)
            files = [observer(self.path / name) for name, observer in EVERY_ROUND.items()]
            watching = [*observers, *files, self.checkpoints]
            result = Result(simulation.run(progress, watching, keep_adapted=self.config.run.save_models))
            self.end(result)
        simulation.method_adapted.clear()
        return result

    def begin(self, simulation: Simulation) -> None:
        """Clear away what an earlier run left, and write what is known before the first round."""
        if self.lock.note:
            simulation.notes.append(self.lock.note)
        code = code_copies(self.config)  # before anything is cleared away: it may lie here
        for path in list(self.files()):
            path.unlink()
        for folder in (MODELS_FOLDER, CHECKPOINTS_FOLDER):
            with suppress(OSError):  # not there, or the user keeps files in it
                (self.path / folder).rmdir()
        write(self.path / CONFIG, self.config.to_toml().encode())
        for name, content in AT_FIRST.items():
            write(self.path / name, content(simulation))
        for name, source in code.items():
            write(self.path / name, source)
        ModelFiles(self.path, simulation).describe()

    def end(self, result: Result) -> None:
        """Write what is known after the last round; what is large comes last, for a disk may be full."""
        if self.config.run.save_models:
            write(self.path / MISSING, b"")
        for name, content in AT_LAST.items():
            write(self.path / name, content(result))
        if self.config.run.save_models:
            self.write_models(result)
            (self.path / MISSING).unlink()

    def write_models(self, result: Result) -> None:
        """Write every client's model, and the global one."""
        files, clients = ModelFiles(self.path, result.simulation), list(result.models)
        for start in range(0, len(clients), MODELS_TOGETHER):
            for client, model in result.models.some(clients[start : start + MODELS_TOGETHER]).items():
                files.write(client, model, result.models.moment)
        files.write_global()
        files.describe()

    # ---- after the run

    def summary(self) -> RunSummary:
        """Return the summary of a finished run; refuse one that cannot be read."""
        try:
            values = json.loads(self.read(SUMMARY))
        except ValueError as error:
            raise self.damaged(SUMMARY, str(error)) from None
        try:
            return RunSummary.from_json(values)
        except (LookupError, TypeError, AttributeError, ValueError):
            raise self.damaged(SUMMARY, "it is no summary of a run") from None

    def rounds(self) -> list[RoundRecord]:
        """Return the record of every round."""
        try:
            return [RoundRecord.from_json(json.loads(line)) for line in self.read(METRICS).splitlines()]
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise self.damaged(METRICS, str(error)) from None

    def read(self, name: str) -> str:
        """Return the text of a file of the run."""
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except OSError as error:
            raise self.damaged(name, error.strerror) from None
        except UnicodeDecodeError:
            raise self.damaged(name, "it is not UTF-8") from None

    def damaged(self, name: str, why: str | None) -> ConfigError:
        """Return the error that a file of the run is damaged."""
        return ConfigError(f"'{self.path / name}' is damaged ({why}); --overwrite runs it again")


def folder_inside(out: str | Path, *names: str) -> Path:
    """Return the folder that a user names, or one inside it; refuse symbolic links, which may lead out of it."""
    if not str(out):
        raise ConfigError("out = '' names no folder; '.' is the current one")
    path = Path(os.path.expanduser(out))
    for name in names:
        path /= name
        if os.path.islink(path):
            raise ConfigError(f"'{path}' is a symbolic link, which partwise does not follow: remove it")
    return path


def setting_of(line: str) -> str:
    """Return the name of the setting in a line of a configuration."""
    return line.removeprefix("# ").split(" ")[0]


def matters(line: str) -> bool:
    """Return whether results depend on a line of a configuration."""
    return setting_of(line) not in RESULT_NEUTRAL_SETTINGS and not line.startswith(LIES_AT)


def rounds_in(lines: Sequence[str]) -> int:
    """Return the number of rounds in a stored configuration."""
    return next((int(line.split(" = ")[1]) for line in lines if line.startswith("rounds = ")), 0)
