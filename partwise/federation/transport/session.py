"""A Flower run, in whose name the server speaks with silos."""

import io
import zipfile
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

import httpx

from partwise.errors import PartwiseError, one_line
from partwise.federation.transport.flower import client_of, executor, heartbeats, task
from partwise.federation.transport.flower_internals import (
    AcquireTaskRequest,
    ControlHttpClient,
    Fab,
    ListRunsRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    StartRunRequest,
    Status,
    StopRunRequest,
    SubStatus,
    TaskType,
)
from partwise.federation.transport.keys import SECRET
from partwise.federation.transport.superlink import Served

APPLICATION = """
[project]
name = "partwise"
version = "1.0.0"
[tool.flwr.app]
publisher = "partwise"
[tool.flwr.app.components]
serverapp = "partwise:nothing"
clientapp = "partwise:nothing"
"""  # Flower wants one with every run; silos do not look at it
MOST_RUNS = 100  # the latest of a server: launches come one after another


def stop_runs(folder: Path) -> None:
    """Stop what a server runs still: of a `launch` that was killed, whose messages would keep silos waiting.

    Flower itself takes a minute to notice. To be called by who knows that no other launch is running.
    """
    place = Served.of(folder)
    with client_of(ControlHttpClient, place.address, place.ca) as control, suppress(httpx.HTTPError):
        for number, run in control.ListRuns(ListRunsRequest(limit=MOST_RUNS)).run_dict.items():
            if run.status.status != Status.FINISHED:
                control.StopRun(StopRunRequest(run_id=number))


class Session:
    """From the start of a run of Flower's to its end; we take the place of its application."""

    def __init__(self, folder: Path):
        """Begin one with the SuperLink that is served from `folder`."""
        place = Served.of(folder)
        address, self.ca = place.address, place.ca
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("pyproject.toml", APPLICATION)
        self.stack = ExitStack()
        try:
            with client_of(ControlHttpClient, address, self.ca) as control:
                control.StartRun(StartRunRequest(fab=Fab(content=archive.getvalue())))
            with executor(address, self.ca, (folder / SECRET).read_bytes()) as client:
                # Which one does not matter: all runs are alike, and one that somebody has left behind serves as well.
                token = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])).token
            self.client = self.stack.enter_context(task(address, self.ca, token))
            self.run: int = self.client.PullTaskInput(PullTaskInputRequest()).run.run_id
        except (httpx.HTTPError, OSError, ValueError) as error:
            self.stack.close()
            raise PartwiseError(f"the server of '{folder}' does not answer: {one_line(error)}") from None
        self.stack.enter_context(heartbeats(self.client))

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        status = SubStatus.FAILED if kind else SubStatus.COMPLETED
        details = one_line(error)[:1000] if error else ""
        with suppress(httpx.HTTPError):  # it is gone, and the run with it
            self.client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))
        self.stack.close()
