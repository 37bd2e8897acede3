"""A hook that is misspelt or takes something else is refused before a run, with the nearest name and the line."""

import pytest

from partwise import ALL, ConfigError, Method, Move, Phase, methods, option
from partwise.methods import find
from tests.support.commands import refuse


class Los(Method):
    def los(self, net, b, me):
        return b.ce(net(b.x))


class Aggregates(Method):
    def aggregates(self, server, updates):
        pass


class Shares(Method):
    shares = {"*": ALL}


class FromAbove(Aggregates):
    """The mistake stands in a class above."""


class Short(Method):
    def loss(self, net, b):
        return b.ce(net(b.x))


@pytest.mark.parametrize(
    ("method", "line"),
    [
        (Los, r"^test_hooks_names.py:\d+: Los.los is not used by partwise; did you mean 'loss'\?$"),
        (Aggregates, r"Aggregates.aggregates is not used by partwise; did you mean 'aggregate'\?"),
        (Shares, r"^Shares.shares is not used by partwise; did you mean 'share'\?$"),
        (FromAbove, r"FromAbove.aggregates is not used by partwise; did you mean 'aggregate'\?"),
        (Short, r"^test_hooks_names.py:\d+: Short.loss must take \(self, net, b, me\)$"),
    ],
)
def test_a_mistake_in_a_class_is_told(method, line):
    with pytest.raises(ConfigError, match=line):
        method()


@pytest.mark.parametrize("arguments", ["self", "self, **settings"])
def test_a_constructor_of_ones_own_is_refused(arguments, tmp_path, capsys):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from partwise import Method\n"
        "class Mine(Method):\n"
        f"    def __init__({arguments}):\n"
        "        self.weight = 2.0\n"
    )  # fmt: skip
    told = refuse(capsys, "run", mine, "--data", "made")
    assert told.startswith("error: mine.py:3: Mine must not define __init__: declare options as fields, and ")


class Helpers(Method):
    """Names near a hook's that something uses, and an option's."""

    losses: float = option(1.0, "Near loss, but an option.")

    def phases(self):
        return Phase(Move("*", "los"))

    def los(self, net, b, me):
        return self.reported(b) * b.ce(net(b.x))

    def reported(self, b):
        return 1.0

    def loss(self, *arguments):
        return self.los(*arguments)


def test_functions_of_ones_own_may_be_called_as_one_likes():
    Helpers()


@pytest.mark.parametrize("name", methods.names())
def test_every_method_of_the_project_is_accepted(name):
    find(name)()
