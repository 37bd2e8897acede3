"""Whoever asks for help, for a list or for a completion does not wait for torch; whoever runs is not told its hints."""

import os
import subprocess
import sys

import pytest

from partwise.methods import find, names
from partwise.reporting.methods import headline, summary

HEAVY = ("torch", "numpy", "pandas", "rich")
# Completion ends by SystemExit, and so may a command.
PROGRAM = f"""
import sys
from partwise.cli import main
try:
    main(sys.argv[1:])
finally:
    print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""


def said(*arguments, **environment):
    """What a command line shows in a process of its own, and what it tells beside that."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONWARNINGS", "TORCH_LOGS")}
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=kept | environment, check=True)
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("--help", "Run several methods and rank them."),
        ("methods", "FedPer: the body is shared"),
        ("methods fedper", "each client's own, never sent"),
        ("data", "Handwritten digits, for a first run in seconds."),
        ("data cifar10", "50,000 + 10,000 for testing"),
        ("data --json", '"name": "cifar10"'),
        ("reproduce", "fedtc/table2"),
        ("run --help", "Learning rate of local training"),
        ("run fedper --help", "Learning rate of local training"),
        ("compare --help", "--seeds NUMBERS"),
        ("sweep --help", "--search NUMBER"),
        ("partition --help", "--save FILE"),
        ("completion bash", "_PARTWISE_COMPLETE"),
    ],
)
def test_help_and_lists(line, shown):
    out, told = said(*line.split())
    assert shown in out and told == "[]\n"


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("partwise comp", "compare completion"),
        ("partwise run fedb", "fedbabu fedbn"),
        ("partwise run --eval-e", "--eval-every"),
        ("partwise compare local fedrep --head", "--head-epochs"),
        ("partwise data cifar1", "cifar10 cifar100"),
        ("partwise run fedper --data cifar1", "cifar10 cifar100"),
        ("partwise run fedper --model convnet", "convnet-f convnet-c"),
        ("partwise run fedper --partition qu", "quantity"),
        ("partwise run fedper --preset fedtc/table", "fedtc/table1 fedtc/table2"),
    ],
)
def test_completion(line, offered):
    asked = {"_PARTWISE_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    out, told = said(**asked)
    assert [each.removeprefix("plain,") for each in out.split()] == offered.split() and told == "[]\n"


def test_a_line_of_the_list_is_what_the_imported_method_says():
    assert {name: headline(name) for name in names()} == {name: summary(find(name)) for name in names()}


def test_the_warnings_of_torch_are_kept_back_and_others_are_not(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text(
        "import logging, warnings\n"
        "import torch\n"
        "from partwise import Method\n"
        "warnings.warn_explicit('a hint', UserWarning, 'compile_fx.py', 1, module='torch._inductor.compile_fx')\n"
        "logging.getLogger('torch._dynamo.convert_frame').warning('a line')\n"
        "warnings.warn('of torchlight', stacklevel=1)\n"
        "class Mine(Method): pass\n"
    )
    _, told = said("methods", str(mine))
    assert "of torchlight" in told and "a hint" not in told and "a line" not in told
    _, told = said("methods", str(mine), TORCH_LOGS="dynamo", PYTHONWARNINGS="default")  # whoever asks is told
    assert "of torchlight" in told and "a hint" in told and "a line" in told
