"""Texts over nodes: equal to the simulation in a vocabulary that all know, refused where one would be counted."""

from dataclasses import replace
from pathlib import Path

import pytest

from partwise import Federation
from partwise.data.tokens import ALPHABET
from partwise.data.transforms import TableTransform, TextTransform, VocabularyLimits
from partwise.errors import PartwiseError
from partwise.runs.config import make_config
from partwise.runs.prepare import prepare
from tests.support.node_parity import HOSTED, SETTINGS, distance
from tests.support.nodes import in_process
from tests.support.runs import awkward_federation

FIXED = TextTransform("note", "ascii", ALPHABET, 8)


def texts(text: TextTransform = FIXED) -> Federation:
    federation = awkward_federation(validated=2)
    x = federation.source.x[:, 0, 0].long() // 4
    source = replace(federation.source, x=x, text=text, model="gru", centre=(0.0,), scale=(1.0,))
    return replace(federation, source=source)


@pytest.mark.parametrize("model", ["auto", "transformer"])
def test_nodes_equal_the_simulation(tmp_path: Path, model: str) -> None:
    config = make_config("fedper", {**SETTINGS, "model": model})
    here = prepare(config, texts()).run()
    there = in_process(config, texts(), tmp_path, HOSTED).run()
    assert distance(here, there) < 1e-10


def test_a_vocabulary_of_counts_is_refused(tmp_path: Path) -> None:
    counted = replace(FIXED, tokens="words", limits=VocabularyLimits(10, 2))
    beside = replace(FIXED, row=TableTransform(("age",), ("age",)))
    for text, line in (
        (counted, "nodes count no words or characters of texts for others; in .data. set tokens to ascii"),
        (beside, "over nodes a text stands alone; drop the other columns"),
    ):
        with pytest.raises(PartwiseError, match=line):
            in_process(make_config("fedper", SETTINGS), texts(text), tmp_path, HOSTED)
