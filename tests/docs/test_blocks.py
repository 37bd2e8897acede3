"""Every command and every Python block of the README and the site is run by a test, or says why it is not."""

import re
import shlex
import textwrap

import matplotlib
import pytest

import partwise
from partwise.cli import main
from tests.support.pages import BLOCK, ROOT, blocks

ELSEWHERE = {  # pages whose blocks other tests run, block after block
    "README.md": "tests/laws/test_examples.py",
    "docs/api.md": "tests/laws/test_api_page.py",
    "docs/commands.md": "tests/laws/test_examples.py",
    "docs/federation.md": "tests/docs/test_federation_page.py",
    "docs/index.md": "tests/laws/test_examples.py",
    "docs/models.md": "tests/laws/test_examples.py",
    "docs/moving-from-pfllib.md": "tests/laws/test_examples.py",
    "docs/publishing-a-method.md": "tests/unit/test_published.py",
    "docs/quickstart.md": "tests/laws/test_examples.py",
    "docs/recipes.md": "tests/laws/test_examples.py",
    "docs/your-own-data-and-model.md": "tests/laws/test_examples.py",
}
METHODS = "docs/methods/"  # tests/laws/test_method_pages.py looks its lines up, and runs its commands
HERE = ("comparing", "long-runs", "observing-a-run", "privacy", "report", "robustness", "sweeps", "tasks")
FEWER = {
    r"--rounds \d+": "--rounds 2",
    r"--finetune-epochs \d+": "--finetune-epochs 1",
    r"--seeds 0,1,2": "--seeds 0",
    r"--search \d+": "--search 2",
    r"seeds=\[0, 1, 2\]": "seeds=[0, 1]",
    r"rounds=\d+": "rounds=2",
}


def fewer(text: str) -> str:
    """Return a block with fewer rounds and seeds."""
    for pattern, replacement in FEWER.items():
        text = re.sub(pattern, replacement, text)
    return text


def test_every_block_is_run_or_marked():
    pages = [str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]]
    run = {*ELSEWHERE, *(f"docs/{page}.md" for page in HERE), "docs/writing-a-method.md"}
    assert run <= {*pages}
    left = [page for page in pages if page not in run and not page.startswith(METHODS)]
    assert not [f"{page}: {block['text'][:60]}" for page in left for block in blocks(page) if not block["mark"]]


@pytest.mark.parametrize("page", HERE)
def test_the_page_block_after_block(page, tmp_path, monkeypatch):
    """With fewer rounds and seeds; commands on data that are not here get as far as their data."""
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    (tmp_path / "mine.py").write_text("from partwise import Method\nclass Mine(Method):\n    pass\n", encoding="utf-8")
    names: dict = {"partwise": partwise}
    for block in blocks(f"docs/{page}.md"):
        text = "" if block["mark"] else fewer(block["text"].replace("\\\n", " "))
        if block["kind"] == "python":
            exec(text, names)
        for line in text.splitlines() if block["kind"] == "sh" else ():
            if line.startswith("partwise "):
                arguments = shlex.split(line, comments=True)[1:]
                small = ["--quiet"] if arguments[0] in ("run", "compare", "sweep") else []
                if small and "--preset" not in arguments:  # a preset is found by its network, too
                    small += [] if "fed3p2p" in arguments else ["--model", "mlp-100"]  # it cuts the body in two
                    small += [] if "--epochs" in arguments else ["--epochs", "1"]
                assert main([*arguments, *small]) in ((0, 3) if "cifar10" in line else (0,)), line


def test_the_methods_of_the_guide():
    """The first block holds three methods; every other one is what a method's class holds."""
    public = {name: getattr(partwise, name) for name in partwise.__all__}
    first, *others = blocks("docs/writing-a-method.md")
    names = dict(public)
    exec(first["text"], names)
    for name in ("FedPer", "FedRep", "FedBABU"):
        partwise.run(names[name], data="made", clients=3, rounds=1)
    for block in others:
        exec(
            "import torch\nfrom torch import nn\nclass Guided(Method):\n" + textwrap.indent(block["text"], "    "),
            dict(public),
        )


def test_the_mark_is_found():
    [marked, run] = BLOCK.finditer("<!-- not run: it installs -->\n```sh\npip\n```\n\n```python\n1\n```\n")
    assert marked["mark"] and not run["mark"] and run["kind"] == "python"
