"""What a label is, in one place: a class, several yes-or-no labels, real numbers, or a class at every place."""

from partwise.tasks.classes import Classes
from partwise.tasks.labels import Labels
from partwise.tasks.numbers import Numbers
from partwise.tasks.places import Places
from partwise.tasks.task import Task

TASKS: dict[str, type[Task]] = {kind.kind: kind for kind in (Classes, Labels, Numbers, Places)}

__all__ = ["TASKS", "Classes", "Labels", "Numbers", "Places", "Task"]
