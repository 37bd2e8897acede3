"""A mistake in a method file is one line: its own line, the function, and where in the run it happened."""

import pytest

from partwise.cli import main

OPENING = """import torch
from partwise import ALL, MIXED_GUIDE, GROUP, Method, Move, Phase, Stage
class Bad(Method):
"""
PLACE = "round 1, client 0, phase 1, step 1"
BLOCK = "round 1, clients 0, 1, 2 side by side, phase 1, step 1"

# body of the class, the line in the loop engine, and that in the vector engine where it is another
MISTAKES = {
    "build": ("    def build(self, parts, sizes):\n        return {}['a']\n", "bad.py:5 in Bad.build: KeyError: 'a'"),
    "stages": ("    def stages(self):\n        yield {}['a']\n", "bad.py:5 in Bad.stages: KeyError: 'a'"),
    "keep": ("    def keep(self, net):\n        return {}['a']\n", "bad.py:5 in Bad.keep: KeyError: 'a'"),
    "adapt": ("    def adapt(self):\n        return {}['a']\n", "bad.py:5 in Bad.adapt: KeyError: 'a'"),
    "check": ("    def check(self, clients):\n        return {}['a']\n", "bad.py:5 in Bad.check: KeyError: 'a'"),
    "loss": (
        "    def loss(self, net, b, me):\n        return {}['a']\n",
        f"bad.py:5 in Bad.loss ({PLACE}): KeyError: 'a'",
        f"bad.py:5 in Bad.loss ({BLOCK}): KeyError: 'a'",
    ),
    "two rows": (
        "    def loss(self, net, b, me):\n        return net(b.x)[:, 0]\n",
        "bad.py:4: a loss must be one number, as from b.mean or b.ce, not a tensor",
    ),
    "part": (
        "    def loss(self, net, b, me):\n        return b.ce(net.hed(b.x))\n",
        f"bad.py:5 in Bad.loss ({PLACE}): unknown part 'hed'; did you mean 'head'? known: body, head",
        f"bad.py:5 in Bad.loss ({BLOCK}): unknown part 'hed'; did you mean 'head'? known: body, head",
    ),
    "finish": (
        "    def finish(self, net, me):\n        return me.keep\n",
        "bad.py:4: Bad.finish must return two dicts: the new me.keep, and extras",
    ),
    "correct": (
        "    def correct(self, grads, net, me):\n        return {}\n",
        "bad.py:4: gradients are needed for everything that trains, but 'body.",
    ),
    "predict": (
        "    def predict(self, net, x, me):\n        return net(x).argmax(1)\n",
        "bad.py:4: predictions must be logits of the shape (",
    ),
    "down": (
        "    def down(self, server):\n        return {'weight': 0.5}\n",
        "the extra 'weight' must be made of tensors, not of float",
    ),
    "aggregate": (
        "    def aggregate(self, server, updates):\n        server['hed']\n",
        "bad.py:5 in Bad.aggregate (round 1): unknown part 'hed'; did you mean 'head'?",
    ),
    "mix": (
        "    share = {'*': MIXED_GUIDE}\n    def mix(self, server, updates):\n        return torch.ones(2, 2)\n",
        "bad.py:5: Bad.mix gives 'body.",
    ),
    "phase": (
        "    def phases(self):\n        return Phase('head')\n",
        "bad.py:5 in Bad.phases: a Phase takes moves, as in Phase(Move('head')), not 'head'",
    ),
    "groups": (
        "    share = {'*': GROUP}\n    def groups(self, server):\n        return [0, 2, 2]\n",
        "groups must give each of the 3 clients a number, from 0 and without gaps, not [0, 2, 2]",
    ),
}


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        *((name, "loop") for name in MISTAKES),
        ("loss", "vector"),
        *((name, "vector") for name in MISTAKES if name != "loss"),
    ],
)
def test_the_line_says_what_and_where(name, engine, tmp_path, capsys):
    body, *lines = MISTAKES[name]
    (tmp_path / "bad.py").write_text(OPENING + body)
    settings = ["--data", "made", "--clients", "3", "--rounds", "1", "--engine", engine, "--quiet"]
    assert main(["run", str(tmp_path / "bad.py"), *settings]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith(f"error: {lines[-1] if engine == 'vector' else lines[0]}")
    assert "\n" not in error and "Traceback" not in error


def test_what_a_method_refuses_itself_is_no_mistake(tmp_path, capsys):
    (tmp_path / "picky.py").write_text(
        "from partwise import ConfigError, Method\n"
        "class Picky(Method):\n"
        "    def check(self, clients):\n"
        "        raise ConfigError(f'{clients} clients are too few')\n"
    )
    assert main(["run", str(tmp_path / "picky.py"), "--data", "made", "--clients", "3", "--quiet"]) == 2
    assert capsys.readouterr().err == "error: 3 clients are too few\n"
