"""Local: rounds by hand; nothing is global, and nothing travels."""

from partwise.methods.local import Local
from tests.support.plain import Followed


def test_three_rounds_by_hand():
    run = Followed("local")
    run.assert_that_clients_share()  # nothing
    assert run.rounds[-1].global_predictions is None and Local.predict_global is None
