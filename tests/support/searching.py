"""Laws for whatever is drawn: a short search in the first tier, a long one in the slower tier."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy


def for_any(*strategies: SearchStrategy[Any], few: int, many: int) -> Callable[[Callable[..., None]], Any]:
    """A test of its draws alone: `few` of them, and `many` where there is time."""

    def decorate(test: Callable[..., None]) -> Any:
        @pytest.mark.parametrize("examples", [few, many], ids=["few", "many"])
        def searched(examples: int) -> None:
            settings(max_examples=examples, deadline=None)(given(*strategies)(test))()

        return searched

    return decorate
