"""`python -m tests.fuzz --examples 1000`: bad input by fuzzing, for as long as it takes."""

import argparse
import os
import sys
from pathlib import Path

import pytest

parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
parser.add_argument("--examples", type=int, default=1000, help="Of each kind.")
os.environ["FUZZ_EXAMPLES"] = str(parser.parse_args().examples)
sys.exit(pytest.main([str(Path(__file__).parent), "-s"]))
