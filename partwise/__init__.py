"""Personalised federated learning, part by part: write a method for one client, run it on a thousand."""

from typing import TYPE_CHECKING

from partwise.lazy import lazy
from partwise.version import __version__ as __version__

if TYPE_CHECKING:  # for editors and type checkers; as a program runs, each name is imported when it is asked for
    from partwise.api import compare, run
    from partwise.data import Column, Federation, Source, from_arrays, from_clients, from_dataset, load, partition
    from partwise.errors import ConfigError, DataError, Diverged, PartwiseError
    from partwise.inference.loading import load_model
    from partwise.inference.newcomers import join
    from partwise.inference.served import ServedModel
    from partwise.method import (
        ALL,
        EVERYONE,
        FROZEN,
        GROUP,
        GUIDE,
        LOCAL,
        MIXED_GUIDE,
        SERVER,
        SERVER_GUIDE,
        UPLOAD,
        Method,
        Move,
        Phase,
        Relay,
        Share,
        Stage,
        WithinGroups,
        train,
    )
    from partwise.network.parts import Parts, Sizes
    from partwise.network.view import Batch, ClassCounts, ClassRows, Me, Net, PerClient
    from partwise.options import option
    from partwise.reporting.tensorboard import TensorBoard
    from partwise.runs.observers import Observer
    from partwise.runs.result import PersonalModel, Result
    from partwise.studies.comparison import Comparison
    from partwise.tasks import Task
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "api": "compare run",
            "data": "Column Federation Source from_arrays from_clients from_dataset load partition",
            "errors": "ConfigError DataError Diverged PartwiseError",
            "inference.loading": "load_model",
            "inference.newcomers": "join",
            "inference.served": "ServedModel",
            "method": "ALL EVERYONE FROZEN GROUP GUIDE LOCAL MIXED_GUIDE SERVER SERVER_GUIDE UPLOAD "
            "Method Move Phase Relay Share Stage WithinGroups train",
            "network.parts": "Parts Sizes",
            "network.view": "Batch ClassCounts ClassRows Me Net PerClient",
            "options": "option",
            "reporting.tensorboard": "TensorBoard",
            "runs.observers": "Observer",
            "runs.result": "PersonalModel Result",
            "studies.comparison": "Comparison",
            "tasks": "Task",
        },
    )

__all__ = [
    "ALL",
    "EVERYONE",
    "FROZEN",
    "GROUP",
    "GUIDE",
    "LOCAL",
    "MIXED_GUIDE",
    "SERVER",
    "SERVER_GUIDE",
    "UPLOAD",
    "Batch",
    "ClassCounts",
    "ClassRows",
    "Column",
    "Comparison",
    "ConfigError",
    "DataError",
    "Diverged",
    "Federation",
    "Me",
    "Method",
    "Move",
    "Net",
    "Observer",
    "Parts",
    "PartwiseError",
    "PerClient",
    "PersonalModel",
    "Phase",
    "Relay",
    "Result",
    "ServedModel",
    "Share",
    "Sizes",
    "Source",
    "Stage",
    "Task",
    "TensorBoard",
    "WithinGroups",
    "compare",
    "from_arrays",
    "from_clients",
    "from_dataset",
    "join",
    "load",
    "load_model",
    "option",
    "partition",
    "run",
    "train",
]
